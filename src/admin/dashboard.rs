//! The dashboard: a live view of the fleet, rates and latest decisions for browsers. The page itself
//! holds no data; it queries this port, with the token if one is configured.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::response::{AdminResponse, Refusal};
use super::{Admin, Call};

const PAGE: &str = include_str!("dashboard.html");
const MARK: &str = "{{nonce}}";

/// `/dashboard`
pub(super) fn page(_admin: &Admin, _call: &Call<'_>) -> Result<AdminResponse, Refusal> {
    // Only scripts and styles with this nonce run, so that a name cannot inject markup.
    let nonce = format!("{:032x}", SmallRng::from_os_rng().random::<u128>());
    Ok(AdminResponse::page(PAGE.replace(MARK, &nonce), &policy(&nonce)))
}

fn policy(nonce: &str) -> String {
    format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn page_loads_nothing_external_and_builds_no_markup() {
        let names = PAGE.matches("http").count();
        assert_eq!(names, 1, "only the name space of SVG");
        for forbidden in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            " style=",
            " onclick=",
            "@import",
            "url(",
        ] {
            assert!(!PAGE.contains(forbidden), "{forbidden}");
        }
        assert_eq!(PAGE.matches(MARK).count(), 2, "style and script");
    }
}
