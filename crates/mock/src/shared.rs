//! The state of a mock engine that its connections share.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::task::JoinSet;

use super::library::Library;
use super::memory::Memory;
use super::records::Records;
use super::script::Script;
use super::spec::EngineSpec;

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) spec: EngineSpec,
    pub(super) script: Script,
    pub(super) records: Records,
    pub(super) memory: Option<Memory>,
    pub(super) library: Option<Library>,
    pub(super) connections: Mutex<Connections>,
}

#[derive(Debug, Default)]
pub(super) struct Connections {
    pub(super) open: JoinSet<()>,
    // The accept task may still run on another thread while the engine is dropped.
    pub(super) is_over: bool,
}

impl Shared {
    pub(super) fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
