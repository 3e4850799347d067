//! Arguments of the form `--name value`, enough for programs only `bench.py` starts.

use std::str::FromStr;

/// The value after `--name`.
pub fn text(name: &str) -> Option<String> {
    let mut all = std::env::args().skip(1);
    all.find(|argument| argument == name)?;
    all.next()
}

/// The value after `--name` as a number, or the default. Ends the program on anything else.
pub fn number<T: FromStr>(name: &str, default: T) -> T {
    let parse = |value: String| {
        value.parse().unwrap_or_else(|_| panic!("{name} takes a number, not {value}"))
    };
    text(name).map_or(default, parse)
}

/// Returns whether `--name` is given.
pub fn is_set(name: &str) -> bool {
    std::env::args().any(|argument| argument == name)
}
