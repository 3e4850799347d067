//! The life of the process: its configuration loaded again, its sockets handed over to a new process,
//! its end. Whoever wants something of it (a signal, the admin port) sends a command; one task takes
//! them one at a time.

mod commands;
mod files;
mod listening;
pub(crate) mod orphan;
mod reload;
pub mod server;
mod stop;
pub mod systemd;
mod upgrade;
mod upkeep;

pub use commands::{Commands, Obedience, Orders};
pub use files::raise_limit;
pub use listening::{Ends, Listening, Sockets};
pub use reload::{ApplyLog, BackendsReport, ReloadError, ReloadReport, Reloader};
pub use stop::{LastWords, Stop, StopSignal, outlive_signals};
pub use upgrade::{Inheritance, Socket, Successor, UpgradeError};
pub use upkeep::Upkeep;
