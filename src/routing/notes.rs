//! What a decision reads, written down while it is made. Only for decisions that are captured: they
//! read everything into these notes first and are then made of nothing else.

use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::card::Told;
use super::explain::in_words;
use super::filters::{Fit, RejectReason, Terms, Who, check_in, sits_out};
use super::readings::{adapter, add_latency, count_tokens, fill_in_median, read, told};
use super::strategy::Reading;
use super::{Chance, Live, RouteInput};
use crate::fleet::{Model, ModelId, Serving, Topology};
use crate::scoring::{Ask, Candidate};
use crate::units::Timestamp;

/// Why a backend is left out whose engine has stopped telling how busy it is: shortly, and in words.
pub(super) const SILENT: (&str, &str) =
    ("telemetry", "its engine has not told anything for long, and another's has");

/// Chance for decisions that are acted on and captured.
#[derive(Debug)]
pub struct Noting<'a> {
    topology: &'a Topology,
    seed: u64,
    rng: SmallRng,
    notes: Notes,
}

/// What one decision read.
#[derive(Debug, Default)]
pub struct Notes {
    /// What the generator it drew from was seeded with.
    pub(super) seed: u64,
    /// Whose turn it was, where that was asked for.
    pub(super) turn: Option<u64>,
    /// The candidates it picked from.
    pub(super) candidates: Vec<Noted>,
    /// Every other backend of the models it looked at.
    pub(super) left_out: Vec<LeftOut>,
    /// What the scorers were told of the request.
    pub(super) ask: Option<Ask>,
    /// The total of the one that was picked.
    pub(super) total: Option<f64>,
    /// Whether all rest, so that the one that is due first was asked.
    pub(super) is_first_due: bool,
}

/// What was read of a candidate.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Noted {
    pub(super) backend: Box<str>,
    pub(super) latency_micros: u32,
    pub(super) told: Told,
    pub(super) candidate: Candidate,
}

/// A backend that was none, and why not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) model: ModelId,
    pub(super) backend: Box<str>,
    pub(super) row: u32,
    /// A short name.
    pub(super) excluded: &'static str,
    /// In words.
    pub(super) reason: String,
    /// When it may be asked again.
    pub(super) due: Option<Timestamp>,
}

impl<'a> Noting<'a> {
    /// Chance for one decision, which draws from a generator seeded with `seed`.
    pub fn new(topology: &'a Topology, seed: u64) -> Self {
        let notes = Notes { seed, ..Notes::default() };
        Self { topology, seed, rng: SmallRng::seed_from_u64(seed), notes }
    }

    /// What the decision read.
    pub fn into_notes(self) -> Notes {
        self.notes
    }
}

impl Chance for Noting<'_> {
    fn turn(&mut self, model: ModelId) -> u64 {
        let turn = Live { topology: self.topology, rng: &mut self.rng }.turn(model);
        self.notes.turn = Some(turn);
        turn
    }

    // Every pick draws from the beginning, so that the seed alone says what it drew.
    fn rng(&mut self) -> &mut SmallRng {
        self.rng = SmallRng::seed_from_u64(self.seed);
        &mut self.rng
    }

    fn is_acted_on(&self) -> bool {
        true
    }

    fn notes(&mut self) -> Option<&mut Notes> {
        Some(&mut self.notes)
    }
}

impl Notes {
    /// The candidates of a model by the filters; the others are noted with the reason.
    pub(super) fn sift(
        &mut self,
        (input, model, id): (&RouteInput<'_>, &Model, ModelId),
        terms: Terms,
    ) -> Vec<u32> {
        // A model is sifted again when nobody was found: on easier terms.
        self.left_out.retain(|one| one.model != id);
        let mut fitting = Vec::new();
        for (row, serving) in (0_u32..).zip(&model.serving) {
            let verdict = judge(input, serving, terms);
            match verdict {
                Ok(()) => fitting.push(row),
                Err(reason) => self.leave_out((id, row, serving), reason, input),
            }
        }
        fitting
    }

    fn leave_out(
        &mut self,
        (model, row, serving): (ModelId, u32, &Serving),
        why: Why,
        input: &RouteInput<'_>,
    ) {
        let (excluded, reason, due) = match why {
            Why::Assumed => {
                let reason = "is only assumed to have what others are known to have";
                ("assumed", reason.to_owned(), None)
            }
            Why::Failing => {
                let (name, reason) = SILENT;
                (name, reason.to_owned(), None)
            }
            Why::Rejected(reason) => {
                let due = match reason {
                    RejectReason::Cooldown { until, .. } => Some(until),
                    _ => None,
                };
                (reason.name(), in_words(reason, input), due)
            }
        };
        let backend = serving.state.name.clone();
        self.left_out.push(LeftOut { model, backend, row, excluded, reason, due });
    }

    /// Takes down why nobody could be picked: all rest, and the one that is due first is asked.
    pub(super) fn take_rests(
        &mut self,
        place: (&RouteInput<'_>, &Model, ModelId),
        verdicts: &[(u32, Result<Fit, RejectReason>)],
    ) {
        let (input, model, id) = place;
        self.left_out.retain(|one| one.model != id);
        self.is_first_due = true;
        for (row, verdict) in verdicts {
            if let (Some(serving), Err(reason)) = (model.serving.get(*row as usize), verdict) {
                self.leave_out((id, *row, serving), Why::Rejected(*reason), input);
            }
        }
    }

    /// Reads the candidates of a strategy without scorers.
    pub(super) fn read(
        &mut self,
        place: (&RouteInput<'_>, &Model, ModelId),
        terms: Terms,
    ) -> Vec<Noted> {
        let (input, model, _) = place;
        let rows = self.sift(place, terms);
        let servings =
            rows.iter().filter_map(|row| Some((*row, model.serving.get(*row as usize)?)));
        let mut all: Vec<Noted> = servings
            .map(|(row, serving)| {
                let told = told(serving, input.now);
                let adapter = adapter(serving, &told);
                let mut candidate = Candidate { place: row, adapter, ..Candidate::default() };
                read(serving, &told, &mut candidate);
                count_tokens(serving, &mut candidate);
                add_latency(serving, input.now, &mut candidate);
                Noted::new((serving, input), candidate, Told::of(&told))
            })
            .collect();
        let mut candidates: Vec<Candidate> = all.iter().map(|one| one.candidate).collect();
        fill_in_median(&mut candidates);
        for (one, candidate) in all.iter_mut().zip(candidates) {
            one.candidate = candidate;
        }
        all
    }

    /// Takes down what the scorers read; those `fitting` that are not among it were left out because
    /// their engines are silent.
    pub(super) fn take_scored(
        &mut self,
        (input, model, id): (&RouteInput<'_>, &Model, ModelId),
        fitting: &[u32],
        (candidates, told): (&[Candidate], &[Told]),
    ) {
        self.candidates.clear();
        for row in fitting {
            let Some(serving) = model.serving.get(*row as usize) else { continue };
            let found = candidates.iter().zip(told).find(|(one, _)| one.place == *row);
            match found {
                Some((one, told)) => {
                    self.candidates.push(Noted::new((serving, input), *one, *told));
                }
                None => self.leave_out((id, *row, serving), Why::Failing, input),
            }
        }
    }
}

impl Noted {
    fn new(
        (serving, input): (&Serving, &RouteInput<'_>),
        candidate: Candidate,
        told: Told,
    ) -> Self {
        let latency_micros = (candidate.place, serving).latency_micros(input.request.streaming);
        Self { backend: serving.state.name.clone(), latency_micros, told, candidate }
    }
}

impl Reading for &Noted {
    fn row(&self) -> u32 {
        self.candidate.place
    }

    fn priority(&self) -> u32 {
        self.candidate.priority
    }

    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was a count")]
    fn in_flight(&self) -> u32 {
        self.candidate.in_flight as u32
    }

    fn latency_micros(&self, _streaming: bool) -> u32 {
        self.latency_micros
    }
}

/// Why a backend is no candidate.
enum Why {
    Rejected(RejectReason),
    /// Others are known to have what is needed.
    Assumed,
    /// Its engine is silent.
    Failing,
}

/// The filters' verdict, with the reason that `fitting` has no time for.
fn judge(input: &RouteInput<'_>, serving: &Serving, terms: Terms) -> Result<(), Why> {
    let fit = check_in(input, serving, terms.in_panic).map_err(Why::Rejected)?;
    if terms.who == Who::Known && !fit.is_known {
        return Err(Why::Assumed);
    }
    if !terms.at_once && sits_out(input, serving) {
        return Err(Why::Rejected(RejectReason::slow_start(input, serving)));
    }
    Ok(())
}
