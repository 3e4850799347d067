//! `routing.passthrough`: forwards requests for paths that penstock does not know.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use penstock_config::{BY_MODEL, ModelGlob};

/// The destination of a forwarded path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Way {
    /// To a backend of the model that the request names.
    ByModel,
    Backend(Box<str>),
}

/// The forwarded paths of one configuration.
#[derive(Debug, Default)]
pub struct Passthrough {
    /// The rules, the most specific pattern first.
    rules: Vec<(ModelGlob, Way)>,
}

impl Passthrough {
    /// Reads the rules of `routing.passthrough`.
    pub fn new(config: &BTreeMap<String, String>) -> Self {
        let mut rules: Vec<_> = config
            .iter()
            .map(|(pattern, to)| {
                let way =
                    if to == BY_MODEL { Way::ByModel } else { Way::Backend(to.as_str().into()) };
                (ModelGlob::new(pattern), way)
            })
            .collect();
        rules.sort_by_key(|(glob, _)| Reverse(glob.specificity()));
        Self { rules }
    }

    /// Returns the destination of requests for `path`; `None` if they are not forwarded. A path
    /// with `.` or `..` is not: an engine may resolve it to a path outside of the pattern.
    pub fn find(&self, path: &str) -> Option<&Way> {
        let is_plain = !path.contains("//") && path.split('/').all(|part| !is_relative(part));
        let mut rules = self.rules.iter().filter(|_| is_plain);
        rules.find(|(glob, _)| glob.matches(path)).map(|(_, way)| way)
    }
}

/// Returns whether a segment of a path is `.` or `..`, in any spelling, or hides a slash.
fn is_relative(segment: &str) -> bool {
    let plain = segment.to_ascii_lowercase().replace("%2e", ".");
    matches!(plain.as_str(), "." | "..")
        // Servlet containers drop what follows a semicolon before they resolve the dots.
        || plain.starts_with("..;")
        || plain.contains(['\\', '\0'])
        || plain.contains("%2f")
        || plain.contains("%5c")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_specific_pattern_counts_and_paths_cannot_escape_it() {
        let rules = [("/v1/*", BY_MODEL), ("/v1/files*", "hosted"), ("/v1/files/x", "other")];
        let config = rules.map(|(from, to)| (from.to_owned(), to.to_owned()));
        let passthrough = Passthrough::new(&config.into());
        let backend = |name: &str| Some(Way::Backend(name.into()));
        for (path, way) in [
            ("/v1/realtime", Some(Way::ByModel)),
            ("/v1/files", backend("hosted")),
            ("/v1/files/abc/content", backend("hosted")),
            ("/v1/files/x", backend("other")),
            ("/v2/files", None),
            ("/v1/files/../../metrics", None),
            ("/v1/files/%2E%2e/metrics", None),
            ("/v1/files/./x", None),
            ("/v1/files//x", None),
            ("/v1/files/..%2fmetrics", None),
            ("/v1/files/..\\metrics", None),
            ("/v1/files/..;a/metrics", None),
            ("/v1/files/a..b", backend("hosted")),
        ] {
            assert_eq!(passthrough.find(path), way.as_ref(), "{path}");
        }
        assert_eq!(Passthrough::default().find("/v1/realtime"), None);
    }
}
