//! The types of readings: states of an adapter, of telemetry and of a model on a backend, and the
//! JSON of each in captures and in lines of `penstock score`, with its schema.

use penstock_api::units::Micros;
use serde_json::Value;

/// The state of a request's adapter on a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Adapter {
    /// The request needs none, or the engine does not report its adapters.
    #[default]
    Unknown,
    /// It is loaded and in use.
    Active,
    /// There is a free slot to load it into.
    FreeSlot,
    /// Requests for it wait until it is loaded.
    Waiting,
    /// All slots are taken by other adapters.
    Absent,
}

pub(super) const ADAPTERS: &[(Adapter, &str)] = &[
    (Adapter::Active, "active"),
    (Adapter::FreeSlot, "free_slot"),
    (Adapter::Waiting, "waiting"),
    (Adapter::Absent, "absent"),
];

penstock_api::named! {
    /// The reliability of a backend's telemetry.
    #[derive(Default)]
    pub enum Standing {
        /// Never scraped; not the same as idle.
        #[default]
        Unknown = "unknown",
        /// The last sample is at most three intervals old.
        Fresh = "fresh",
        /// The last sample is older: only our own counts are used.
        Stale = "stale",
        /// The last sample is older than that and than two seconds, and the last scrape failed:
        /// not a candidate while another backend's telemetry is fresh.
        Failing = "failing",
    }
}

penstock_api::named! {
    /// The state of a model in a backend's memory.
    #[derive(Default)]
    pub enum Residency {
        /// Not reported yet, or not recently.
        #[default]
        Unknown = "unknown",
        /// On disk: a request loads it first.
        Loadable = "loadable",
        /// Put to sleep: a request wakes it, which is faster than loading.
        Sleeping = "sleeping",
        Resident = "resident",
    }
}

penstock_api::named! {
    /// The models that loading a model on a backend would evict.
    #[derive(Default)]
    pub enum Eviction {
        /// No other model: it is in memory already, it only sleeps, or there is room for it.
        #[default]
        Nothing = "nothing",
        /// At most models without a request of ours.
        Idle = "idle",
        /// Maybe a model that is in use.
        InUse = "in_use",
    }
}

/// A finite reading, with negative ones raised to 0; `None` for other numbers.
pub fn known_reading(given: f64) -> Option<f64> {
    given.is_finite().then(|| given.max(0.0))
}

/// The type of a reading, in JSON. `null` is unknown wherever a reading may be unknown.
pub(super) trait ReadingValue: Sized {
    const SCHEMA: &'static str;
    fn to_json(&self) -> Option<Value>;
    fn from_json(given: &Value) -> Option<Self>;
}

impl ReadingValue for Option<f64> {
    const SCHEMA: &'static str = "\"$ref\": \"#/$defs/reading\"";

    fn to_json(&self) -> Option<Value> {
        // JSON has neither infinity nor NaN.
        self.filter(|number| number.is_finite()).map(Value::from)
    }

    fn from_json(given: &Value) -> Option<Self> {
        if given.is_null() {
            return Some(None);
        }
        given.as_f64().map(known_reading)
    }
}

impl ReadingValue for f64 {
    const SCHEMA: &'static str = <Option<Self> as ReadingValue>::SCHEMA;

    // These readings are counts: whole numbers are written without a fraction.
    fn to_json(&self) -> Option<Value> {
        if self.fract() == 0.0 && *self >= 0.0 && *self < u32::MAX.into() {
            return Some(Value::from(to_whole(*self)));
        }
        Some(*self).to_json()
    }

    fn from_json(given: &Value) -> Option<Self> {
        Option::<Self>::from_json(given).map(|number| number.unwrap_or(Self::NAN))
    }
}

impl ReadingValue for u32 {
    const SCHEMA: &'static str =
        "\"type\": [\"integer\", \"null\"], \"minimum\": 0, \"maximum\": 4294967295";

    fn to_json(&self) -> Option<Value> {
        Some(Value::from(*self))
    }

    fn from_json(given: &Value) -> Option<Self> {
        if given.is_null() {
            return Some(0);
        }
        given.as_u64().and_then(|number| Self::try_from(number).ok())
    }
}

impl ReadingValue for Option<Micros> {
    const SCHEMA: &'static str = <Option<f64> as ReadingValue>::SCHEMA;

    fn to_json(&self) -> Option<Value> {
        self.map(|age| Value::from(age.0 as f64 / 1000.0))
    }

    fn from_json(given: &Value) -> Option<Self> {
        let millis = Option::<f64>::from_json(given)?;
        Some(millis.map(|millis| Micros(to_whole((millis * 1000.0).round()))))
    }
}

impl ReadingValue for Micros {
    const SCHEMA: &'static str = <Option<f64> as ReadingValue>::SCHEMA;

    fn to_json(&self) -> Option<Value> {
        Some(*self).to_json()
    }

    fn from_json(given: &Value) -> Option<Self> {
        Option::<Self>::from_json(given).map(Option::unwrap_or_default)
    }
}

impl ReadingValue for Adapter {
    const SCHEMA: &'static str =
        "\"enum\": [\"active\", \"free_slot\", \"waiting\", \"absent\", null]";

    fn to_json(&self) -> Option<Value> {
        ADAPTERS.iter().find(|(adapter, _)| adapter == self).map(|(_, name)| Value::from(*name))
    }

    fn from_json(given: &Value) -> Option<Self> {
        if given.is_null() {
            return Some(Self::Unknown);
        }
        let found = ADAPTERS.iter().find(|(_, name)| given.as_str() == Some(*name));
        found.map(|(adapter, _)| *adapter)
    }
}

impl ReadingValue for Standing {
    const SCHEMA: &'static str = "\"enum\": [\"unknown\", \"fresh\", \"stale\", \"failing\"]";

    fn to_json(&self) -> Option<Value> {
        Some(Value::from(self.name()))
    }

    fn from_json(given: &Value) -> Option<Self> {
        Self::ALL.into_iter().find(|one| given.as_str() == Some(one.name()))
    }
}

impl ReadingValue for Residency {
    const SCHEMA: &'static str =
        "\"enum\": [\"unknown\", \"loadable\", \"sleeping\", \"resident\", null]";

    fn to_json(&self) -> Option<Value> {
        (*self != Self::Unknown).then(|| Value::from(self.name()))
    }

    fn from_json(given: &Value) -> Option<Self> {
        if given.is_null() {
            return Some(Self::Unknown);
        }
        Self::ALL.into_iter().find(|one| given.as_str() == Some(one.name()))
    }
}

impl ReadingValue for Eviction {
    const SCHEMA: &'static str = "\"enum\": [\"nothing\", \"idle\", \"in_use\", null]";

    fn to_json(&self) -> Option<Value> {
        (*self != Self::Nothing).then(|| Value::from(self.name()))
    }

    fn from_json(given: &Value) -> Option<Self> {
        if given.is_null() {
            return Some(Self::Nothing);
        }
        Self::ALL.into_iter().find(|one| given.as_str() == Some(one.name()))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rounded count, >= 0"
)]
fn to_whole(number: f64) -> u64 {
    number as u64
}
