//! The prediction of an idle engine after bursts of equal prompts.

use std::collections::VecDeque;
use std::sync::Arc;

use super::{PredictionTicket, Predictor, ReportedLimits, RequestShape};

/// An engine with chunked prefill and 16 slots: a step takes 20 ms, 0.1 ms per prompt token and
/// 1 ms per stream, times `slow`.
struct Engine {
    slow: f64,
    /// The most prompt tokens of a step.
    chunk: f64,
    now_us: f64,
    waiting: VecDeque<(usize, f64)>,
    running: Vec<(usize, u32)>,
}

const SLOTS: usize = 16;

impl Engine {
    /// Sends `count` prompts at once and has them served; returns the times to the first tokens.
    fn serve(
        &mut self,
        predictor: &Arc<Predictor>,
        count: usize,
        sent: RequestShape,
        output: u32,
    ) -> Vec<f64> {
        let start = self.now_us;
        let mut tickets: Vec<Option<PredictionTicket>> = (0..count)
            .map(|_| {
                let estimate = predictor.estimate(&sent, start);
                Some(predictor.send(sent, estimate.prediction, None, start))
            })
            .collect();
        let mut first = vec![0.0; count];
        self.waiting.extend((0..count).map(|index| (index, sent.uncached_tokens())));
        let mut refreshed = start;
        while !self.waiting.is_empty() || !self.running.is_empty() {
            let mut budget = self.chunk;
            let mut started = Vec::new();
            while self.running.len() + started.len() < SLOTS && budget > 0.0 {
                let Some((index, left)) = self.waiting.front_mut() else { break };
                let part = left.min(budget);
                (*left, budget) = (*left - part, budget - part);
                if *left <= 0.0 {
                    started.push((*index, 1));
                    self.waiting.pop_front();
                }
            }
            let streams = self.running.len() as f64;
            self.now_us +=
                self.slow * (20_000.0 + 100.0 * (self.chunk - budget) + 1_000.0 * streams);
            for (index, tokens) in &mut self.running {
                *tokens += 1;
                tickets[*index].as_mut().unwrap().tokens(1, self.now_us);
            }
            for (index, _) in &started {
                first[*index] = self.now_us - start;
                tickets[*index].as_mut().unwrap().tokens(1, self.now_us);
            }
            self.running.extend(started);
            for (index, _) in self.running.iter().filter(|(_, tokens)| *tokens >= output) {
                tickets[*index].take().unwrap().complete(Some(output), self.now_us);
            }
            self.running.retain(|(_, tokens)| *tokens < output);
            while refreshed + 1e6 < self.now_us {
                refreshed += 1e6;
                predictor.refresh(ReportedLimits::default(), self.now_us);
            }
        }
        first
    }

    fn rest(&mut self, predictor: &Arc<Predictor>, seconds: u32) {
        for _ in 0..seconds {
            self.now_us += 1e6;
            predictor.refresh(ReportedLimits::default(), self.now_us);
        }
    }
}

#[test]
fn idle_engine_is_predicted_right_after_bursts() {
    let shapes = [
        (2.5, 512.0, 400.0, 40),
        (1.0, 512.0, 400.0, 40),
        (2.5, 512.0, 400.0, 4),
        (2.5, 512.0, 60.0, 40),
        (2.5, 512.0, 2000.0, 20),
        // All first tokens of a burst come together.
        (2.5, 16_384.0, 400.0, 40),
    ];
    for (slow, chunk, prompt, output) in shapes {
        let predictor = Arc::new(Predictor::default());
        let mut engine =
            Engine { slow, chunk, now_us: 0.0, waiting: VecDeque::new(), running: Vec::new() };
        let sent = RequestShape {
            prompt_tokens: prompt,
            cached_tokens: 0.0,
            max_output_tokens: f64::from(output),
            is_whole: false,
        };
        let mut alone = 0.0;
        for _ in 0..20 {
            alone = engine.serve(&predictor, 1, sent, output)[0];
            engine.rest(&predictor, 1);
        }
        let bursts = if chunk > 512.0 { [4, 9, 14] } else { [12, 25, 40] };
        for burst in bursts.into_iter().cycle().take(24) {
            engine.serve(&predictor, burst, sent, output);
            engine.rest(&predictor, 10);
            let predicted = predictor.estimate(&sent, engine.now_us).prediction.ttft_us;
            let off = predicted / alone - 1.0;
            assert!(off.abs() < 0.25, "{prompt} tokens after {burst}: {predicted} of {alone}");
        }
    }
}
