//! Learning from first tokens, steps and whole responses.

use super::BackendPredictor;
use crate::bursts::{FirstToken, SAME_STEP_SHARE};
use crate::coefficients::GapSample;
use crate::engine_load::MAX_UNREPORTED_US;
use crate::front_end::FirstWait;
use crate::limit_learner::Wait;
use crate::prediction::Prediction;
use crate::prompts::{PrefillPrompt, StepEnd};
use crate::ticket::Ticket;
use crate::tokenizer::TokenizerSample;

/// The factor by which a gap may exceed its step and the prompts in it if the engine did nothing
/// else meanwhile.
const SAME_STEP_FACTOR: f64 = 2.0;

impl BackendPredictor {
    /// Learns from a first token how long the front end takes, if prompts ahead do not make it
    /// longer.
    pub(super) fn learn_front_end(&mut self, prompt: &PrefillPrompt, now_us: f64) {
        let wait = FirstWait {
            ttft_us: now_us - prompt.sent_at_us - prompt.tokenizer_us,
            own_prefill_us: prompt.work_us,
            ahead: prompt.ahead,
            step_us: self.step_us(),
            stream_count: self.stream_count() + 1.0,
            max_stream_count: self.max_stream_count,
        };
        if let Some(front_end_us) = self.front_end_learner.learn(&wait) {
            self.prefill_learner.set_front_end(front_end_us);
        }
    }

    /// Learns from a first token how long its prompt took, with the prompts that came together with
    /// it.
    pub(super) fn learn_prompt(&mut self, ticket: &Ticket, prompt: &PrefillPrompt, now_us: f64) {
        let Some(first_step) = prompt.first_step else {
            // It came before the step was seen to end, or before the front end was over.
            return self.bound_front_end(prompt, now_us);
        };
        let (tokens, step_us) = (ticket.request.uncached_tokens(), self.step_us());
        if now_us - first_step.at_us < SAME_STEP_SHARE * step_us {
            // No prompt is computed in no time: it was there when that step started, so the front
            // end takes less.
            let there_at_us = self.step_started_at_us.unwrap_or(now_us - step_us);
            return self.bound_front_end(prompt, there_at_us);
        }
        let first = FirstToken {
            now_us,
            sent_at_us: prompt.sent_at_us,
            tokenizer_us: prompt.tokenizer_us,
            first_step,
            tokens,
            // A token has attention to all before it: to half of the new ones, on average.
            pairs: tokens * (ticket.request.cached_tokens + tokens * 0.5),
            step_us,
            steps_ended: Some(self.steps_ended).filter(|_| self.stream_count() >= 1.0),
            step_tokens: self.limits.step_tokens,
            paused_us: self.paused_us,
            unfinished_tokens: self.prompts.started_before(now_us - SAME_STEP_SHARE * step_us),
        };
        if let Some(sample) = self.bursts.add(&first) {
            self.prefill_learner.learn(&sample.prefill);
            if let Some(steps) = sample.steps {
                self.step_size_learner.learn(&steps, self.stream_count());
                self.limits.step_tokens = self.step_size_learner.step_tokens();
            }
            self.update_coefficients();
        }
    }

    /// Learns that a prompt had passed the front end at `there_at_us`.
    fn bound_front_end(&mut self, prompt: &PrefillPrompt, there_at_us: f64) {
        let passed_us = there_at_us - prompt.sent_at_us;
        // A prompt that came before its tokenizer could be done says nothing of the rest.
        if prompt.tokenizer_us <= passed_us.max(0.0) {
            self.prefill_learner.bound_front_end(passed_us - prompt.tokenizer_us);
        }
    }

    /// Learns from a first token how long the front end takes for a prompt of its length. If
    /// another prompt was there, the time is only a bound.
    pub(super) fn learn_tokenizer(&mut self, ticket: &Ticket, now_us: f64) {
        let Prediction { raw_ttft_us, tokenizer_us, hidden_us, work_us, .. } = ticket.prediction;
        // Without what is believed of the tokenizer: else a belief would confirm itself.
        let predicted_us = raw_ttft_us - tokenizer_us + hidden_us;
        let ttft_us = now_us - ticket.sent_at_us;
        self.tokenizer_learner.bound(tokenizer_us, predicted_us, ttft_us);
        let Prediction { tokens_ahead, stall_us, .. } = ticket.prediction;
        let is_alone = tokens_ahead <= 0.0 && ticket.number == self.sent_count;
        if !is_alone || stall_us > 0.0 {
            return;
        }
        self.tokenizer_learner.learn(&TokenizerSample {
            prompt_tokens: ticket.request.prompt_tokens,
            cached_tokens: ticket.request.cached_tokens,
            work_us,
            time_us: ttft_us - predicted_us,
            predicted_us,
            token_us: self.coefficients.token_us,
        });
    }

    /// Learns the limits of the engine from a wait for a first token.
    pub(super) fn learn_limits(&mut self, ticket: &Ticket, now_us: f64) {
        let wait = self.wait_of(ticket, now_us);
        if self.limit_learner.learn(&wait, self.knows_kv_tokens) {
            self.use_learned_limits();
        }
    }

    /// Uses the learned limits where the engine does not report them.
    pub(super) fn use_learned_limits(&mut self) {
        if !self.knows_slots {
            self.limits.slots = self.limit_learner.slots();
        }
        if !self.knows_kv_tokens {
            self.limits.kv_tokens = self.limit_learner.kv_tokens();
        }
    }

    /// Returns the slots that the engine has shown; infinite if it has shown none.
    pub(crate) fn shown_slots(&self) -> f64 {
        self.limit_learner.shown_slots()
    }

    /// Returns the most requests that the engine has reported to run in the last minutes.
    pub(crate) fn max_running(&self) -> f64 {
        self.limit_learner.max_running()
    }

    /// Takes the slots that another engine with the same model has shown; infinite if none has.
    pub(crate) fn lend_slots(&mut self, slots: f64) {
        if self.limit_learner.lend(slots, self.stream_count()) {
            self.use_learned_limits();
        }
    }

    /// Returns the wait of a request whose first token comes at `now_us`.
    fn wait_of(&self, ticket: &Ticket, now_us: f64) -> Wait {
        let Prediction { raw_ttft_us, regime, stream_count: stream_count_before, .. } =
            ticket.prediction;
        // Requests that peers sent since their last report explain a wait as well as a full batch
        // does.
        let unreported_us = if self.peer_load.stream_count > 0.0 { MAX_UNREPORTED_US } else { 0.0 };
        let (sent_at_us, step_us, stream_count) =
            (ticket.sent_at_us + unreported_us, self.step_us(), self.stream_count());
        let context_tokens = self.context_tokens() + ticket.request.prompt_tokens;
        Wait {
            regime,
            raw_ttft_us,
            sent_at_us,
            first_token_at_us: now_us,
            step_us,
            stream_count_before,
            stream_count,
            context_tokens,
        }
    }

    /// Learns from a response in one piece: its duration and length show how fast the engine
    /// decodes.
    pub(super) fn learn_whole(&mut self, ticket: &Ticket, output: Option<u32>, now_us: f64) {
        let Some(output) = output.map(f64::from).filter(|output| *output >= 1.0) else { return };
        self.lengths.learn(output, ticket.request.max_output_tokens);
        let Prediction { raw_ttft_us, decode_us, regime, .. } = ticket.prediction;
        let took_us = now_us - ticket.sent_at_us;
        self.residual.learn(regime, raw_ttft_us, took_us);
        self.learned_at_us = now_us;
        // The first token comes with the prefill, without a gap.
        let gap_us = (took_us - (raw_ttft_us - decode_us)) / (output - 1.0);
        // The gap of a short response is mostly the error of its predicted first token.
        if output >= 8.0 && gap_us > 0.0 {
            let (decodes, context_tokens) = (self.stream_count() + 1.0, self.context_tokens());
            let context_tokens = context_tokens + ticket.request.prompt_tokens + output * 0.5;
            self.learn_gap(&GapSample { gap_us, decodes, context_tokens, steps: output.min(16.0) });
        }
    }

    /// Learns from a step without prompts.
    pub(crate) fn learn_gap(&mut self, sample: &GapSample) {
        let was_relearning = self.step_learner.is_relearning();
        self.step_learner.learn_gap(sample);
        match (was_relearning, self.step_learner.is_relearning()) {
            (false, true) => {
                self.residual.note_change();
                // Usually the cost of prompts has changed as well: the next samples count for more.
                self.prefill_learner.demote_to_prior();
            }
            (true, false) => self.residual.note_relearned(),
            (false, false) | (true, true) => {}
        }
        self.update_coefficients();
    }

    /// Records that the engine has ended `steps` steps since the last call, the last one at
    /// `at_us`: tokens came.
    pub(crate) fn step_ended(&mut self, at_us: f64, steps: f64) {
        let (gap_us, step_us) = (at_us - self.step_ended_at_us, self.step_us());
        // The leading stream shows the step that a first token has shown a moment ago.
        let is_counted =
            std::mem::take(&mut self.is_end_inferred) && gap_us < SAME_STEP_SHARE * step_us;
        let steps = if is_counted { steps - 1.0 } else { steps };
        if gap_us <= 0.0 || steps < 1.0 {
            return;
        }
        let (decodes, context_tokens) = (self.stream_count(), self.context_tokens());
        // A full batch takes no prompts.
        let has_prompts = self.prompts.admitted_count() > 0 && decodes < self.limits.slots;
        let is_decode_only = self.is_decode_only && !has_prompts;
        let pause_us = self.learn_pause(gap_us, steps * step_us, is_decode_only);
        if is_decode_only && decodes >= 1.0 && pause_us <= 0.0 {
            self.learn_gap(&GapSample { gap_us: gap_us / steps, decodes, context_tokens, steps });
        }
        self.paused_us += pause_us;
        if decodes >= 1.0 {
            self.front_end_learner.steps_ended(gap_us, steps * step_us);
            let expected_us = steps * step_us / (1.0 - self.prefill_share(at_us));
            self.pace_learner.learn(gap_us - pause_us, expected_us, steps);
        }
        self.is_decode_only = decodes >= 1.0;
        // The time beyond the steps without prompts went into prompts.
        let computed_us = if self.prompts.admitted_count() > 0 {
            (gap_us - pause_us - steps * step_us).max(0.0)
        } else {
            0.0
        };
        let longest_us = SAME_STEP_FACTOR * (step_us + self.prompts.in_batch().time_us);
        let is_one_step = steps < 2.0 && decodes >= 1.0 && gap_us <= longest_us;
        self.step_started_at_us = is_one_step.then_some(self.step_ended_at_us);
        (self.step_ended_at_us, self.steps_ended) = (at_us, self.steps_ended + steps);
        self.prompts.step_ended(at_us, self.prefill_learner.front_end_us(), computed_us);
        self.start_prompts(at_us);
        // Any prompt that was sent may be there: at first the front end takes less time than is
        // believed.
        self.is_decode_only &= self.prompts.count() == 0 || decodes >= self.limits.slots;
    }

    /// Learns from the gap of steps that were expected to take `steps_us`. Returns the pause in it.
    fn learn_pause(&mut self, gap_us: f64, steps_us: f64, is_decode_only: bool) -> f64 {
        if self.stream_count() < 1.0 {
            return 0.0;
        }
        if is_decode_only {
            return self.pause_learner.learn(gap_us, steps_us);
        }
        let prompts_us = self.prompts.in_batch().time_us + self.prompts.queued().time_us;
        self.pause_learner.pause_beside_prompts(gap_us, steps_us + prompts_us)
    }

    /// Starts the prompts for which the engine has a slot.
    pub(super) fn start_prompts(&mut self, at_us: f64) {
        let room = self.limits.slots - self.stream_count();
        let (steps_ended, paused_us) = (self.steps_ended, self.paused_us);
        self.prompts.start(StepEnd { at_us, steps_ended, paused_us }, room);
    }

    pub(super) fn update_coefficients(&mut self) {
        self.coefficients = self
            .step_learner
            .coefficients(self.prefill_learner.token_us(), self.prefill_learner.pair_us());
    }

    /// Learns the length of one output of earlier traffic.
    pub fn learn_length(&mut self, tokens: f64) {
        self.lengths.learn(tokens, f64::INFINITY);
    }
}
