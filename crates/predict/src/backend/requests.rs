//! The events of a request: it is sent, emits tokens and ends.

use super::BackendPredictor;
use crate::bursts::SAME_STEP_SHARE;
use crate::prediction::{Prediction, RequestShape};
use crate::prompts::{PrefillPrompt, StepEnd};
use crate::residual::Regime;
use crate::ticket::Ticket;

/// The number of tokens over which a stream may spend its lead over its objective.
const SLACK_TOKENS: f64 = 64.0;

/// The longest front end, in steps, behind which first tokens come with those of other streams.
const MAX_FRONT_END_STEPS: f64 = 10.0;

impl BackendPredictor {
    /// Adds a request that is sent by this prediction. `tpot_objective_us` is for its time per
    /// token.
    pub fn send(
        &mut self,
        request: RequestShape,
        prediction: Prediction,
        tpot_objective_us: Option<f64>,
        now_us: f64,
    ) -> Ticket {
        let own_idle = self.waiting_count == 0 && self.streams.count() < 1.0;
        if own_idle {
            self.stall.tried(self.step_us(), now_us);
        }
        let is_idle =
            own_idle && self.peer_load.waiting_count < 1.0 && self.peer_load.stream_count < 1.0;
        // While the engine was idle, nothing showed the ends of its steps.
        self.is_decode_only &= !own_idle;
        self.sent_count += 1;
        self.sent_work_us += prediction.work_us;
        let number = self.sent_count;
        let prompt = self.new_prompt(&request, &prediction, now_us);
        if is_idle {
            // A try that shows nothing, because its client leaves, is not repeated at once.
            self.learned_at_us = now_us;
            // No step runs that the request would have to wait for.
            self.step_ended_at_us =
                now_us + self.prefill_learner.front_end_us() + prediction.tokenizer_us;
        }
        self.prompts.send(
            prompt,
            is_idle.then_some(StepEnd {
                at_us: now_us,
                steps_ended: self.steps_ended,
                paused_us: self.paused_us,
            }),
        );
        self.is_decode_only &= !is_idle;
        // An objective that is missed even alone is no reason to keep others away.
        let alone_us = self.coefficients.step_us(1.0, request.prompt_tokens);
        let tpot_objective_us = tpot_objective_us.filter(|objective_us| *objective_us >= alone_us);
        let mut ticket = Ticket {
            sent_at_us: now_us,
            request,
            prediction,
            number,
            tpot_objective_us,
            allowed_ns: None,
            first_token_at_us: 0.0,
            last_token_at_us: 0.0,
            sent_work_us: self.sent_work_us,
            emitted_tokens: 0,
        };
        if request.is_whole {
            // It shows no first token, so it counts as a stream from the start.
            self.start_stream(&mut ticket, now_us);
        } else {
            self.waiting_count += 1;
        }
        ticket
    }

    /// Returns the prompt of the request that is sent last.
    fn new_prompt(
        &self,
        request: &RequestShape,
        prediction: &Prediction,
        now_us: f64,
    ) -> PrefillPrompt {
        let Prediction { raw_ttft_us, regime, work_us, decode_us, tokenizer_us, .. } = *prediction;
        let tokens = request.uncached_tokens();
        PrefillPrompt {
            number: self.sent_count,
            sent_at_us: now_us,
            tokens,
            work_us,
            tokenizer_us,
            ahead: self.front_end_learner.ahead(self.own_load().prompt_work.tokens + tokens),
            done_at_us: match request.is_whole {
                true => now_us + raw_ttft_us - decode_us,
                false => f64::INFINITY,
            },
            raw_ttft_us,
            regime,
            learned_wait_us: 0.0,
            first_step: None,
        }
    }

    /// Learns from the first token of a request.
    pub fn first_token(&mut self, ticket: &mut Ticket, now_us: f64) {
        if ticket.emitted_tokens > 0 {
            return;
        }
        let Prediction { raw_ttft_us, regime, .. } = ticket.prediction;
        let took_us = now_us - ticket.sent_at_us;
        self.learned_at_us = now_us;
        // First of all: a limit shows in the streams beside which the request waited.
        self.learn_limits(ticket, now_us);
        self.waiting_count = self.waiting_count.saturating_sub(1);
        let (gap_us, step_us) = (now_us - self.step_ended_at_us, self.step_us());
        if gap_us > SAME_STEP_SHARE * step_us {
            // A first token ends a step, which the leading stream may not have shown yet.
            self.step_ended(now_us, 1.0);
            // Behind a long front end, as of a hosted API, they come at any time.
            self.is_end_inferred = gap_us > (1.0 - SAME_STEP_SHARE) * step_us
                && self.prefill_learner.front_end_us() < MAX_FRONT_END_STEPS * step_us;
        }
        let prompt = self.prompts.remove(ticket.number, now_us);
        if let Some(prompt) = prompt.filter(|_| matches!(regime, Regime::Prefill | Regime::Idle)) {
            self.learn_front_end(&prompt, now_us);
            self.learn_prompt(ticket, &prompt, now_us);
            self.learn_tokenizer(ticket, now_us);
        }
        self.is_decode_only = false;
        self.stall.computed(ticket.prediction.work_us, now_us);
        if regime != Regime::Idle || ticket.number == self.sent_count {
            self.residual.learn(regime, raw_ttft_us, took_us);
        } else {
            // Others were sent later, so it was not alone on the engine; they explain that much.
            let later_us = self.sent_work_us - ticket.sent_work_us;
            self.residual.learn_unexplained(raw_ttft_us, took_us - later_us);
        }
        self.stall.started(self.step_us(), now_us);
        self.start_stream(ticket, now_us);
    }

    fn start_stream(&mut self, ticket: &mut Ticket, now_us: f64) {
        ticket.emitted_tokens = 1;
        ticket.first_token_at_us = now_us;
        ticket.last_token_at_us = now_us;
        self.streams.add(&ticket.stream(), self.steps_ended);
        self.max_stream_count = self.max_stream_count.max(self.stream_count());
        self.allowances.set(ticket, ticket.tpot_objective_us);
        if self.limit_learner.observe_streams(self.stream_count()) {
            self.use_learned_limits();
        }
    }

    /// Records that the stream has emitted `tokens` tokens in all.
    pub fn progress(&mut self, ticket: &mut Ticket, tokens: u32, now_us: f64) {
        if ticket.emitted_tokens == 0 || tokens <= ticket.emitted_tokens {
            return;
        }
        self.streams.grow(&ticket.stream(), tokens, self.steps_ended);
        ticket.emitted_tokens = tokens;
        ticket.last_token_at_us = now_us;
        self.stall.emitted(now_us);
        if let Some(tpot_objective_us) = ticket.tpot_objective_us {
            let lead_us = ticket.first_token_at_us + f64::from(tokens) * tpot_objective_us - now_us;
            self.allowances.set(ticket, Some(tpot_objective_us + lead_us.max(0.0) / SLACK_TOKENS));
        }
    }

    /// Records further tokens, for a caller that does not see of which stream: the simulator.
    pub(crate) fn emitted(&mut self, now_us: f64) {
        self.stall.emitted(now_us);
    }

    /// Ends a request: with all its tokens, or cut by its client or a failure. `output_tokens` is
    /// its number of tokens, where that is known better than from the stream.
    pub fn ended(
        &mut self,
        ticket: &mut Ticket,
        output_tokens: Option<u32>,
        is_complete: bool,
        now_us: f64,
    ) {
        if ticket.emitted_tokens == 0 {
            self.no_token(ticket, is_complete, now_us);
            self.waiting_count = self.waiting_count.saturating_sub(1);
            let prompt = self.prompts.leave(ticket.number, now_us);
            if prompt.is_some_and(|one| one.first_step.is_some()) {
                self.bursts.discard_unfinished();
            }
            return;
        }
        if ticket.request.is_whole {
            self.prompts.remove(ticket.number, now_us);
        }
        self.streams.remove(&ticket.stream());
        self.allowances.set(ticket, None);
        // One that failed was seen last when it was sent: no step starts before the last one ended.
        self.start_prompts(now_us.max(self.step_ended_at_us));
        if ticket.request.is_whole {
            self.no_token(ticket, is_complete, now_us);
            return self.learn_whole(ticket, output_tokens.filter(|_| is_complete), now_us);
        }
        self.stall.ended(is_complete, now_us);
        let length =
            f64::from(output_tokens.unwrap_or(ticket.emitted_tokens).max(ticket.emitted_tokens));
        // The silence before a client leaves is no time of a token.
        let until_us = if is_complete { now_us } else { ticket.last_token_at_us };
        let (predicted_us, actual_us) = (
            ticket.prediction.tpot_us,
            // A single token has no gap to divide by.
            (until_us - ticket.first_token_at_us) / (length - 1.0).max(1.0),
        );
        self.pace_spread_learner.learn(predicted_us, actual_us, length);
        if let Some(tpot_objective_us) = ticket.tpot_objective_us {
            self.batch_share_learner.learn(tpot_objective_us, predicted_us, actual_us, length);
        }
        match is_complete {
            true => self.lengths.learn(length, ticket.request.max_output_tokens),
            false => self.lengths.learn_cut(length),
        }
    }

    /// Records the end of a request of which no token was seen: it came as a whole, or was cut
    /// before.
    fn no_token(&mut self, ticket: &Ticket, is_complete: bool, now_us: f64) {
        if is_complete {
            return self.stall.emitted(now_us);
        }
        let expected_us = ticket.prediction.ttft_us - ticket.prediction.stall_us;
        self.stall.left(ticket.sent_at_us, expected_us, self.step_us(), now_us);
    }
}
