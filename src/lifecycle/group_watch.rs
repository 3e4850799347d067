//! Looks up the groups of the configuration in force again and again, and reports changed members.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use penstock_config::Config;
use penstock_core::fleet::Groups;
use penstock_core::routing::Generation;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::discovery::look_up_groups;

/// The longest pause while a name is not found.
const MAX_PAUSE: Duration = Duration::from_secs(2);

/// Looks up the groups of a configuration before anything else runs, so that the first backends
/// exist when the process becomes ready. Takes at most `discovery.timeout` per name.
///
/// # Errors
/// If the system refuses a resource that a lookup needs.
pub fn look_up_at_start(config: &Config) -> io::Result<Groups> {
    let groups = Groups::of(config, &Groups::default());
    if groups.is_empty() {
        return Ok(groups);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let found = runtime.block_on(look_up_groups(config, &groups));
    for group in found.iter().filter(|group| group.addresses.is_empty()) {
        tracing::warn!(backend = %group.name, target = %group.target, "no address yet, so no backend");
    }
    // A lookup that timed out may still occupy its thread.
    runtime.shutdown_background();
    Ok(found)
}

#[derive(Default)]
pub(super) struct GroupWatch {
    task: JoinSet<()>,
    changes: Option<mpsc::Receiver<Groups>>,
}

impl GroupWatch {
    /// Watches the groups of this generation from now on, and no others.
    pub(super) fn follow(&mut self, generation: &Arc<Generation>) {
        // Dropping the set aborts the lookups of the previous generation.
        *self = Self::default();
        if generation.fleet.groups().is_empty() {
            return;
        }
        let (sender, changes) = mpsc::channel(1);
        self.task.spawn(look_up_again(Arc::clone(generation), sender));
        self.changes = Some(changes);
    }

    /// Returns the groups once their members differ from those of the watched generation.
    pub(super) async fn changed(&mut self) -> Groups {
        let changed = match &mut self.changes {
            Some(changes) => changes.recv().await,
            None => None,
        };
        match changed {
            Some(groups) => groups,
            None => std::future::pending().await,
        }
    }
}

async fn look_up_again(generation: Arc<Generation>, changes: mpsc::Sender<Groups>) {
    let (config, mut groups) = (&generation.config, generation.fleet.groups().clone());
    let interval = config.discovery.dns_interval;
    loop {
        let is_failing = groups.iter().any(|group| group.lookups.is_failing());
        tokio::time::sleep(if is_failing { interval.min(MAX_PAUSE) } else { interval }).await;
        let found = look_up_groups(config, &groups).await;
        if !found.has_same_members(&groups) {
            if changes.send(found).await.is_err() {
                tracing::debug!("the groups of this configuration are not watched any more");
            }
            // Another task watches the groups of the next generation.
            return;
        }
        groups = found;
    }
}
