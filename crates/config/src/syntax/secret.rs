//! Secrets: keys and tokens that must never appear in a log, a dump or an error.

use std::fmt;
use std::marker::PhantomData;
use std::path::{Path, PathBuf};

use serde::{Serialize, Serializer};

use super::document::Node;
use super::dump::Dump;
use super::errors::{Problem, SecretError};
use super::foreign_secret::{warn_of_file, warn_of_inline};
use super::reader::Reader;
use super::setting::Setting;
use super::shape::Shape;

/// Shown in place of a secret.
const MASK: &str = "***";

/// A key or token. It is shown as `***`; only [`Secret::reveal`] returns it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// Never empty in a loaded configuration.
    text: String,
    file: Option<PathBuf>,
}

impl Secret {
    /// Creates a secret from its text.
    ///
    /// # Errors
    /// [`SecretError`] if it is empty or contains anything but printable ASCII.
    pub fn new(text: &str) -> Result<Self, SecretError> {
        if text.is_empty() {
            return Err(SecretError::Empty);
        }
        // A line break would end the header field that carries the secret.
        if !text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
            return Err(SecretError::NotPrintable);
        }
        Ok(Self { text: text.to_owned(), file: None })
    }

    /// The secret itself: for comparing and sending, never for showing.
    pub fn reveal(&self) -> &str {
        &self.text
    }

    /// A placeholder for a required secret until it is read.
    pub(crate) const fn missing() -> Self {
        Self { text: String::new(), file: None }
    }

    /// Returns whether no secret was given.
    pub(crate) fn is_missing(&self) -> bool {
        self.text.is_empty()
    }

    /// Returns the file from which it was read; `None` for a secret in the configuration itself.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(MASK)
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(MASK)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(MASK)
    }
}

/// A secret written in the configuration, usually as `${VARIABLE}`.
pub(crate) struct InlineSecret;

impl Setting for InlineSecret {
    type Value = Option<Secret>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        let text = reader.scalar(node, "a secret")?;
        warn_of_inline(text, &node.place, reader);
        match Secret::new(text) {
            Ok(secret) => Some(Some(secret)),
            Err(source) => reader.refuse(node, |key| Problem::Secret { key, source }),
        }
    }

    fn dump(value: &Self::Value) -> Dump {
        match value {
            // A secret that was read from a file is dumped with the key that names the file.
            Some(secret) if secret.file.is_none() => Dump::text(MASK),
            _ => Dump::Null,
        }
    }
}

/// A secret in a separate file; the path is relative to the configuration's directory.
pub(crate) struct SecretFile;

impl Setting for SecretFile {
    type Value = Option<Secret>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        let given = reader.scalar(node, "the path of a file")?;
        let path = reader.base_dir().join(given);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => {
                return reader.refuse(node, |key| Problem::SecretFile { key, path, source });
            }
        };
        warn_of_file(&text, &node.place, reader);
        // Editors end a file with a line break.
        match Secret::new(text.trim()) {
            Ok(secret) => {
                // Absolute, so that a dump names the same file from any directory.
                let file = std::path::absolute(&path).unwrap_or(path);
                Some(Some(Secret { file: Some(file), ..secret }))
            }
            Err(source) => reader.refuse(node, |key| Problem::Secret { key, source }),
        }
    }

    fn dump(value: &Self::Value) -> Dump {
        match value.as_ref().and_then(Secret::file) {
            Some(path) => Dump::text(&path.to_string_lossy()),
            None => Dump::Null,
        }
    }
}

/// A required secret, inline or in a file.
pub(crate) struct Needed<C>(PhantomData<C>);

impl<C: Setting<Value = Option<Secret>>> Setting for Needed<C> {
    type Value = Secret;

    fn read(node: &Node, reader: &mut Reader) -> Option<Secret> {
        C::read(node, reader).flatten()
    }

    fn dump(value: &Secret) -> Dump {
        if value.is_missing() { Dump::Null } else { C::dump(&Some(value.clone())) }
    }

    fn shape() -> Shape {
        C::shape()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_shown_as_stars() {
        let secret = Secret::new("hunter2").unwrap();
        assert_eq!(format!("{secret} {secret:?}"), "*** ***");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"***\"");
        assert_eq!(secret.reveal(), "hunter2");
    }

    #[test]
    fn empty_and_unprintable_secrets_are_refused() {
        assert_eq!(Secret::new(""), Err(SecretError::Empty));
        assert_eq!(Secret::new("a\nb"), Err(SecretError::NotPrintable));
    }
}
