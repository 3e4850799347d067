//! A candidate in a capture: its readings by their keys.

use std::fmt;

use penstock_scoring::{Candidate, READINGS};
use serde::de::{Error, MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

/// The readings of a candidate: `backend`, `row`, and a key per known reading of [`READINGS`].
#[derive(Debug, Clone, PartialEq)]
pub(in crate::routing::audit) struct CandidateRecord {
    pub(in crate::routing::audit) backend: String,
    pub(in crate::routing::audit) readings: Candidate,
}

impl Serialize for CandidateRecord {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut fields = out.serialize_map(None)?;
        fields.serialize_entry("backend", &self.backend)?;
        fields.serialize_entry("row", &self.readings.row)?;
        for reading in READINGS {
            if let Some(value) = (reading.get)(&self.readings) {
                fields.serialize_entry(reading.key, &value)?;
            }
        }
        fields.end()
    }
}

impl<'de> Deserialize<'de> for CandidateRecord {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_map(CandidateVisitor)
    }
}

struct CandidateVisitor;

impl<'de> Visitor<'de> for CandidateVisitor {
    type Value = CandidateRecord;

    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object with the readings of a backend")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<CandidateRecord, A::Error> {
        let (mut backend, mut readings) = (None, Candidate::default());
        while let Some(key) = fields.next_key::<String>()? {
            match key.as_str() {
                "backend" => backend = Some(fields.next_value::<String>()?),
                "row" => readings.row = fields.next_value()?,
                _ => {
                    let reading = READINGS.iter().find(|reading| reading.key == key);
                    let value: Value = fields.next_value()?;
                    // Of a newer penstock: its scorers read what a replay here would leave out.
                    let Some(reading) = reading else {
                        return Err(A::Error::custom(format!("unknown reading '{key}'")));
                    };
                    if !(reading.set)(&mut readings, &value) {
                        return Err(A::Error::custom(format!("'{key}' cannot be {value}")));
                    }
                }
            }
        }
        let backend = backend.ok_or_else(|| A::Error::missing_field("backend"))?;
        // It follows from the name, so it is not stored.
        readings.key = Candidate::key_of(&backend);
        Ok(CandidateRecord { backend, readings })
    }
}
