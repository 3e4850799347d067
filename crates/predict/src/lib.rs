//! The engine model: predicts when the first token of a request comes on a backend, and how fast
//! the further ones.
//!
//! It does not learn from the times to the first token of requests that have ended: in an overload
//! these labels come after the queue. Instead it learns how long the *steps* of the engine take
//! ([`Coefficients`]). It tracks the prompts that were sent (`Prompts`), the ages of streams
//! (`Streams`) and the lengths of outputs (`OutputLengths`), and computes the wait from them
//! (`predict`). `Residual` corrects the remaining error by a factor. The equations are in
//! `docs/routing/predictor.md`.
//!
//! [`BackendPredictor`] combines all of this for one model on one backend. [`Predictor`] shares it
//! between decisions and attempts, and [`PredictionTicket`] follows one request.
//!
//! All times are in microseconds, lengths in tokens. Nothing here reads a clock.
//!
#![doc = include_str!("../README.md")]
#![deny(missing_docs)]

mod backend;
mod batch_ratios;
mod batch_share;
mod bursts;
mod coefficients;
mod engine_load;
mod front_end;
mod kv_sharing;
mod learned_state;
mod limit_learner;
mod lookahead;
mod output_lengths;
mod pace;
mod pauses;
mod prediction;
mod predictor;
mod prefill;
mod prompts;
mod published_view;
#[cfg(test)]
mod replay_tests;
mod residual;
mod rows;
mod stall;
mod step_size;
#[cfg(test)]
mod stop_go_tests;
mod streams;
mod ticket;
mod tokenizer;
mod wait_curve;

pub use backend::{BackendPredictor, ReportedLimits};
pub use batch_ratios::BatchRatios;
pub use coefficients::Coefficients;
pub use engine_load::EngineLoad;
pub use learned_state::LearnedState;
pub use lookahead::MAX_LOOKAHEAD;
pub use prediction::{EngineLimits, MeanAndP90, Prediction, RequestShape};
pub use predictor::{Estimate, PredictionTicket, Predictor, PredictorReport};
pub use prompts::PromptWork;
pub use residual::Regime;
pub use rows::{EngineRow, RowError, engine_rows};
pub use ticket::Ticket;
pub use wait_curve::WaitCurve;
