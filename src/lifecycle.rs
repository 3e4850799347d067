//! The lifecycle of the process: composition root, configuration reload, graceful upgrade, graceful
//! shutdown and systemd notifications. Signals and the admin port send commands; the control loop
//! executes them one at a time.
//!
//! Order of a shutdown (`shutdown`, then `supervisor`):
//! 1. SIGTERM or SIGINT: readiness fails, `server.shutdown_delay` passes while requests are
//!    accepted;
//! 2. Pingora closes the listeners of the data port; the admin port stays open to observe the
//!    drain;
//! 3. the supervisor waits until no request is in flight, at most `server.drain_timeout`;
//! 4. shutdown hooks flush the access log and the spans, and the process exits. A second signal
//!    skips the wait, never the hooks.

mod control;
pub(crate) mod detached_launcher;
mod file_limit;
mod group_watch;
mod listener_service;
mod process_state;
mod reload;
mod reload_gate;
mod shutdown;
mod strategy_log;
mod supervisor;
pub mod systemd;
mod thread_limit;
mod upgrade;

pub use control::{CommandReceiver, CommandSender, ControlLoop};
pub use file_limit::raise_limit;
pub use group_watch::look_up_at_start;
pub use listener_service::{ListenerService, Sockets, StopAccepting};
pub use process_state::ProcessState;
pub(crate) use reload::SHADOW_HOST;
pub use reload::{ApplyLog, BackendsReport, ReloadError, ReloadReport, Reloader};
pub use reload_gate::GateError;
pub use shutdown::{Shutdown, ShutdownHook, ShutdownTrigger, install_signal_handlers};
pub use strategy_log::StrategyLog;
pub use supervisor::Supervisor;
pub use thread_limit::check_threads;
pub use upgrade::{InheritedSockets, Socket, Successor, UpgradeError};
