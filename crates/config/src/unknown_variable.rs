//! Environment variables with the prefix of this program that set nothing. To ignore one is
//! dangerous: a `PENSTOCK_AUTH_KEYS` that is not read leaves the data port open.

use super::overridable::{Override, PREFIX, file_only_settings, near};
use super::syntax::errors::Problem;

/// The variable that names the configuration file; the command line reads it.
const CONFIG: &str = "PENSTOCK_CONFIG";

/// Variables of the project's own tests: a shell that runs the tests may run the program as well.
const OF_TESTS: [&str; 5] =
    ["PENSTOCK_BINARY", "PENSTOCK_BLESS", "PENSTOCK_E2E", "PENSTOCK_FUZZ_SECONDS", "PENSTOCK_LONG"];

/// Returns why a variable that is none of the `known` overrides is an error; `None` if another
/// program sets it.
pub(super) fn unknown_variable(name: &str, value: &str, known: &[Override]) -> Option<Problem> {
    if name == CONFIG || OF_TESTS.contains(&name) || is_service_link(name, value) {
        return None;
    }
    let file_only = file_only_settings().into_iter().find(|setting| {
        let rest = name.strip_prefix(&setting.variable());
        // `PENSTOCK_BACKENDS_0_URL`, as other programs name an item of a list.
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('_'))
    });
    if let Some(setting) = file_only {
        return Some(Problem::FileOnlyVariable { setting: setting.dotted() });
    }
    let names = known.iter().map(Override::variable).chain([CONFIG.to_owned()]);
    Some(Problem::UnknownVariable { suggestion: near(name, names) })
}

/// Returns whether Kubernetes set the variable for a service whose name starts with `penstock`: its
/// names and values have fixed forms.
fn is_service_link(name: &str, value: &str) -> bool {
    let Some(rest) = name.strip_prefix(PREFIX) else { return false };
    // A service may be called `penstock` alone: then its variables have nothing before `_SERVICE`.
    let rest = format!("_{rest}");
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_url = ["tcp://", "udp://", "sctp://"].iter().any(|scheme| value.starts_with(scheme));
    if rest.ends_with("_SERVICE_HOST") {
        return true;
    }
    if rest.ends_with("_SERVICE_PORT") || rest.contains("_SERVICE_PORT_") {
        return is_number(value);
    }
    if rest.ends_with("_PORT") && is_url {
        return true;
    }
    // PENSTOCK_ADMIN_PORT_9090_TCP and the same with _PROTO, _PORT and _ADDR.
    rest.rsplit_once("_PORT_").is_some_and(|(_, port)| {
        port.split_once('_').is_some_and(|(number, protocol)| {
            let protocol = protocol.split('_').next();
            is_number(number) && matches!(protocol, Some("TCP" | "UDP" | "SCTP"))
        })
    }) || ["_TCP_PORT", "_UDP_PORT", "_SCTP_PORT"].iter().any(|end| {
        let port = rest.strip_suffix(end).and_then(|rest| rest.rsplit_once("_PORT_"));
        port.is_some_and(|(_, number)| is_number(number))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_tests_are_no_mistakes() {
        assert!(unknown_variable("PENSTOCK_E2E", "required", &[]).is_none());
        assert!(unknown_variable("PENSTOCK_E2F", "required", &[]).is_some());
    }

    #[test]
    fn service_links_differ_from_settings_by_their_form() {
        for (name, value) in [
            ("PENSTOCK_SERVICE_HOST", "10.0.0.1"),
            ("PENSTOCK_SERVICE_PORT", "80"),
            ("PENSTOCK_SERVICE_PORT_HTTP", "80"),
            ("PENSTOCK_PORT", "tcp://10.0.0.1:80"),
            ("PENSTOCK_PORT_80_TCP", "tcp://10.0.0.1:80"),
            ("PENSTOCK_PORT_80_TCP_PROTO", "tcp"),
            ("PENSTOCK_PORT_80_TCP_PORT", "80"),
            ("PENSTOCK_ADMIN_PORT_9090_TCP_ADDR", "10.0.0.1"),
            ("PENSTOCK_ADMIN_PORT_9090_TCP_PORT", "9090"),
        ] {
            assert!(is_service_link(name, value), "{name}={value}");
        }
        for (name, value) in [
            ("PENSTOCK_PORT", "8080"),
            ("PENSTOCK_ADMIN_PORT", "9090"),
            ("PENSTOCK_SERVICE_PORT", "http"),
            ("PENSTOCK_PORT_HTTP", "8080"),
            ("PENSTOCK_AUTH_KEYS", "tcp://"),
        ] {
            assert!(!is_service_link(name, value), "{name}={value}");
        }
    }
}
