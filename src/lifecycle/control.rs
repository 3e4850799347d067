//! What the process can be asked to do, by a signal or by the admin port; done one after the other.

use std::sync::Arc;

use tokio::signal::unix::SignalKind;
use tokio::sync::{mpsc, oneshot};

use super::listener_service::Sockets;
use super::reload::{ReloadError, ReloadReport, Reloader};
use super::shutdown::{Shutdown, next, watch_signal};
use super::upgrade::{Successor, UpgradeError};
use crate::lifecycle::systemd::{Notifier, State};

/// How many commands may wait; more are refused.
const QUEUE: usize = 16;

/// One thing to do, and whom to tell what came of it.
enum Command {
    Reload(oneshot::Sender<Result<ReloadReport, ReloadError>>),
    Upgrade(oneshot::Sender<Result<u32, UpgradeError>>),
}

/// Gives commands.
#[derive(Clone)]
pub struct CommandSender(mpsc::Sender<Command>);

/// Where commands arrive.
pub struct CommandReceiver(mpsc::Receiver<Command>);

impl CommandSender {
    /// One to give commands with, and where they arrive.
    pub fn channel() -> (Self, CommandReceiver) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        (Self(sender), CommandReceiver(receiver))
    }

    /// Loads the configuration again.
    ///
    /// # Errors
    /// Why the configuration in force stays as it is.
    pub async fn reload(&self) -> Result<ReloadReport, ReloadError> {
        let (sender, answer) = oneshot::channel();
        self.0.try_send(Command::Reload(sender)).map_err(|_full| ReloadError::Busy)?;
        answer.await.unwrap_or(Err(ReloadError::Stopping))
    }

    /// Lets a new process take over; returns its id once it serves.
    ///
    /// # Errors
    /// Why this one goes on.
    pub async fn upgrade(&self) -> Result<u32, UpgradeError> {
        let (sender, answer) = oneshot::channel();
        self.0.try_send(Command::Upgrade(sender)).map_err(|_full| UpgradeError::Busy)?;
        answer.await.unwrap_or(Err(UpgradeError::Stopping))
    }
}

/// What obeys commands.
pub struct ControlLoop {
    /// What arrives.
    pub receiver: CommandReceiver,
    /// What reloads.
    pub reloader: Reloader,
    /// How a process is started that takes over.
    pub successor: Option<Successor>,
    /// What it takes over.
    pub sockets: Arc<Sockets>,
    /// What begins the end of this one.
    pub stop: Arc<Shutdown>,
    /// Whom to tell.
    pub notifier: Arc<Notifier>,
}

impl ControlLoop {
    /// Does what is asked for, for as long as the process lives.
    pub async fn run(mut self) {
        let mut hangup = watch_signal(SignalKind::hangup());
        loop {
            tokio::select! {
                command = self.receiver.0.recv() => match command {
                    None => return,
                    Some(command) => self.execute(command).await,
                },
                // What came of it stands in the log: there is nobody else to tell.
                () = next(&mut hangup) => drop(self.reload().await),
            }
        }
    }

    async fn execute(&self, command: Command) {
        let is_heard = match command {
            Command::Reload(answer) => answer.send(self.reload().await).is_ok(),
            Command::Upgrade(answer) => answer.send(self.upgrade().await).is_ok(),
        };
        tracing::debug!(is_heard, "a command is done");
    }

    async fn reload(&self) -> Result<ReloadReport, ReloadError> {
        if self.reloader.proxy.is_stopping() {
            return Err(ReloadError::Stopping);
        }
        self.notifier.tell(&[State::Reloading]);
        let reloaded = self.reloader.reload().await;
        self.notifier.tell(&[State::Ready]);
        reloaded
    }

    async fn upgrade(&self) -> Result<u32, UpgradeError> {
        if self.reloader.proxy.is_stopping() {
            return Err(UpgradeError::Stopping);
        }
        let successor = self.successor.as_ref().ok_or(UpgradeError::NotServing)?;
        tracing::info!(program = %successor.program.display(), "a new process takes over");
        let taken = successor.take_over(&self.sockets.all()).await;
        match &taken {
            Ok(pid) => {
                tracing::info!(pid, "a new process has taken over");
                self.notifier.tell(&[State::MainPid(*pid)]);
                self.stop.upgrade();
                self.sockets.release();
            }
            Err(error) => {
                tracing::error!(%error, "no new process has taken over: this one goes on")
            }
        }
        taken
    }
}
