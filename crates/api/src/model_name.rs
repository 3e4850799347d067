//! Names that mean the same model: `x` and `x:latest`, in any case, as Ollama treats them.

use std::borrow::Cow;

use super::printable::MAX_NAME;

/// The tag of a name without a tag.
pub const DEFAULT_TAG: &str = ":latest";

/// The canonical form of all names of one model: lower case, without the default tag. It is only
/// for comparison: a backend receives its own spelling. It is made without an allocation, because
/// decisions look names up by it.
#[derive(Debug, Clone, Copy)]
pub struct CanonicalName {
    bytes: [u8; MAX_NAME],
    length: usize,
}

impl CanonicalName {
    /// Returns the canonical form of `name`; `None` if it is longer than a model's name may be.
    pub fn new(name: &str) -> Option<Self> {
        let mut canonical = Self { bytes: [0; MAX_NAME], length: without_default_tag(name).len() };
        let bytes = canonical.bytes.get_mut(..canonical.length)?;
        bytes.copy_from_slice(name.as_bytes().get(..canonical.length)?);
        bytes.make_ascii_lowercase();
        Some(canonical)
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        let text = std::str::from_utf8(self.bytes.get(..self.length).unwrap_or_default());
        debug_assert!(text.is_ok(), "a change of ASCII letters keeps UTF-8");
        text.unwrap_or_default()
    }
}

/// Returns the canonical form of a name of any length, as an owned string.
pub fn canonical_name(name: &str) -> Box<str> {
    without_default_tag(name).to_ascii_lowercase().into()
}

/// Returns the name without the default tag, and with it. A name with another tag stays as it is.
pub fn default_tag_forms(name: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let plain = without_default_tag(name);
    let tagged = (!has_tag(plain)).then(|| Cow::Owned(format!("{plain}{DEFAULT_TAG}")));
    [Some(Cow::Borrowed(plain)), tagged].into_iter().flatten()
}

/// Returns whether both names mean the same model.
pub fn is_same_model(one: &str, other: &str) -> bool {
    without_default_tag(one).eq_ignore_ascii_case(without_default_tag(other))
}

/// Returns whether a name has a tag, the default one or another.
pub fn has_tag(name: &str) -> bool {
    // A colon before the last slash belongs to the port of a registry.
    name.rsplit('/').next().is_some_and(|last| last.contains(':'))
}

/// Returns the name without the default tag, which may be in any case.
pub fn without_default_tag(name: &str) -> &str {
    // A name that is nothing but the tag keeps it: no name is empty.
    let tag = name.len().checked_sub(DEFAULT_TAG.len()).filter(|start| *start > 0);
    let before = tag.and_then(|start| {
        let tag = name.as_bytes().get(start..)?;
        tag.eq_ignore_ascii_case(DEFAULT_TAG.as_bytes()).then(|| name.get(..start))?
    });
    before.unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_tag_and_case_make_no_other_model() {
        for (name, canonical) in [
            ("llama3", "llama3"),
            ("llama3:latest", "llama3"),
            ("Llama3:Latest", "llama3"),
            ("llama3:8b", "llama3:8b"),
            ("hf.co/Org/Name-GGUF:Q4_K_M", "hf.co/org/name-gguf:q4_k_m"),
            ("a:latest:b", "a:latest:b"),
            (":latest", ":latest"),
            ("Ä:latest", "Ä"),
            ("", ""),
        ] {
            assert_eq!(&*canonical_name(name), canonical);
            assert_eq!(CanonicalName::new(name).unwrap().as_str(), canonical);
            assert!(is_same_model(name, canonical), "{name}");
        }
        assert!(!is_same_model("llama3:8b", "llama3"));
        assert!(CanonicalName::new(&"x".repeat(MAX_NAME + 1)).is_none());
    }
}
