//! The predictions of a model in a dump.

use penstock_predict::{Coefficients, PredictorReport};
use serde_json::{Value, json};

/// The state of the predictor: times in milliseconds, costs of a token in microseconds.
pub(super) fn prediction_row(report: &PredictorReport) -> Value {
    // Further digits are noise.
    let rounded = |value: f64| (value * 1000.0).round() / 1000.0;
    let coefficients = &report.coefficients;
    let Coefficients { base_us, token_us, decode_us, context_us, batch_ratios, .. } = *coefficients;
    let step_us = coefficients.step_us(report.stream_count, report.context_tokens);
    // Before the first token these two are priors, and would be read as results.
    let seen = |value: f64| (report.first_token_count > 0.0).then(|| rounded(value));
    json!({
        "trusted": report.is_trusted,
        "error": seen(report.error),
        "coverage": seen(report.coverage),
        // Factors, for people: both are learned as logarithms.
        "bias": rounded(report.bias.exp()),
        "idle_bias": rounded(report.idle_bias.exp()),
        "first_tokens": report.first_token_count,
        "steps": report.gap_count.round(),
        "backlog_ms": rounded(report.backlog_us / 1000.0),
        "waiting": report.waiting_count,
        "streams": report.stream_count,
        "slots": Some(report.slots).filter(|slots| slots.is_finite()),
        "stall_ms": rounded(report.stall_us / 1000.0),
        "batch_share": rounded(report.batch_share),
        "front_end_ms": rounded(report.front_end_us / 1000.0),
        "tokenizer_token_us": rounded(report.tokenizer_token_us),
        "step_ms": rounded(step_us / 1000.0),
        "base_ms": rounded(base_us / 1000.0),
        "prompt_token_us": rounded(token_us),
        "stream_us": rounded(decode_us),
        "context_token_us": rounded(context_us),
        "batch_ratios": batch_ratios.all().map(rounded),
    })
}

#[cfg(test)]
mod tests {
    use penstock_predict::{EngineLimits, Predictor};

    use super::*;

    #[test]
    fn predictions_that_no_first_token_has_met_have_no_error() {
        let predictor = Predictor::new(&Coefficients::default(), EngineLimits::default());
        let row = prediction_row(&predictor.report(1e6));
        assert_eq!((&row["error"], &row["coverage"]), (&Value::Null, &Value::Null), "{row}");
        assert_eq!((&row["trusted"], &row["first_tokens"]), (&json!(false), &json!(0.0)), "{row}");
        let report = PredictorReport { first_token_count: 1.0, ..predictor.report(1e6) };
        let row = prediction_row(&report);
        assert!(row["error"].is_number() && row["coverage"].is_number(), "{row}");
    }
}
