//! Every decision of penstock: which backend serves a request, and when.
//!
//! [`clients`] knows the clients by their keys, [`fleet`] holds what is known of the backends,
//! [`prefix`] which of them has which prompt cached, [`routing`] picks one, [`admission`] decides
//! whether and when a request may go there. Time and randomness are arguments; nothing here opens a
//! file or a socket, so that the proxy, `explain`, the simulator and the tests run the same code.

pub mod admission;
pub mod clients;
pub mod fleet;
pub mod prefix;
pub mod routing;

#[cfg(test)]
mod tests;
