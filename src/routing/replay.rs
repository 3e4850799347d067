//! Decides anew by what a captured decision read: with the functions that decide for the live fleet,
//! so that what they make of it is what they made of it then.

use rand::SeedableRng;
use rand::rngs::SmallRng;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::capture::{Capture, VERSION};
use super::explain::CandidateReport;
use super::filters::{self, Fit, RejectReason};
use super::notes::Noted;
use super::strategy::{self, Reading, Rules};
use super::{Chance, Router, Scratch};
use crate::config::{RoutingConfig, Strategy};
use crate::fleet::ModelId;
use crate::scoring::{Candidate, ParamError, PickerError, ProfileError, Sheet};
use crate::units::Timestamp;

/// Why a file is no captured decisions.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "each variant is described by its message")]
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

/// What is decided by what a decision read.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// Where the request would go.
    pub backend: Option<String>,
    /// The sum of its scores by weight, where scorers decide.
    pub total: Option<f64>,
    /// Every candidate with what is made of it.
    pub candidates: Vec<CandidateReport>,
}

impl Replayed {
    /// Whether it is, to the last bit, what was decided then.
    pub fn is_identical(&self, capture: &Capture) -> bool {
        let bits = |total: f64| total.to_bits();
        self.goes_there(capture) && self.total.map(bits) == capture.total().map(bits)
    }

    /// Whether the request would go where it went.
    pub fn goes_there(&self, capture: &Capture) -> bool {
        self.backend.as_deref() == Some(&capture.decision.backend)
    }
}

impl Capture {
    /// Reads captured decisions: one, several behind each other with commas or without, or what
    /// `/decisions?capture=true` answers.
    ///
    /// # Errors
    /// [`CaptureError`] for the first thing that is wrong.
    pub fn read_all(text: &[u8]) -> Result<Vec<Self>, CaptureError> {
        /// What tells an answer from a decision.
        #[derive(Deserialize)]
        #[serde(expecting = "a captured decision, or an answer with a list of them")]
        struct Outline {
            version: Option<u32>,
            decisions: Option<Vec<Box<RawValue>>>,
        }
        let mut all: Vec<Self> = Vec::new();
        let mut left: Vec<Box<RawValue>> = Vec::new();
        let text = without_outer_commas(text);
        for value in serde_json::Deserializer::from_slice(&text).into_iter::<Box<RawValue>>() {
            let value = value.map_err(CaptureError::NotJson)?;
            let outline: Outline =
                serde_json::from_str(value.get()).map_err(CaptureError::NotJson)?;
            left.extend(outline.decisions.unwrap_or_else(|| vec![value]));
        }
        for (index, value) in (1..).zip(left) {
            let malformed = |error| CaptureError::Malformed { index, error };
            let outline: Outline = serde_json::from_str(value.get()).map_err(malformed)?;
            match outline.version {
                Some(VERSION) => all.push(serde_json::from_str(value.get()).map_err(malformed)?),
                Some(given) => return Err(CaptureError::Version { index, given }),
                None => return Err(CaptureError::NotCaptured { index }),
            }
        }
        if all.is_empty() { Err(CaptureError::Empty) } else { Ok(all) }
    }

    /// The routing it was decided by, as far as the strategy goes.
    ///
    /// # Errors
    /// [`CaptureError`] when there is no such strategy.
    pub fn routing(&self) -> Result<RoutingConfig, CaptureError> {
        self.strategy.to_routing()
    }

    /// The name of the strategy it was decided by.
    pub fn strategy(&self) -> &str {
        &self.strategy.name
    }

    /// The total that decided, where scorers did.
    pub fn total(&self) -> Option<f64> {
        self.decision.total.map(|total| total.0)
    }

    /// Every backend that was no candidate: its name, the model, and why not, shortly and in words.
    pub fn left_out(&self) -> impl Iterator<Item = (&str, &str, &str, &str)> {
        let all = self.left_out.iter();
        all.map(|one| (&*one.backend, &*one.model, &*one.excluded, &*one.reason))
    }

    // When all rest the strategy has no say.
    fn first_due(&self) -> Option<&str> {
        let of_model = || self.left_out.iter().filter(|one| one.model == self.model);
        let verdicts = of_model().map(|one| {
            let reason = match (one.excluded.as_str(), one.cooldown_remaining_ms) {
                ("full", _) => RejectReason::Full { limit: 0 },
                ("cooldown", Some(rest)) => {
                    let until = std::time::Duration::try_from_secs_f64(rest.0 / 1000.0);
                    let until = Timestamp(0).after(until.unwrap_or_default());
                    RejectReason::Cooldown { until, status: 503 }
                }
                _ => RejectReason::Tried,
            };
            (one.row, Err::<Fit, _>(reason))
        });
        let row = filters::first_due(verdicts)?;
        of_model().find(|one| one.row == row).map(|one| one.backend.as_str())
    }
}

/// The text with spaces for the commas between its values, as lines cut out of a list have them:
/// errors still tell where in the file they are.
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

/// Chance as it was.
struct Again {
    turn: u64,
    seed: u64,
    rng: SmallRng,
}

impl Chance for Again {
    fn turn(&mut self, _model: ModelId) -> u64 {
        self.turn
    }

    fn rng(&mut self) -> &mut SmallRng {
        self.rng = SmallRng::seed_from_u64(self.seed);
        &mut self.rng
    }

    fn is_acted_on(&self) -> bool {
        false
    }
}

impl Router {
    /// Decides by what a decision read. `turn` is whose turn it is where the capture does not say.
    pub fn replay(&self, capture: &Capture, turn: u64) -> Replayed {
        let noted = capture.noted();
        let reports = || noted.iter().map(|one| self.report_noted(capture, one)).collect();
        if capture.decision.first_due {
            let backend = capture.first_due().map(str::to_owned);
            return Replayed { backend, total: None, candidates: reports() };
        }
        let seed = capture.seed.0;
        let turn = capture.turn.unwrap_or(turn);
        let mut chance = Again { turn, seed, rng: SmallRng::seed_from_u64(seed) };
        if let Some(weighted) = self.weighted() {
            let candidates: Vec<Candidate> = noted.iter().map(|one| one.candidate).collect();
            let ask = crate::scoring::Ask { turn, ..capture.ask() };
            let mut sheet = Sheet::default();
            let profile = weighted.profile();
            let chosen = profile.pick(&ask, &candidates, (&mut sheet, chance.rng()));
            let mut reports: Vec<CandidateReport> = reports();
            for (index, report) in reports.iter_mut().enumerate() {
                let given = profile.weights().enumerate();
                let score = |number: usize| sheet.scores(number).get(index).copied();
                let scores = given.filter_map(|(number, (name, _))| Some((name, score(number)?)));
                report.scores = Some(scores.collect());
                report.total = sheet.totals().get(index).copied();
            }
            let chosen = chosen.and_then(|chosen| Some((chosen, noted.get(chosen)?)));
            return Replayed {
                backend: chosen.map(|(_, one)| one.backend.to_string()),
                total: chosen.and_then(|(chosen, _)| sheet.totals().get(chosen).copied()),
                candidates: reports,
            };
        }
        let is_streaming = capture.is_streaming();
        let rules = Rules { strategy: self.strategy(), weights: &self.weights, is_streaming };
        let mut scratch = Scratch::default();
        let picked =
            rules.pick(noted.iter(), (noted.len(), &mut scratch), (&mut chance, ModelId(0)));
        let row = picked.map(|picked| picked.row);
        let backend = noted.iter().find(|one| Some(one.row()) == row);
        Replayed {
            backend: backend.map(|one| one.backend.to_string()),
            total: None,
            candidates: reports(),
        }
    }

    fn report_noted(&self, capture: &Capture, noted: &Noted) -> CandidateReport {
        let one = &noted.candidate;
        let points = strategy::points(&noted, capture.is_streaming(), &self.weights);
        let has_blocks = self.weighted().is_some_and(|weighted| weighted.reads_prefixes());
        CandidateReport {
            backend: noted.backend.to_string(),
            model: capture.model.clone(),
            score: (self.strategy() == Strategy::Smart).then(|| f64::from(points) / 100.0),
            scores: None,
            total: None,
            matched_blocks: has_blocks.then_some(one.matched_blocks),
            prompt_blocks: has_blocks.then_some(one.prompt_blocks),
            telemetry_age_ms: self.weighted().and_then(|_| noted.told.age_ms()),
            telemetry: self.weighted().map(|_| noted.told.standing.name()),
            assumed: false,
            priority: one.priority,
            in_flight: noted.in_flight(),
            latency_ms: f64::from(noted.latency_micros) / 1000.0,
            excluded: None,
            reason: None,
        }
    }
}
