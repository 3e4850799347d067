//! The ticket of a request: what it emits teaches the predictor, and dropping it ends it there.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Predictor;
use crate::prediction::Prediction;
use crate::ticket::Ticket;

/// The number of tokens of a stream after which its age is learned, if it does not lead.
const WINDOW_TOKENS: u32 = 16;
/// The number of steps without a token of the leading stream after which another one leads.
const LOST_STEPS: f64 = 3.0;

/// A request at a backend, from its prediction to its end, however it ends.
#[derive(Debug)]
pub struct PredictionTicket {
    predictor: Arc<Predictor>,
    ticket: Ticket,
    id: u64,
    /// The number of tokens that came, and of those that were learned.
    emitted_tokens: u32,
    learned_tokens: u32,
    /// The last time at which it was seen.
    last_seen_us: f64,
    has_ended: bool,
}

impl PredictionTicket {
    pub(super) fn new(predictor: &Arc<Predictor>, ticket: Ticket) -> Self {
        let emitted_tokens = ticket.emitted_tokens();
        Self {
            predictor: Arc::clone(predictor),
            ticket,
            id: predictor.last_id.fetch_add(1, Ordering::Relaxed) + 1,
            emitted_tokens,
            learned_tokens: emitted_tokens,
            last_seen_us: ticket.sent_at_us,
            has_ended: false,
        }
    }

    /// Returns the prediction by which it was sent.
    pub fn prediction(&self) -> &Prediction {
        &self.ticket.prediction
    }

    /// Records `count` tokens that come at `now_us`, the first of them or further ones.
    pub fn tokens(&mut self, count: u32, now_us: f64) {
        if self.ticket.request.is_whole || count == 0 {
            return;
        }
        self.last_seen_us = now_us;
        if self.emitted_tokens == 0 {
            let (ticket, wait_curve) = (&mut self.ticket, &self.predictor.wait_curve);
            self.predictor.learn(|backend| {
                backend.first_token(ticket, now_us);
                backend.progress(ticket, count, now_us);
                backend.update_curve(wait_curve, now_us);
            });
            (self.emitted_tokens, self.learned_tokens) = (count, count);
            return;
        }
        self.emitted_tokens = self.emitted_tokens.saturating_add(count);
        // Relaxed: the leader is a hint; the lock in `learn` orders all that is learned.
        let leader = self.predictor.leader.load(Ordering::Relaxed);
        if leader == self.id {
            return self.lead(count, now_us);
        }
        if self.emitted_tokens - self.learned_tokens >= WINDOW_TOKENS {
            self.learned_tokens = self.emitted_tokens;
            let (ticket, emitted_tokens) = (&mut self.ticket, self.emitted_tokens);
            let (step_us, ended_at_us) = self.predictor.learn(|backend| {
                backend.progress(ticket, emitted_tokens, now_us);
                backend.step_state()
            });
            self.take_over(step_us, ended_at_us, now_us);
        } else if leader == 0 {
            self.take_over(0.0, f64::NEG_INFINITY, now_us);
        }
    }

    /// Records the end of a step: the stream that leads has emitted.
    fn lead(&mut self, count: u32, now_us: f64) {
        let (ticket, emitted_tokens) = (&mut self.ticket, self.emitted_tokens);
        self.learned_tokens = emitted_tokens;
        self.predictor.learn(|backend| {
            backend.progress(ticket, emitted_tokens, now_us);
            backend.step_ended(now_us, count.into());
        });
    }

    /// Leads from now on, if no other stream does.
    fn take_over(&mut self, step_us: f64, ended_at_us: f64, now_us: f64) {
        if now_us > ended_at_us + LOST_STEPS * step_us {
            self.predictor.leader.store(self.id, Ordering::Relaxed);
        }
    }

    /// Records that it has emitted `emitted_tokens` tokens, for a caller that does not see each of
    /// them: the simulator.
    pub fn observe(&mut self, emitted_tokens: u32, now_us: f64) {
        let ticket = &mut self.ticket;
        self.last_seen_us = now_us;
        self.emitted_tokens = self.emitted_tokens.max(emitted_tokens);
        self.predictor.learn(|backend| backend.progress(ticket, emitted_tokens, now_us));
    }

    /// Ends a complete response at `now_us`. `output_tokens` is its number of tokens, where the
    /// engine reports it.
    pub fn complete(&mut self, output_tokens: Option<u32>, now_us: f64) {
        self.last_seen_us = now_us;
        self.end(output_tokens, true, now_us);
    }

    /// Ends a request whose client has left at `now_us`.
    pub fn cut(&mut self, now_us: f64) {
        self.end(None, false, now_us);
    }

    /// Ends the request. Tokens that were not learned yet came when it was seen last.
    fn end(&mut self, output_tokens: Option<u32>, is_complete: bool, now_us: f64) {
        if std::mem::replace(&mut self.has_ended, true) {
            return;
        }
        let (ticket, emitted_tokens, seen_at_us) =
            (&mut self.ticket, self.emitted_tokens, self.last_seen_us);
        let wait_curve = &self.predictor.wait_curve;
        self.predictor.learn(|backend| {
            backend.progress(ticket, emitted_tokens, seen_at_us);
            backend.ended(ticket, output_tokens, is_complete, now_us);
            backend.update_curve(wait_curve, now_us);
        });
        let (leader, none) = (&self.predictor.leader, 0);
        // Another stream may lead by now, and it goes on leading.
        let _other = leader.compare_exchange(self.id, none, Ordering::Relaxed, Ordering::Relaxed);
    }
}

impl Drop for PredictionTicket {
    fn drop(&mut self) {
        self.end(None, false, self.last_seen_us);
    }
}
