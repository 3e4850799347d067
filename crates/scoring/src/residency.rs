//! Where a model stands on a backend: whether it is in memory, and what loading it would push out.

/// Whether a backend holds a model in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Residency {
    /// Not reported yet, or not for long.
    #[default]
    Unknown,
    /// On disk: a request has it loaded first.
    Loadable,
    /// Put to sleep: a request wakes it, which is faster than loading.
    Sleeping,
    /// In memory.
    Resident,
}

impl Residency {
    /// Every residency.
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

/// What loading a model on a backend would push out of its memory.
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
    /// Every kind.
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
