//! ServeGen's clients: the rate, the gap distribution and the length quantiles of each.

use super::TraceError;
use crate::random::{Purpose, RandomStream};
use crate::workload::generate::number;
use crate::workload::{Request, Workload, rounded, rounded_u32};

/// The period in which clients send.
const DURATION_US: f64 = 600e6;
/// The cumulative shares of the quantiles.
const SHARES: [f64; 7] = [0.05, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99];
/// The number of columns: names, rate, variation, kind of gaps, two parameters, mean and quantiles
/// of inputs, and the same of outputs.
const COLUMNS: usize = 23;

struct TraceClient {
    name: String,
    model: String,
    rate: f64,
    is_weibull: bool,
    shape: f64,
    inputs: [f64; 7],
    outputs: [f64; 7],
}

pub(super) fn read(text: &str, seed: u64) -> Result<Workload, TraceError> {
    let mut workload = Workload { block_tokens: 16, ..Workload::default() };
    let rows = text.lines().map(str::trim).enumerate().skip(1).filter(|(_, line)| !line.is_empty());
    for (index, line) in rows {
        let client = TraceClient::parse(line).map_err(|reason| TraceError::line(index, reason))?;
        let id = index as u64;
        let [mut gaps, mut inputs, mut outputs] =
            [Purpose::Arrivals, Purpose::Inputs, Purpose::Outputs]
                .map(|of| RandomStream::new(seed, of, id));
        let (model, number) = (
            number(&mut workload.models, &client.model),
            number(&mut workload.clients, &client.name),
        );
        let mut at = 0.0;
        loop {
            let gap = if client.is_weibull {
                gaps.weibull(client.shape)
            } else {
                gaps.gamma(client.shape)
            };
            at += gap / client.rate * 1e6;
            if at >= DURATION_US {
                break;
            }
            workload.requests.push(Request {
                arrives_at: rounded(at),
                model,
                client: number,
                input_tokens: quantile(&client.inputs, inputs.uniform()),
                output_tokens: quantile(&client.outputs, outputs.uniform()),
                ..Request::default()
            });
        }
    }
    workload.requests.sort_by_key(|request| (request.arrives_at, request.client));
    Ok(workload)
}

impl TraceClient {
    fn parse(line: &str) -> Result<Self, String> {
        let fields: Vec<&str> = line.split(',').collect();
        let [category, name, rate, _variation, kind, shape, _scale, _in_mean, lengths @ ..] =
            fields.as_slice()
        else {
            return Err(format!("{COLUMNS} columns are needed"));
        };
        let (Some(inputs), Some(outputs)) = (lengths.get(..7), lengths.get(8..15)) else {
            return Err(format!("{COLUMNS} columns are needed"));
        };
        let positive = |field: &str| {
            let value = field.parse::<f64>().ok().filter(|value| *value > 0.0 && value.is_finite());
            value.ok_or_else(|| format!("'{field}' is no number greater than 0"))
        };
        let quantiles = |fields: &[&str]| -> Result<[f64; 7], String> {
            let mut values = [0.0; 7];
            for (value, field) in values.iter_mut().zip(fields) {
                *value = positive(field)?;
            }
            Ok(values)
        };
        Ok(Self {
            name: format!("{category}/{name}"),
            model: (*category).to_owned(),
            rate: positive(rate)?,
            is_weibull: *kind == "Weibull",
            shape: positive(shape)?,
            inputs: quantiles(inputs)?,
            outputs: quantiles(outputs)?,
        })
    }
}

/// Returns the quantile of lengths at `share`, interpolated linearly.
fn quantile(values: &[f64; 7], share: f64) -> u32 {
    let mut before = (0.0, values.first().copied().unwrap_or(1.0));
    for (at, value) in SHARES.into_iter().zip(values) {
        if share <= at {
            let part = (share - before.0) / (at - before.0);
            return rounded_u32(before.1 + (value - before.1) * part).max(1);
        }
        before = (at, *value);
    }
    rounded_u32(before.1).max(1)
}

#[cfg(test)]
mod tests {
    use super::super::read_trace;

    #[test]
    fn clients_send_at_their_rates() {
        let text = "category,client,rate_rps,cv,arrival,param1,param2,in_mean,in_p5,in_p25,in_p50,in_p75,in_p90,\
                    in_p95,in_p99,out_mean,out_p5,out_p25,out_p50,out_p75,out_p90,out_p95,out_p99\n\
                    language/m,2,5,1.661,Gamma,0.36225,17.913,899.1,449,973,979,988,1006,1037,1256,51.0,28,47,55,\
                    58,61,63,67\n\
                    language/m,7,2,1.007,Weibull,0.9862,0.3226,224.6,126,132,207,252,391,486,663,55.7,3,7,26,56,\
                    170,235,378\n";
        let workload = read_trace(text, 1).unwrap();
        let of = |client| workload.requests.iter().filter(move |request| request.client == client);
        assert!((of(0).count() as f64 / 3000.0 - 1.0).abs() < 0.15, "{}", of(0).count());
        assert!((of(1).count() as f64 / 1200.0 - 1.0).abs() < 0.15, "{}", of(1).count());
        assert!(of(0).all(|request| (449..=1256).contains(&request.input_tokens)));
        assert_eq!(workload.models, ["language/m"]);
        assert!(workload.requests.is_sorted_by_key(|request| request.arrives_at));
        assert!(read_trace("category,client,rate_rps\nx,1", 1).is_err());
    }
}
