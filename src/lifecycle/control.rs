//! Commands to the process, from signals and from the admin port. The control loop executes them
//! one at a time, so that a reload and an upgrade never overlap.

use std::sync::Arc;
use std::time::Duration;

use penstock_clock::{now, unix_seconds};
use penstock_core::admission::rate_limits::LimitTime;
use penstock_core::fleet::Groups;
use tokio::net::UnixStream;
use tokio::signal::unix::SignalKind;
use tokio::sync::{mpsc, oneshot};

use super::group_watch::GroupWatch;
use super::listener_service::Sockets;
use super::process_state::{ProcessState, send_line};
use super::reload::{ReloadError, ReloadReport, Reloader};
use super::shutdown::{Shutdown, next, watch_signal};
use super::upgrade::{Successor, UpgradeError};
use crate::lifecycle::systemd::{Notifier, SystemdState};
use crate::proxy::{LaterIds, Proxy};

/// The largest number of waiting commands; more are refused.
const MAX_WAITING: usize = 16;

enum ControlCommand {
    Reload(Option<Duration>, oneshot::Sender<Result<ReloadReport, ReloadError>>),
    Upgrade(oneshot::Sender<Result<u32, UpgradeError>>),
}

/// Sends commands to the control loop.
#[derive(Clone)]
pub struct CommandSender(mpsc::Sender<ControlCommand>);

pub struct CommandReceiver(mpsc::Receiver<ControlCommand>);

impl CommandSender {
    /// Creates a sender and its receiver.
    pub fn channel() -> (Self, CommandReceiver) {
        let (sender, receiver) = mpsc::channel(MAX_WAITING);
        (Self(sender), CommandReceiver(receiver))
    }

    /// Reloads the configuration. With `simulate`, first simulates the traffic of that time.
    ///
    /// # Errors
    /// [`ReloadError`] if the configuration in force stays unchanged.
    pub async fn reload(&self, simulate: Option<Duration>) -> Result<ReloadReport, ReloadError> {
        let (sender, result) = oneshot::channel();
        self.0
            .try_send(ControlCommand::Reload(simulate, sender))
            .map_err(|_full| ReloadError::Busy)?;
        // Only a process that exits drops a command without a reply.
        result.await.unwrap_or(Err(ReloadError::Stopping))
    }

    /// Starts a graceful upgrade; returns the id of the new process once it serves.
    ///
    /// # Errors
    /// [`UpgradeError`] if this process continues to serve.
    pub async fn upgrade(&self) -> Result<u32, UpgradeError> {
        let (sender, result) = oneshot::channel();
        self.0.try_send(ControlCommand::Upgrade(sender)).map_err(|_full| UpgradeError::Busy)?;
        result.await.unwrap_or(Err(UpgradeError::Stopping))
    }
}

pub struct ControlLoop {
    pub receiver: CommandReceiver,
    pub reloader: Reloader,
    /// Starts the new process of an upgrade; `None` in processes that cannot be upgraded.
    pub successor: Option<Successor>,
    /// The listening sockets to pass on.
    pub sockets: Arc<Sockets>,
    /// Shuts this process down after an upgrade.
    pub stop: Arc<Shutdown>,
    pub notifier: Arc<Notifier>,
}

impl ControlLoop {
    /// Executes commands until the last sender is dropped.
    pub async fn run(mut self) {
        let mut hangup = watch_signal(SignalKind::hangup());
        let mut groups = GroupWatch::default();
        let mut watched = None;
        loop {
            let generation = self.reloader.proxy.generation();
            // A reload may change the groups, so each generation gets a new watch.
            if watched.as_ref().is_none_or(|watched| !Arc::ptr_eq(watched, &generation)) {
                groups.follow(&generation);
                watched = Some(Arc::clone(&generation));
            }
            tokio::select! {
                command = self.receiver.0.recv() => match command {
                    None => return,
                    Some(command) => self.execute(command).await,
                },
                found = groups.changed() => {
                    self.replace_members(found).await;
                    // The watch ended with its report; without this line, refused members would
                    // stop it for good.
                    watched = None;
                }
                // A signal has no reply channel; the outcome is logged.
                () = next(&mut hangup) => drop(self.reload(None).await),
            }
        }
    }

    async fn execute(&self, command: ControlCommand) {
        let is_delivered = match command {
            ControlCommand::Reload(simulate, result) => {
                result.send(self.reload(simulate).await).is_ok()
            }
            ControlCommand::Upgrade(result) => result.send(self.upgrade().await).is_ok(),
        };
        tracing::debug!(is_delivered, "command completed");
    }

    async fn replace_members(&self, groups: Groups) {
        if !self.reloader.proxy.is_stopping()
            && let Err(error) = self.reloader.replace_members(groups).await
        {
            tracing::error!(%error, "the new addresses are not used");
        }
    }

    async fn reload(&self, simulate: Option<Duration>) -> Result<ReloadReport, ReloadError> {
        if self.reloader.proxy.is_stopping() {
            return Err(ReloadError::Stopping);
        }
        self.notifier.notify(&[SystemdState::Reloading]);
        let reloaded = self.reloader.reload(simulate).await;
        // systemd waits for READY=1 after RELOADING=1, also if the reload failed (sd_notify(3)).
        self.notifier.notify(&[SystemdState::Ready]);
        reloaded
    }

    async fn upgrade(&self) -> Result<u32, UpgradeError> {
        if self.reloader.proxy.is_stopping() {
            return Err(UpgradeError::Stopping);
        }
        let successor = self.successor.as_ref().ok_or(UpgradeError::NotServing)?;
        tracing::info!(program = %successor.program.display(), "graceful upgrade: starting the new process");
        let mut later = None;
        // Taken once the new process is ready: requests that end while it starts still count.
        let process_state = || {
            let (stored, ids) = self.reloader.proxy.pass_ids_on();
            later = Some(ids);
            let generation = self.reloader.proxy.generation();
            let fleet = &generation.fleet;
            let moment = LimitTime { at: now(), unix: unix_seconds() };
            ProcessState {
                drains: fleet.manual_drains(),
                predictions: fleet.learned_predictions(),
                limits: self.reloader.proxy.used_limits(moment),
                stored,
                homes: self.reloader.proxy.pass_homes_on(),
            }
        };
        let taken = successor.take_over(&self.sockets.all(), process_state).await;
        match taken {
            Ok((pid, channel)) => {
                tracing::info!(pid, "graceful upgrade: the new process serves");
                if let Some(later) = later {
                    tokio::spawn(pass_on(Arc::clone(&self.reloader.proxy), later, channel));
                }
                // Sent before this process stops: systemd ends a service together with its main
                // process.
                self.notifier.notify(&[SystemdState::MainPid(pid)]);
                self.stop.mark_upgraded();
                self.sockets.release();
                Ok(pid)
            }
            Err(error) => {
                tracing::error!(%error, "graceful upgrade failed; this process continues to serve");
                Err(error)
            }
        }
    }
}

/// Passes on the stored responses that this process learns of while it ends.
async fn pass_on(proxy: Arc<Proxy>, mut later: LaterIds, mut channel: UnixStream) {
    while let Some(ids) = later.next(&proxy).await {
        if let Err(error) = send_line(&mut channel, &ids).await {
            tracing::debug!(%error, "the new process does not read on");
            return;
        }
    }
}
