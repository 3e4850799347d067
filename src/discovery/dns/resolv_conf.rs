//! `/etc/resolv.conf`: the DNS servers, and the suffixes that complete short names. It is read for
//! SRV records, which the system's resolver has no call for.

use std::net::{IpAddr, SocketAddr};

/// The most name servers that are used, as in the C library.
const MAX_SERVERS: usize = 3;
/// The most suffixes that are used, as in the C library.
const MAX_SUFFIXES: usize = 6;
const PORT: u16 = 53;

/// The settings of the system's resolver.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ResolvConf {
    pub(super) servers: Vec<SocketAddr>,
    suffixes: Vec<String>,
    /// The number of dots from which a name is tried unchanged first.
    min_dots: usize,
}

impl ResolvConf {
    /// Reads the text of the file; unknown settings are ignored.
    pub(super) fn parse(text: &str) -> Self {
        let mut conf = Self { servers: Vec::new(), suffixes: Vec::new(), min_dots: 1 };
        for line in text.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("nameserver") => {
                    let address = words.next().and_then(|word| word.parse::<IpAddr>().ok());
                    conf.servers.extend(address.map(|address| SocketAddr::new(address, PORT)));
                }
                Some("domain" | "search") => {
                    let suffixes = words.map(|word| word.trim_end_matches('.').to_lowercase());
                    // The last such line counts (resolv.conf(5)).
                    conf.suffixes = suffixes.filter(|suffix| !suffix.is_empty()).collect();
                }
                Some("options") => {
                    let mut dots =
                        words.filter_map(|word| word.strip_prefix("ndots:")?.parse().ok());
                    conf.min_dots = dots.next_back().unwrap_or(conf.min_dots);
                }
                _ => {}
            }
        }
        if conf.servers.is_empty() {
            // Without a `nameserver` line, the server of this machine is meant (resolv.conf(5)).
            conf.servers.push(SocketAddr::new(IpAddr::from([127, 0, 0, 1]), PORT));
        }
        conf.servers.truncate(MAX_SERVERS);
        conf.suffixes.truncate(MAX_SUFFIXES);
        conf
    }

    /// Returns the names that `name` may stand for, in the order to try them.
    pub(super) fn candidates(&self, name: &str) -> Vec<String> {
        let mut names: Vec<String> =
            self.suffixes.iter().map(|suffix| format!("{name}.{suffix}")).collect();
        let is_long = name.bytes().filter(|byte| *byte == b'.').count() >= self.min_dots;
        names.insert(if is_long { 0 } else { names.len() }, name.to_owned());
        names
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_pod_are_read() {
        let conf = ResolvConf::parse(
            "# of Kubernetes\nsearch ml.svc.cluster.local svc.cluster.local\n\
             nameserver 10.96.0.10\noptions ndots:5 timeout:1\nnameserver fd00::a\n",
        );
        let servers: Vec<String> = conf.servers.iter().map(SocketAddr::to_string).collect();
        assert_eq!(servers, ["10.96.0.10:53", "[fd00::a]:53"]);
        let candidates = conf.candidates("_http._tcp.engines");
        let completed = "_http._tcp.engines.ml.svc.cluster.local";
        assert_eq!((candidates[0].as_str(), candidates.len()), (completed, 3));
        assert_eq!(conf.candidates("_http._tcp.e.ml.svc.cluster.local")[0].matches('.').count(), 6);
        assert_eq!(ResolvConf::parse("").servers[0].to_string(), "127.0.0.1:53");
    }
}
