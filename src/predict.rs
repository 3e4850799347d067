//! The engine model: when will a backend give the first token of a request, and how fast the next ones?
//!
//! It does not learn times to the first token from requests that have ended: in an overload these labels come after
//! the queue. It learns how long the engine's *steps* take ([`Coefficients`]), keeps which prompts were sent to
//! it ([`Prompts`]), how old its streams are ([`Streams`]) and how long outputs get ([`Lengths`]), and computes the wait
//! from them ([`predict`]). What is left is a factor that [`Residual`] follows.
//!
//! [`BackendPredictor`] is all of it for one model on one backend; [`Predictor`] is what decisions and attempts share
//! of it, and [`PredictionTicket`] a request there.
//!
//! All times are in microseconds, lengths in tokens. Nothing here reads a clock.

mod backend;
mod batch_ratios;
mod batch_share;
mod bursts;
mod coefficients;
mod front_end;
mod later;
mod learned;
mod lengths;
mod limit_learner;
mod pace;
mod prediction;
mod prefill;
mod prompts;
mod published;
#[cfg(test)]
mod replay_tests;
mod residual;
mod rows;
mod share;
mod shared;
mod stall;
mod streams;
mod ticket;
mod wait_curve;

pub use backend::{BackendPredictor, Reported};
pub use batch_ratios::BatchRatios;
pub use coefficients::{Coefficients, GapSample, StepLearner};
pub use later::LONGEST_WAIT;
pub use learned::Learned;
pub use lengths::Lengths;
pub use prediction::{EngineLimits, EngineView, Prediction, Sent, predict};
pub use prefill::{PrefillLearner, PrefillSample};
pub use prompts::{Prompts, Work};
pub use residual::{Factors, Regime, Residual};
pub use rows::{EngineRow, RowError, engine_rows};
pub use share::EngineShare;
pub use shared::{Estimate, PredictionTicket, Predictor, PredictorReport};
pub use stall::Silence;
pub use streams::Streams;
pub use ticket::Ticket;
pub use wait_curve::WaitCurve;
