//! Reads captured decisions from files.

use penstock_scoring::{ParamError, PickerError, ProfileError};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::{Capture, VERSION};

/// An error in a file of captured decisions.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    #[error("it is not JSON: {0}")]
    NotJson(serde_json::Error),
    #[error("it holds no decision")]
    Empty,
    #[error(
        "decision {index} was not captured, only listed: ask the admin port for \
         /decisions?capture=true, and again once there was traffic"
    )]
    NotCaptured { index: usize },
    #[error("decision {index} has version {given}; this penstock knows version {VERSION}")]
    Version { index: usize, given: u32 },
    #[error("decision {index}: {error}")]
    Malformed { index: usize, error: serde_json::Error },
    #[error("there is no strategy '{given}'")]
    Strategy { given: String },
    #[error("the three weights of smart must sum up to 100")]
    Weights,
    #[error("the scorers cannot be used: {0}")]
    Scorers(#[from] ProfileError),
    #[error("the picker cannot be used: {0}")]
    Picker(#[from] PickerError),
    #[error("prefix-affinity cannot be used: {error}")]
    Prefix { error: ParamError },
}

impl Capture {
    /// Reads captured decisions: one, several in a row with or without commas, or the response of
    /// `/decisions?capture=true`.
    ///
    /// # Errors
    /// [`CaptureError`] for the first invalid part.
    pub fn read_all(text: &[u8]) -> Result<Vec<Self>, CaptureError> {
        /// The fields that distinguish a response from a single decision.
        #[derive(Deserialize)]
        #[serde(expecting = "a captured decision, or a response with a list of them")]
        struct Envelope {
            version: Option<u32>,
            decisions: Option<Vec<Box<RawValue>>>,
        }
        let mut all: Vec<Self> = Vec::new();
        let mut left: Vec<Box<RawValue>> = Vec::new();
        let text = without_outer_commas(text);
        for value in serde_json::Deserializer::from_slice(&text).into_iter::<Box<RawValue>>() {
            let value = value.map_err(CaptureError::NotJson)?;
            let envelope: Envelope =
                serde_json::from_str(value.get()).map_err(CaptureError::NotJson)?;
            left.extend(envelope.decisions.unwrap_or_else(|| vec![value]));
        }
        for (index, value) in (1..).zip(left) {
            let malformed = |error| CaptureError::Malformed { index, error };
            let envelope: Envelope = serde_json::from_str(value.get()).map_err(malformed)?;
            match envelope.version {
                Some(VERSION) => all.push(serde_json::from_str(value.get()).map_err(malformed)?),
                Some(given) => return Err(CaptureError::Version { index, given }),
                None => return Err(CaptureError::NotCaptured { index }),
            }
        }
        if all.is_empty() { Err(CaptureError::Empty) } else { Ok(all) }
    }
}

/// Replaces the commas between top-level values by spaces: lines cut from a list end in commas, and
/// spaces keep the positions in error messages right.
fn without_outer_commas(text: &[u8]) -> Vec<u8> {
    let (mut depth, mut is_quoted, mut is_escaped) = (0_usize, false, false);
    let blank = |byte: &u8| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' => is_escaped = is_quoted,
            b'"' => is_quoted = !is_quoted,
            _ if is_quoted => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => return b' ',
            _ => {}
        }
        *byte
    };
    text.iter().map(blank).collect()
}
