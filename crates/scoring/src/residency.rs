//! The state of a model on a backend: whether it is in memory, and the models that loading it would
//! evict.

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

impl Residency {
    /// The residency of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
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
