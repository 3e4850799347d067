//! Engines in virtual time: what an engine would have done, computed instead of measured. Time and randomness
//! come in as arguments, time is a whole number of picoseconds, and nothing here reads a clock or a file, so
//! that two runs give the same numbers.

pub mod engine;
pub mod fit;
mod minimize;
pub mod run;
#[cfg(test)]
mod tests;
