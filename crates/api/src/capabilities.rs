//! The capabilities of a model beyond plain text.

use std::fmt;

/// A set of capabilities beyond plain text: vision, tools, JSON mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(pub(super) u8);

impl Capabilities {
    /// The empty set: plain text only.
    pub const NONE: Self = Self(0);
    /// Images in the prompt.
    pub const VISION: Self = Self(1);
    /// Tool (function) calls.
    pub const TOOLS: Self = Self(2);
    /// Output constrained to JSON or a JSON schema.
    pub const JSON_MODE: Self = Self(4);
    /// Every capability.
    pub const ALL: Self = Self(7);

    /// Every capability with its name, in the order messages list them.
    pub const NAMED: [(Self, &'static str); 3] =
        [(Self::VISION, "vision"), (Self::TOOLS, "tools"), (Self::JSON_MODE, "json_mode")];

    /// The capability called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::NAMED.iter().find(|(_, known)| *known == name).map(|(capability, _)| *capability)
    }

    /// Returns the capabilities in either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the capabilities in this set and not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether all of `other` is in this set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the names of the capabilities in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::NAMED.iter().filter(move |(one, _)| self.contains(*one)).map(|(_, name)| *name)
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.names().collect();
        write!(out, "[{}]", names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capability_sets_print_their_names() {
        let needs = Capabilities::VISION.union(Capabilities::JSON_MODE);
        assert_eq!(needs.to_string(), "[vision, json_mode]");
        assert_eq!(needs.without(Capabilities::VISION), Capabilities::JSON_MODE);
        assert!(Capabilities::ALL.contains(needs));
    }
}
