//! The state of a model on a backend: whether it is in memory, and the models that loading it would
//! evict.

/// The state of a model in a backend's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residency {
    /// Not reported yet, or not recently.
    #[default]
    Unknown,
    /// On disk: a request loads it first.
    Loadable,
    /// Put to sleep: a request wakes it, which is faster than loading.
    Sleeping,
    Resident,
}

impl Residency {
    pub const ALL: [Self; 4] = [Self::Unknown, Self::Loadable, Self::Sleeping, Self::Resident];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Loadable => "loadable",
            Self::Sleeping => "sleeping",
            Self::Resident => "resident",
        }
    }

    /// The residency of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// The models that loading a model on a backend would evict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Eviction {
    /// No other model: it is in memory already, it only sleeps, or there is room for it.
    #[default]
    Nothing,
    /// At most models without a request of ours.
    Idle,
    /// Maybe a model that is in use.
    InUse,
}

impl Eviction {
    pub const ALL: [Self; 3] = [Self::Nothing, Self::Idle, Self::InUse];

    /// Its name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Idle => "idle",
            Self::InUse => "in_use",
        }
    }
}
