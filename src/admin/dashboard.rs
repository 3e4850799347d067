//! The dashboard: a live view of the fleet, its history, decisions and usage for browsers. One
//! response holds the whole page and no data: the page follows the usage stream of this port and
//! reads its other pages, with the token if one is configured. `page.html` is the frame of the
//! style and the scripts.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::response::{AdminRefusal, AdminResponse};
use super::{Admin, AdminCall};

const PAGE: &str = include_str!("dashboard/page.html");
const STYLE: &str = include_str!("dashboard/style.css");
/// The scripts, in the order in which they use each other.
const SCRIPT: &str = concat!(
    include_str!("dashboard/data.js"),
    include_str!("dashboard/show.js"),
    include_str!("dashboard/sections.js"),
    include_str!("dashboard/decisions.js"),
    include_str!("dashboard/main.js"),
);
const MARK: &str = "{{nonce}}";

/// `/dashboard`
pub(super) fn page(_admin: &Admin, _call: &AdminCall<'_>) -> Result<AdminResponse, AdminRefusal> {
    // Only scripts and styles with this nonce run, so that a name cannot inject markup.
    let nonce = format!("{:032x}", SmallRng::from_os_rng().random::<u128>());
    Ok(AdminResponse::page(whole_page().replace(MARK, &nonce), &policy(&nonce)))
}

fn whole_page() -> String {
    PAGE.replace("{{style}}", STYLE.trim_end()).replace("{{script}}", SCRIPT.trim_end())
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
        let page = whole_page();
        assert_eq!(page.matches("http").count(), 1, "only the name space of SVG");
        assert!(page.len() <= 48 * 1024, "the page is small: {} bytes", page.len());
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
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        assert_eq!(page.matches(MARK).count(), 2, "style and script");
        assert_eq!(page.matches("{{").count(), 2, "nothing else is left to fill in");
    }
}
