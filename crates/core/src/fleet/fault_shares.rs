//! The test that decides if a backend fails more than others of its models; its evidence keeps
//! requests away.
//!
//! **The question.** A 500 speaks against the backend or against the prompt. Bad prompts fail on
//! every backend of their model alike, but a bad backend fails alone. So the share of faults on one
//! backend is compared with the share on the others, for requests of the same sender and model. A
//! share that is the same everywhere speaks against the prompts.
//!
//! A 4xx is the client's mistake, and no fault. But an engine that lacks an option refuses each
//! request with one, at once: it would look idle and draw nearly all requests. So a refusal is
//! judged apart, by its run alone and with half of the weight: a client may well send three bad
//! requests in a row.
//!
//! **The test.** The evidence is a log likelihood ratio: how much less probable the responses are
//! under the others' share than under the backend's own. It is computed in two ways. The faults in
//! a row since the last good response reveal a broken backend within three or four faults.
//! All responses of the last `breaker.window` or so reveal a backend that fails now and then. The
//! others' share is that of the best of them, because a second broken backend must not hide the
//! first.
//!
//! **The consequence.** The backend is paused like a breaker (`breaker.open`, doubled up to
//! `max_open`), and then one request at a time probes. A good response to a request sent after the
//! pause began releases it. It is also released as soon as the evidence no longer holds: a good
//! response was still on its way, or the others turned out to fail as often. Up to a third of the
//! backends of a model can be paused on [`FEW_PAUSED`], more need [`MANY_PAUSED`], and the last one
//! is never paused. A false alarm then adds at most half more work to each of the others.

use std::time::Duration;

use penstock_api::units::Timestamp;
use penstock_config::BreakerConfig;

use super::circuit_breaker::pause;

/// The weight of faults in a row below which a run is no evidence: three faults.
const MIN_RUN: u32 = 3 * FAULT;
/// The weight of a fault in a run.
const FAULT: u32 = 2;
/// The weight of a refusal in a run.
const REFUSAL: u32 = 1;
/// The evidence that pauses a backend among the first third of a model's: one false alarm in 7000.
// The evidence is a natural logarithm: exp(8.9) is about 7,300.
const FEW_PAUSED: f64 = 8.9;
/// The evidence that pauses a further backend: one false alarm in 150,000.
const MANY_PAUSED: f64 = 11.9;
/// The fraction of [`FEW_PAUSED`] below which a pause ends early.
// Hysteresis: a share near the threshold would otherwise pause and release a backend in turn.
const RELEASE: f64 = 0.6;
/// The prior before the first response: one fault in twenty responses, with the weight of two.
const ASSUMED_FAULTS: f64 = 0.1;
const ASSUMED_RESPONSES: f64 = 2.0;
/// The bounds of the others' assumed share of faults.
// At 0 or 1 a logarithm in the evidence would be infinite.
const MIN_SHARE: f64 = 0.01;
const MAX_SHARE: f64 = 0.95;

/// The information in a response, or in its absence.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sign {
    /// The serial number of the backend.
    pub(super) backend: u64,
    /// True if it failed; otherwise it was good.
    pub(super) is_fault: bool,
    /// True if it failed with a 4xx.
    pub(super) is_refusal: bool,
    /// A hash of the sender.
    pub(super) client: u64,
    /// The time at which the request was sent.
    pub(super) started: Timestamp,
    /// The end of the response.
    pub(super) at: Timestamp,
}

/// The conditions under which the test is applied.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    pub(super) config: &'a BreakerConfig,
    /// The backends that could serve the model now; read only for a fault.
    pub(super) backends: &'a [u64],
    /// The number of clients that must have met the faults.
    pub(super) clients: u32,
    /// True if refusals are judged, false for faults.
    pub(super) are_refusals: bool,
}

/// The changes caused by a sign.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct PauseChanges {
    /// The duration of the backend's pause, if it is paused.
    pub(super) paused: Option<Duration>,
    /// The backends that are released.
    pub(super) released: Vec<u64>,
}

impl PauseChanges {
    pub(super) fn is_empty(&self) -> bool {
        self.paused.is_none() && self.released.is_empty()
    }
}

/// The pause of a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pause {
    pub(super) since: Timestamp,
    pub(super) until: Timestamp,
}

/// Responses of one backend.
#[derive(Debug)]
struct BackendCounts {
    backend: u64,
    /// The counts of the window, weighted by age.
    good: f64,
    faults: f64,
    counted_at: Timestamp,
    /// The weight of the faults since the last good response to a request sent no earlier than the
    /// first that failed.
    run: u32,
    /// The start of the first request in the run.
    run_began: Timestamp,
    /// One bit for each client that met a fault, by hash: of the run, and of the window.
    run_clients: u64,
    clients: u64,
    pause: Option<Pause>,
    last_pause_end: Timestamp,
    times_paused: u32,
}

/// The responses of all backends of a model to the requests of one client, or of all clients.
#[derive(Debug, Default)]
pub(super) struct FaultShares(Vec<BackendCounts>);

impl FaultShares {
    /// Counts a sign and applies the test.
    pub(super) fn learn(&mut self, sign: &Sign, terms: Terms<'_>) -> PauseChanges {
        let window = terms.config.window;
        let index = self.index_of(sign, window);
        let Some(row) = self.0.get_mut(index) else { return PauseChanges::default() };
        row.count(sign, window);
        let mut changes = PauseChanges::default();
        if sign.is_fault {
            self.judge(index, sign, terms, &mut changes);
            self.release_others(sign, terms, &mut changes);
        } else if let Some(pause) = row.pause
            && (sign.started >= pause.since || row.has_no_evidence(terms))
        {
            row.release();
            changes.released.push(sign.backend);
        }
        changes
    }

    /// Judges a backend after a fault.
    fn judge(&mut self, index: usize, sign: &Sign, terms: Terms<'_>, changes: &mut PauseChanges) {
        let others = self.share_of_others(sign.backend, sign.at, terms);
        let needed = self.needed(sign, terms);
        let Some(row) = self.0.get_mut(index) else { return };
        let evidence = row.evidence(others, sign.at, terms);
        let is_due = match row.pause {
            // Requests that were in flight when the pause began fail one after another.
            Some(pause) if sign.at < pause.until || sign.started < pause.since => return,
            Some(_) if evidence < FEW_PAUSED * RELEASE => {
                row.release();
                changes.released.push(sign.backend);
                return;
            }
            Some(_) => true,
            None => needed.is_some_and(|needed| evidence >= needed),
        };
        changes.paused = is_due.then(|| row.pause(sign.at, terms.config));
    }

    /// Ends the pauses that the evidence no longer supports after a fault of another backend.
    fn release_others(&mut self, sign: &Sign, terms: Terms<'_>, changes: &mut PauseChanges) {
        let others = |row: &&BackendCounts| row.pause.is_some() && row.backend != sign.backend;
        let paused: Vec<u64> = self.0.iter().filter(others).map(|row| row.backend).collect();
        for backend in paused {
            let others = self.share_of_others(backend, sign.at, terms);
            let row = self.0.iter_mut().find(|row| row.backend == backend);
            let Some(row) = row else { continue };
            if row.evidence(others, sign.at, terms) < FEW_PAUSED * RELEASE {
                row.release();
                changes.released.push(backend);
            }
        }
    }

    /// The evidence needed to pause one more backend; `None` for the last one.
    fn needed(&self, sign: &Sign, terms: Terms<'_>) -> Option<f64> {
        let is_paused = |row: &&BackendCounts| {
            row.backend != sign.backend && row.is_paused(sign.at, terms.config.window)
        };
        let paused = self.0.iter().filter(is_paused).count();
        let all = terms.backends.len();
        match paused + 1 {
            more if more >= all => None,
            // One of two backends is more than a third, and the first pause is allowed there, too.
            more if more == 1 || more * 3 <= all => Some(FEW_PAUSED),
            _ => Some(MANY_PAUSED),
        }
    }

    /// The share of faults on the best other backend. One without responses is assumed to work:
    /// prompts that fail everywhere would have failed there, too.
    fn share_of_others(&self, backend: u64, now: Timestamp, terms: Terms<'_>) -> f64 {
        let others = terms.backends.iter().filter(|other| **other != backend);
        let shares = others.map(|other| {
            let row = self.0.iter().find(|row| row.backend == *other);
            row.map_or(assumed_share(0.0, 0.0), |row| row.share(now, terms.config.window))
        });
        shares.fold(1.0, f64::min)
    }

    /// The lowest share of faults on any backend that `counts` accepts. It is attributed to the
    /// sender's prompts. `None` if fewer than `least` backends count.
    pub(super) fn share_of_prompts(
        &self,
        now: Timestamp,
        window: Duration,
        least: usize,
        counts: impl Fn(u64) -> bool,
    ) -> Option<f64> {
        let rows = || self.0.iter().filter(|row| counts(row.backend));
        let shares = rows().map(|row| row.share(now, window));
        (rows().count() >= least).then(|| shares.fold(1.0, f64::min))
    }

    pub(super) fn pauses(&self) -> impl Iterator<Item = (u64, Pause)> {
        self.0.iter().filter_map(|row| Some((row.backend, row.pause?)))
    }

    /// Returns the index of a backend's row. A new row evicts those that have neither responses
    /// within the window nor a pause.
    fn index_of(&mut self, sign: &Sign, window: Duration) -> usize {
        let known = self.0.iter().position(|row| row.backend == sign.backend);
        known.unwrap_or_else(|| {
            self.0.retain(|row| {
                sign.at.since(row.counted_at) <= window || row.is_paused(sign.at, window)
            });
            self.0.push(BackendCounts::new(sign));
            self.0.len() - 1
        })
    }
}

impl BackendCounts {
    fn new(sign: &Sign) -> Self {
        Self {
            backend: sign.backend,
            good: 0.0,
            faults: 0.0,
            counted_at: sign.at,
            run: 0,
            run_began: sign.started,
            run_clients: 0,
            clients: 0,
            pause: None,
            last_pause_end: Timestamp::default(),
            times_paused: 0,
        }
    }

    /// The remaining weight of its counts, a fraction.
    fn left(&self, now: Timestamp, window: Duration) -> f64 {
        (-now.since(self.counted_at).as_secs_f64() / window.as_secs_f64().max(1e-6)).exp()
    }

    /// The share of its responses that are faults.
    fn share(&self, now: Timestamp, window: Duration) -> f64 {
        let left = self.left(now, window);
        assumed_share(self.good * left, self.faults * left)
    }

    fn count(&mut self, sign: &Sign, window: Duration) {
        let left = self.left(sign.at, window);
        (self.good, self.faults) = (self.good * left, self.faults * left);
        self.counted_at = self.counted_at.max(sign.at);
        if !sign.is_fault {
            self.good += 1.0;
            // A request sent before the first that failed proves nothing about the time since.
            if sign.started >= self.run_began {
                self.run = 0;
            }
            return;
        }
        let bit = 1 << (sign.client % 64);
        if self.run == 0 {
            (self.run_began, self.run_clients) = (sign.started, 0);
        }
        // The faults of the window have decayed, and with them the clients that met them.
        if self.faults < 0.5 {
            self.clients = 0;
        }
        self.run = self.run.saturating_add(if sign.is_refusal { REFUSAL } else { FAULT });
        self.run_clients |= bit;
        self.clients |= bit;
        self.faults += 1.0;
    }

    /// The strength of the evidence against the backend, given the share of faults of the others.
    fn evidence(&self, others: f64, now: Timestamp, terms: Terms<'_>) -> f64 {
        let others = others.clamp(MIN_SHARE, MAX_SHARE);
        let is_seen = |clients: u64| clients.count_ones() >= terms.clients;
        let of_run = match self.run >= MIN_RUN && is_seen(self.run_clients) {
            true => f64::from(self.run) / f64::from(FAULT) * -others.ln(),
            false => 0.0,
        };
        let left = self.left(now, terms.config.window);
        let count = (self.good + self.faults) * left;
        let share = self.faults / (self.good + self.faults).max(1.0);
        let is_enough = count.round() >= f64::from(terms.config.min_responses);
        let is_much =
            is_enough && !terms.are_refusals && share - others >= terms.config.error_share;
        let of_share =
            if is_much && is_seen(self.clients) { count * gain(share, others) } else { 0.0 };
        of_run.max(of_share)
    }

    /// Returns whether no evidence is left against the backend, however good the others are.
    fn has_no_evidence(&self, terms: Terms<'_>) -> bool {
        self.evidence(MIN_SHARE, self.counted_at, terms) < FEW_PAUSED * RELEASE
    }

    fn is_paused(&self, now: Timestamp, window: Duration) -> bool {
        // A pause that no request probed for a whole window is forgotten.
        self.pause.is_some_and(|pause| pause.until.after(window) > now)
    }

    fn pause(&mut self, now: Timestamp, config: &BreakerConfig) -> Duration {
        // A backend that worked for a whole window starts with the short pause again.
        if now.since(self.last_pause_end) > config.window {
            self.times_paused = 0;
        }
        let time = pause(config, self.times_paused);
        self.last_pause_end = now.after(time);
        self.times_paused = self.times_paused.saturating_add(1);
        self.pause = Some(Pause { since: now, until: now.after(time) });
        time
    }

    /// Ends the pause. Halves the counts, because otherwise the next fault would start another
    /// pause.
    fn release(&mut self) {
        self.pause = None;
        self.run = 0;
        (self.good, self.faults) = (self.good / 2.0, self.faults / 2.0);
    }
}

/// The share of faults including the prior.
fn assumed_share(good: f64, faults: f64) -> f64 {
    (faults + ASSUMED_FAULTS) / (good + faults + ASSUMED_RESPONSES)
}

/// The evidence per response, given the backend's `share` of faults and the share `other`: the
/// Kullback-Leibler divergence.
fn gain(share: f64, other: f64) -> f64 {
    let part = |own: f64, other: f64| if own > 0.0 { own * (own / other).ln() } else { 0.0 };
    part(share, other) + part(1.0 - share, 1.0 - other)
}

#[cfg(test)]
mod tests;
