//! Engines, clients and balancers in virtual time: computes how a fleet would have behaved, instead
//! of measuring it. The router, the fleet and the prefix index are those of the proxy; engines are
//! simulated. Time and randomness are arguments, time is an integer, and nothing here reads a clock
//! or a file, so two runs give the same bytes.

pub mod capacity;
pub mod compare;
pub mod engine;
pub mod experiment;
pub mod fit;
mod minimize;
pub mod random;
pub mod regret;
pub mod replay;
pub mod run;
mod stationarity;
pub mod statistics;
pub mod summary;
#[cfg(test)]
mod tests;
pub mod workload;
pub mod world;
