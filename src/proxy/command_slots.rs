//! The limit of commands and uploads of Ollama clients (`ollama.commands`): each reaches every
//! Ollama backend.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use penstock_api::ErrorCode;

use super::failure::OwnError;

/// The commands and uploads in flight.
#[derive(Default)]
pub(crate) struct CommandSlots {
    in_flight: Arc<AtomicUsize>,
}

impl CommandSlots {
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Takes a permit for one of at most `limit`.
    ///
    /// # Errors
    /// When all are taken.
    pub(crate) fn begin(&self, limit: usize) -> Result<CommandPermit, OwnError> {
        // In one step: two commands at the same time must not both take the last slot.
        let taken = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |count| {
            (count < limit).then_some(count + 1)
        });
        match taken {
            Ok(_) => Ok(CommandPermit(Arc::clone(&self.in_flight))),
            Err(_) => {
                let message = "Too many commands at one time (ollama.commands)";
                Err(OwnError::new(ErrorCode::TooManyCommands, message).closing())
            }
        }
    }
}

/// A permit, which counts until it is dropped.
pub(crate) struct CommandPermit(Arc<AtomicUsize>);

impl Drop for CommandPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
