//! A key whose `policies` name a policy may have it in place of those that apply to its requests;
//! any other key only adds to them. Two policies that are loosened differ: the one that is named
//! counts alone, and the zones of the key itself stay.

use crate::support::client::Response;

use super::policies::Zones;

/// Policies for `m`: the first keeps it at home, the second lets it go away, the third is about
/// no model here. The zone of the last key is its own.
const SECTIONS: &str = "routing: { strategy: priority_only }
auth:
  keys:
    - { name: chooser, key: sk-key-of-chooser, policies: [open, lax] }
    - { name: half, key: sk-key-of-half, policies: [lax] }
    - { name: plain, key: sk-key-of-plain }
    - { name: homely, key: sk-key-of-homely, policies: [open, lax], zones: [home] }
policies:
  - { name: private, models: [m], zones: [home] }
  - { name: open, models: [none], zones: [home, away] }
  - { name: lax, models: [none] }
  - { name: outside, models: [none], zones: [away] }
";

fn chat(zones: &Zones, who: &str, policy: Option<&str>) -> Response {
    let key = format!("Bearer sk-key-of-{who}");
    let named = policy.map(|name| ("x-penstock-policy", name));
    let headers: Vec<_> = [("authorization", &*key)].into_iter().chain(named).collect();
    zones.chat("m", &headers)
}

#[test]
fn named_policy_takes_the_place_of_others_only_for_keys_that_may_choose_it() {
    let zones = Zones::start(SECTIONS);
    let mut away = 0;
    for (who, policy, goes_away) in [
        ("chooser", None, false),
        ("chooser", Some("open"), true),
        ("chooser", Some("lax"), true),
        ("chooser", Some("private"), false),
        ("half", Some("open"), false),
        ("half", Some("lax"), true),
        ("plain", Some("open"), false),
        ("plain", Some("lax"), false),
        ("homely", Some("open"), false),
        ("homely", Some("lax"), false),
    ] {
        let response = chat(&zones, who, policy);
        assert_eq!(response.status, 200, "{who} {policy:?}: {}", response.text());
        away += usize::from(goes_away);
        assert_eq!(zones.far.received().len(), away, "{who} {policy:?}");
    }
    for who in ["chooser", "half", "plain", "homely"] {
        let response = chat(&zones, who, Some("outside"));
        assert_eq!(response.error_code(), "no_backend_in_zone", "{who}: both hold");
    }
    let both = zones.chat(
        "m",
        &[
            ("authorization", "Bearer sk-key-of-chooser"),
            ("x-penstock-policy", "open"),
            ("x-penstock-policy", "lax"),
        ],
    );
    assert_eq!(both.status, 400, "one policy can be named: {}", both.text());
    assert_eq!(zones.far.received().len(), away);
}
