//! Learning from first tokens, steps and whole responses.

use super::BackendPredictor;
use crate::bursts::{FirstToken, SAME};
use crate::coefficients::GapSample;
use crate::front_end::FirstWait;
use crate::limit_learner::Wait;
use crate::prediction::Prediction;
use crate::prompts::{Prompt, StepEnd};
use crate::share::UNSEEN;
use crate::ticket::Ticket;

impl BackendPredictor {
    /// Learns from a first token how long the front end takes, if prompts ahead do not make it
    /// longer.
    pub(super) fn learn_front_end(&mut self, prompt: &Prompt, now: f64) {
        let wait = FirstWait {
            took: now - prompt.sent_at,
            own: prompt.work,
            ahead: prompt.ahead,
            step: self.step(),
            streams: self.all_streams() + 1.0,
            most_streams: self.most_streams,
        };
        if let Some(found) = self.front_end.learn(&wait) {
            self.prefill.set_front_end(found);
        }
    }

    /// Learns from a first token how long its prompt took, with the prompts that came together with
    /// it.
    pub(super) fn learn_prompt(&mut self, ticket: &Ticket, prompt: &Prompt, now: f64) {
        let Some(started) = prompt.started else {
            // It came before the step was seen to end, or before the front end was over.
            return self.prefill.bound_front_end(now - prompt.sent_at);
        };
        let (tokens, step_time) = (ticket.sent.uncached(), self.step());
        if now - started.at < SAME * step_time {
            // No prompt is computed in no time: it was there before, so the front end takes less.
            return self.prefill.bound_front_end(now - prompt.sent_at - step_time);
        }
        let first = FirstToken {
            now,
            sent_at: prompt.sent_at,
            started,
            tokens,
            pairs: tokens * (ticket.sent.cached + tokens * 0.5),
            step_time,
            steps_seen: Some(self.steps_seen).filter(|_| self.all_streams() >= 1.0),
            step_tokens: self.limits.step_tokens,
            unfinished: self.prompts.started_before(now - SAME * step_time),
        };
        if let Some(sample) = self.bursts.add(&first) {
            self.prefill.learn(&sample);
            self.learned();
        }
    }

    /// Learns the limits of the engine from a wait for a first token.
    pub(super) fn learn_limits(&mut self, ticket: &Ticket, now: f64) {
        let wait = self.wait_of(ticket, now);
        if self.learned_limits.learn(&wait, self.knows_kv_tokens) {
            self.use_learned_limits();
        }
    }

    /// Uses the learned limits where the engine does not report them.
    pub(super) fn use_learned_limits(&mut self) {
        if !self.knows_slots {
            self.limits.slots = self.learned_limits.slots();
        }
        if !self.knows_kv_tokens {
            self.limits.kv_tokens = self.learned_limits.kv_tokens();
        }
    }

    /// Returns the wait of a request whose first token comes at `now`.
    fn wait_of(&self, ticket: &Ticket, now: f64) -> Wait {
        let Prediction { raw, regime, streams: before, .. } = ticket.prediction;
        // Requests that peers sent since their last report explain a wait as well as a full batch
        // does.
        let unseen = if self.others.streams > 0.0 { UNSEEN } else { 0.0 };
        let (sent_at, step, streams) = (ticket.sent_at + unseen, self.step(), self.all_streams());
        let context = self.all_context() + ticket.sent.prompt;
        Wait { regime, raw, sent_at, now, step, before, streams, context }
    }

    /// Learns from a response in one piece: its duration and length show how fast the engine
    /// decodes.
    pub(super) fn learn_whole(&mut self, ticket: &Ticket, output: Option<u32>, now: f64) {
        let Some(output) = output.map(f64::from).filter(|output| *output >= 1.0) else { return };
        self.lengths.learn(output);
        let Prediction { raw, decode, regime, .. } = ticket.prediction;
        let took = now - ticket.sent_at;
        self.residual.learn(regime, raw, took);
        let gap = (took - (raw - decode)) / (output - 1.0);
        if output >= 8.0 && gap > 0.0 {
            let (decodes, context) = (self.all_streams() + 1.0, self.all_context());
            let context = context + ticket.sent.prompt + output * 0.5;
            self.learn_gap(&GapSample { gap, decodes, context, steps: output.min(16.0) });
        }
    }

    /// Learns from a step without prompts.
    pub fn learn_gap(&mut self, sample: &GapSample) {
        let was_relearning = self.steps.is_relearning();
        self.steps.learn_gap(sample);
        match (was_relearning, self.steps.is_relearning()) {
            (false, true) => {
                self.residual.note_change();
                // Usually the cost of prompts has changed as well: the next samples count for more.
                self.prefill.doubt();
            }
            (true, false) => self.residual.note_relearned(),
            (false, false) | (true, true) => {}
        }
        self.learned();
    }

    /// Records that the engine has ended `steps` steps since the last call, the last one at `at`:
    /// tokens came.
    pub fn step_ended(&mut self, at: f64, steps: f64) {
        let gap = at - self.step_ended;
        if gap <= 0.0 || steps < 1.0 {
            return;
        }
        let step = self.step();
        let (decodes, context) = (self.all_streams(), self.all_context());
        // A full batch takes no prompts.
        let has_prompts = self.prompts.entered() > 0 && decodes < self.limits.slots;
        if self.is_clean && !has_prompts && decodes >= 1.0 {
            self.learn_gap(&GapSample { gap: gap / steps, decodes, context, steps });
        }
        if decodes >= 1.0 {
            self.front_end.steps_ended(gap, steps * step);
            self.pace.learn(gap, steps * step / (1.0 - self.prefill_share(at)), steps);
        }
        self.is_clean = decodes >= 1.0;
        let computed = if self.prompts.entered() > 0 { (gap - steps * step).max(0.0) } else { 0.0 };
        (self.step_ended, self.steps_seen) = (at, self.steps_seen + steps);
        self.prompts.step_ended(at, self.prefill.front_end(), computed);
        self.start_prompts(at);
        // Any prompt that was sent may be there: at first the front end takes less time than is
        // believed.
        self.is_clean &= self.prompts.count() == 0 || decodes >= self.limits.slots;
    }

    /// Starts the prompts for which the engine has a slot.
    pub(super) fn start_prompts(&mut self, at: f64) {
        let room = self.limits.slots - self.all_streams();
        self.prompts.start(StepEnd { at, number: self.steps_seen }, room);
    }

    pub(super) fn learned(&mut self) {
        self.coefficients = self.steps.coefficients(self.prefill.token(), self.prefill.pair());
    }

    /// Learns the length of one output of earlier traffic.
    pub fn learn_length(&mut self, tokens: f64) {
        self.lengths.learn(tokens);
    }
}
