//! The life of the process: its configuration loaded again, its sockets handed over to a new process,
//! its end. Whoever wants something of it (a signal, the admin port) sends a command; one task takes
//! them one at a time.

mod control;
pub(crate) mod detached_launcher;
mod file_limit;
mod listener_service;
mod reload;
pub mod server;
mod shutdown;
mod supervisor;
pub mod systemd;
mod upgrade;

pub use control::{CommandReceiver, CommandSender, ControlLoop};
pub use file_limit::raise_limit;
pub use listener_service::{ListenerService, Sockets, StopAccepting};
pub use reload::{ApplyLog, BackendsReport, ReloadError, ReloadReport, Reloader};
pub use shutdown::{Shutdown, ShutdownHook, ShutdownTrigger, install_signal_handlers};
pub use supervisor::Supervisor;
pub use upgrade::{InheritedSockets, Socket, Successor, UpgradeError};
