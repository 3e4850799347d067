//! The declaration of settings: `section!` turns one annotated struct into the type, its defaults,
//! its reader, its dump, its environment variables and its JSON Schema, so that an option is
//! declared once. `choice!` does the same for closed sets of names.

use super::document::{Content, Node};
use super::dump::Dump;
use super::errors::Problem;
use super::reader::Reader;
use super::shape::{Field, SectionShape, Shape};
use super::suggest::nearest;

/// Reads, dumps and describes one kind of value. Named by a type: usually the value's own, else a
/// codec such as `OneOrMore<SocketAddr>`.
pub(crate) trait Setting {
    type Value;

    /// Reads `node`; `None` after an error was recorded.
    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value>;

    /// Sets `slot` from `node`; sections change only the keys that are present.
    fn update(slot: &mut Self::Value, node: &Node, reader: &mut Reader) {
        if let Some(value) = Self::read(node, reader) {
            *slot = value;
        }
    }

    /// The value as YAML.
    fn dump(value: &Self::Value) -> Dump;

    /// The allowed values; any text unless the codec says otherwise.
    fn shape() -> Shape {
        Shape::text()
    }
}

/// A mapping with a fixed set of keys.
pub(crate) trait Section: Default + 'static {
    const ABOUT: &'static str;
    const REQUIRED: &'static [&'static str];
    /// The rows of each field: one for most fields, several for a field with several spellings, or
    /// none.
    const KEYS: &'static [&'static [Key<Self>]];

    fn keys() -> impl Iterator<Item = &'static Key<Self>> {
        Self::KEYS.iter().copied().flatten()
    }
}

/// One key of a section.
pub(crate) struct Key<S> {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) update: fn(&mut S, &Node, &mut Reader),
    pub(crate) dump: fn(&S) -> Dump,
    pub(crate) shape: fn() -> Shape,
}

/// Declares a section. A field is `name: Type = default`. A list of codecs (`["key" as Codec, …]`)
/// declares another spelling; the list is empty for fields that are not keys.
macro_rules! section {
    (
        $(#[doc = $about:literal])+
        pub struct $name:ident $(requires $required:tt)? {
            $(
                $(#[doc = $doc:literal])+
                pub $field:ident: $type:ty $([$($key:literal as $codec:ty),*])? = $default:expr,
            )+
        }
    ) => {
        $(#[doc = $about])+
        #[derive(Debug, Clone, PartialEq)]
        pub struct $name { $( $(#[doc = $doc])+ pub $field: $type, )+ }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)+ }
            }
        }

        impl $crate::syntax::setting::Section for $name {
            const ABOUT: &'static str = concat!($($about, "\n"),+);
            const REQUIRED: &'static [&'static str] =
                $crate::syntax::setting::section!(@required $($required)?);
            const KEYS: &'static [&'static [$crate::syntax::setting::Key<Self>]] = &[$(
                $crate::syntax::setting::section!(
                    @keys $field, $type, concat!($($doc, "\n"),+) $(, [$($key as $codec),*])?
                ),
            )+];
        }
    };
    (@required) => { &[] };
    (@required $required:tt) => { &$required };
    (@keys $field:ident, $type:ty, $doc:expr) => {
        &[$crate::syntax::setting::section!(@key stringify!($field), $field, $type, $doc)]
    };
    (@keys $field:ident, $type:ty, $doc:expr, [$($key:literal as $codec:ty),*]) => {
        &[$($crate::syntax::setting::section!(@key $key, $field, $codec, $doc)),*]
    };
    (@key $key:expr, $field:ident, $codec:ty, $doc:expr) => {
        $crate::syntax::setting::Key {
            name: $key,
            about: $doc,
            update: |section: &mut Self, node, reader| {
                <$codec as $crate::syntax::setting::Setting>::update(
                    &mut section.$field, node, reader,
                );
            },
            dump: |section: &Self| {
                <$codec as $crate::syntax::setting::Setting>::dump(&section.$field)
            },
            shape: <$codec as $crate::syntax::setting::Setting>::shape,
        }
    };
}
pub(crate) use section;

/// Makes an enum of [`choice!`](penstock_api::choice) an option's value.
macro_rules! choice_setting {
    ($name:ident) => {
        impl $crate::syntax::setting::Setting for $name {
            type Value = Self;

            fn read(
                node: &$crate::syntax::document::Node,
                reader: &mut $crate::syntax::reader::Reader,
            ) -> Option<Self> {
                let text = reader.scalar(node, "a name")?;
                Self::from_name(text).or_else(|| reader.refuse_name(node, text, Self::names()))
            }

            fn dump(value: &Self) -> $crate::syntax::dump::Dump {
                $crate::syntax::dump::Dump::text(value.name())
            }

            fn shape() -> $crate::syntax::shape::Shape {
                $crate::syntax::shape::Shape::names(Self::names())
            }
        }
    };
}
pub(crate) use choice_setting;

impl<S: Section> Setting for S {
    type Value = S;

    fn read(node: &Node, reader: &mut Reader) -> Option<S> {
        let mut section = S::default();
        S::update(&mut section, node, reader);
        Some(section)
    }

    fn update(section: &mut S, node: &Node, reader: &mut Reader) {
        let Content::Map(entries) = &node.content else {
            let _refused: Option<S> = reader.refuse_kind(node, "a mapping");
            return;
        };
        for entry in entries {
            if !S::keys().any(|key| key.name == entry.key) {
                let suggestion = nearest(&entry.key, S::keys().map(|key| key.name));
                let problem = Problem::UnknownKey {
                    key: entry.key.clone(),
                    section: reader.path(),
                    suggestions: suggestion.map(str::to_owned).into_iter().collect(),
                };
                reader.fault(&entry.place, problem);
            }
        }
        // At the place of the section, since the key itself has none.
        for name in S::REQUIRED.iter().filter(|name| node.entry(name).is_none()) {
            let problem = Problem::MissingKey { key: (*name).to_owned(), section: reader.path() };
            reader.fault(&node.place, problem);
        }
        // In the order of the table, so that errors have a stable order.
        for key in S::keys() {
            if let Some(entry) = node.entry(key.name) {
                reader.within(format!(".{}", key.name), |reader| {
                    (key.update)(section, &entry.node, reader);
                });
            }
        }
    }

    fn dump(section: &S) -> Dump {
        Dump::Map(S::keys().map(|key| (key.name.to_owned(), (key.dump)(section))).collect())
    }

    fn shape() -> Shape {
        let defaults = S::default();
        let field = |key: &'static Key<S>| Field {
            name: key.name,
            about: key.about.trim(),
            default: (key.dump)(&defaults),
            shape: (key.shape)(),
        };
        Shape::Section(SectionShape {
            about: S::ABOUT.trim(),
            required: S::REQUIRED,
            is_optional: false,
            fields: S::keys().map(field).collect(),
        })
    }
}
