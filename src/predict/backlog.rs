//! The prefill work that was sent to a backend and is not done.

/// The time in which a share of prefill work falls to 1/e: 10 s.
const DECAY: f64 = 10e6;

/// A clock that says when a backend will have computed every prompt that was sent to it, if nothing else arrives: the
/// recursion of Lindley, set right whenever a first token shows how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Backlog {
    /// When all of it is done.
    until: f64,
    /// Requests without a first token.
    waiting: f64,
    /// Their work.
    work: f64,
    /// Their uncached tokens.
    tokens: f64,
    /// Prefill work of the last seconds, decayed, and when it last changed.
    recent: f64,
    changed: f64,
}

/// The share of the time that prefills took, where their decayed work was `recent` at `changed`.
pub(super) fn share_at(recent: f64, changed: f64, now: f64) -> f64 {
    (recent * (-(now - changed).max(0.0) / DECAY).exp() / DECAY).min(0.95)
}

impl Backlog {
    /// A request was sent at `now` whose `tokens` uncached tokens take `work`.
    pub fn sent(&mut self, now: f64, tokens: f64, work: f64) {
        self.until = self.until.max(now) + work;
        self.waiting += 1.0;
        self.work += work;
        self.tokens += tokens;
        self.recent = self.recent_at(now) + work;
        self.changed = now;
    }

    /// Its first token came at `now`: everything that was sent before is done.
    pub fn first_token(&mut self, now: f64, tokens: f64, work: f64) {
        self.take(tokens, work);
        self.until = now + self.work;
    }

    /// It ended without a first token: cancelled, refused, or sent elsewhere.
    pub fn left(&mut self, now: f64, tokens: f64, work: f64) {
        self.take(tokens, work);
        self.until = (self.until - work).clamp(now, (now + self.work).max(now));
    }

    fn take(&mut self, tokens: f64, work: f64) {
        self.waiting = (self.waiting - 1.0).max(0.0);
        self.work = if self.waiting > 0.0 { (self.work - work).max(0.0) } else { 0.0 };
        self.tokens = if self.waiting > 0.0 { (self.tokens - tokens).max(0.0) } else { 0.0 };
    }

    /// A request was sent at `now` whose first token will not be seen, because its response comes in one piece.
    pub fn sent_whole(&mut self, now: f64, work: f64) {
        self.until = self.until.max(now) + work;
        self.recent = self.recent_at(now) + work;
        self.changed = now;
    }

    /// When all of it is done; in the past where nothing is left.
    pub fn until(&self) -> f64 {
        self.until
    }

    /// How long the work that is left takes at `now`.
    #[inline]
    pub fn left_at(&self, now: f64) -> f64 {
        (self.until - now).max(0.0)
    }

    /// Requests without a first token.
    pub fn waiting(&self) -> f64 {
        self.waiting
    }

    /// The uncached tokens of a waiting request, on average.
    pub fn mean_tokens(&self) -> f64 {
        if self.waiting > 0.0 { self.tokens / self.waiting } else { 0.0 }
    }

    /// The share of the time that prefills took lately.
    pub fn prefill_share(&self, now: f64) -> f64 {
        share_at(self.recent, self.changed, now)
    }

    /// The prefill work of the last seconds, decayed, and when it was added up.
    pub fn recent(&self) -> (f64, f64) {
        (self.recent, self.changed)
    }

    fn recent_at(&self, now: f64) -> f64 {
        self.recent * (-(now - self.changed).max(0.0) / DECAY).exp()
    }
}
