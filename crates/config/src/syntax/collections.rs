//! Lists, tables, optional values and values that a word turns off.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use super::document::{Content, Node};
use super::dump::Dump;
use super::reader::Reader;
use super::setting::Setting;
use super::shape::{SectionShape, Shape};
use crate::model_table::ModelTable;

pub(crate) struct List<C>(PhantomData<C>);

impl<C: Setting> Setting for List<C> {
    type Value = Vec<C::Value>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        let Content::List(items) = &node.content else {
            return reader.refuse_kind(node, "a list");
        };
        // Reads all items, so that one pass reports every error.
        let mut values = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            values.push(reader.within(format!("[{index}]"), |reader| C::read(item, reader)));
        }
        values.into_iter().collect()
    }

    fn dump(value: &Self::Value) -> Dump {
        Dump::List(value.iter().map(C::dump).collect())
    }

    fn shape() -> Shape {
        Shape::List(Box::new(C::shape()))
    }
}

/// A non-empty list; also a string with items separated by commas.
pub(crate) struct OneOrMore<C>(PhantomData<C>);

impl<C: Setting> Setting for OneOrMore<C> {
    type Value = Vec<C::Value>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        let values = match &node.content {
            Content::Scalar(text) => {
                let item = |text: &str| Node {
                    place: node.place.clone(),
                    content: Content::Scalar(text.trim().to_owned()),
                };
                // Environment variables have no lists.
                text.split(',').map(|text| C::read(&item(text), reader)).collect()
            }
            Content::Null | Content::List(_) | Content::Map(_) => List::<C>::read(node, reader),
        }?;
        if values.is_empty() {
            return reader.refuse_value(node, "[]", "at least one item");
        }
        Some(values)
    }

    fn dump(value: &Self::Value) -> Dump {
        List::<C>::dump(value)
    }

    fn shape() -> Shape {
        Shape::Either(vec![List::<C>::shape(), Shape::text()])
    }
}

/// A mapping whose keys the user chooses.
pub(crate) struct Table<C>(PhantomData<C>);

impl<C: Setting> Setting for Table<C> {
    type Value = BTreeMap<String, C::Value>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        let Content::Map(entries) = &node.content else {
            return reader.refuse_kind(node, "a mapping");
        };
        let mut table = BTreeMap::new();
        for entry in entries {
            let step = format!(".{}", entry.key);
            // The entry of an error is left out: the configuration is refused anyway.
            if let Some(value) = reader.within(step, |reader| C::read(&entry.node, reader)) {
                table.insert(entry.key.clone(), value);
            }
        }
        Some(table)
    }

    fn dump(value: &Self::Value) -> Dump {
        Dump::Map(value.iter().map(|(key, value)| (key.clone(), C::dump(value))).collect())
    }

    fn shape() -> Shape {
        Shape::Table(Box::new(C::shape()))
    }
}

/// A mapping whose keys are names of models.
pub(crate) struct ByModel<C>(PhantomData<C>);

impl<C: Setting> Setting for ByModel<C> {
    type Value = ModelTable<C::Value>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        Table::<C>::read(node, reader).map(|table| table.into_iter().collect())
    }

    fn dump(value: &Self::Value) -> Dump {
        Dump::Map(value.iter().map(|(key, value)| (key.clone(), C::dump(value))).collect())
    }

    fn shape() -> Shape {
        Table::<C>::shape()
    }
}

pub(crate) struct Maybe<C>(PhantomData<C>);

impl<C: Setting> Setting for Maybe<C> {
    type Value = Option<C::Value>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        C::read(node, reader).map(Some)
    }

    fn dump(value: &Self::Value) -> Dump {
        value.as_ref().map_or(Dump::Null, C::dump)
    }

    fn shape() -> Shape {
        match C::shape() {
            Shape::Section(section) => {
                // The schema must not show the defaults of a section that is off without it.
                Shape::Section(SectionShape { is_optional: true, ..section })
            }
            shape => shape,
        }
    }
}

/// A word that turns a setting off.
pub(crate) trait Word {
    const WORD: &'static str;
}

/// `off`
pub(crate) struct Off;

impl Word for Off {
    const WORD: &'static str = "off";
}

/// `none`
pub(crate) struct Never;

impl Word for Never {
    const WORD: &'static str = "none";
}

/// A value, or a word that turns it off.
pub(crate) struct Or<W, C>(PhantomData<(W, C)>);

impl<W: Word, C: Setting> Setting for Or<W, C> {
    type Value = Option<C::Value>;

    fn read(node: &Node, reader: &mut Reader) -> Option<Self::Value> {
        match &node.content {
            Content::Scalar(text) if text.trim().eq_ignore_ascii_case(W::WORD) => Some(None),
            _ => C::read(node, reader).map(Some),
        }
    }

    fn dump(value: &Self::Value) -> Dump {
        value.as_ref().map_or_else(|| Dump::text(W::WORD), C::dump)
    }

    fn shape() -> Shape {
        C::shape().or_word(W::WORD)
    }
}
