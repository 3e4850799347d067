//! The syntax of a configuration file: YAML with positions, the format of single values, the
//! declaration of an option, and the possible errors. Knows nothing of any section.

pub(super) mod checked_text;
pub(super) mod collections;
pub(super) mod document;
pub(super) mod dump;
pub(super) mod encoding;
pub(super) mod environment;
pub(super) mod errors;
mod foreign_secret;
pub(super) mod glob;
pub(super) mod key_hash;
pub(super) mod other_format;
pub(super) mod reader;
pub(super) mod secret;
pub(super) mod setting;
pub(super) mod shape;
pub(super) mod source_place;
pub(super) mod suggest;
mod syntax_cause;
pub(super) mod unix_time;
pub(super) mod url;
pub(super) mod values;
pub(super) mod variables;
pub(super) mod warnings;
