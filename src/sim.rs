//! Engines, clients and balancers in virtual time: what a fleet would have done, computed instead of measured.
//! The router, the fleet and the prefix index are those of the proxy; engines are simulated. Time and randomness
//! come in as arguments, time is a whole number, and nothing here reads a clock or a file, so that two runs give
//! the same bytes.

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
