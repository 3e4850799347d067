//! Azure's and BurstGPT's traces: a line of comma-separated values per request, without prefixes.

use super::TraceError;
use crate::workload::generate::number;
use crate::workload::{Request, Workload, rounded};

/// Reads `TIMESTAMP,ContextTokens,GeneratedTokens`, with times such as `2023-11-16
/// 18:17:03.9799600`.
pub(super) fn read_azure(text: &str) -> Result<Workload, TraceError> {
    let mut workload = Workload { block_tokens: 16, ..Workload::default() };
    for (index, line) in rows(text) {
        let mut fields = line.split(',');
        let (Some(time), Some(input), Some(output)) = (fields.next(), fields.next(), fields.next())
        else {
            return Err(TraceError::line(index, "three fields are needed"));
        };
        let arrives_at = micros_of(time)
            .ok_or_else(|| TraceError::line(index, format!("'{time}' is no time")))?;
        let (input_tokens, output_tokens) = (count(index, input)?, count(index, output)?);
        workload.requests.push(Request {
            arrives_at,
            input_tokens,
            output_tokens,
            ..Request::default()
        });
    }
    Ok(workload)
}

/// Reads `Timestamp,[Session ID,Elapsed time,]Model,Request tokens,Response tokens,Total tokens,Log
/// Type`, with times in seconds. Failed requests have no response tokens, and are ignored.
pub(super) fn read_burstgpt(text: &str) -> Result<Workload, TraceError> {
    let mut workload = Workload { block_tokens: 16, ..Workload::default() };
    let header = text.lines().next().unwrap_or_default();
    let columns: Vec<&str> = header.trim().split(',').collect();
    let column = |name: &str| columns.iter().position(|one| *one == name);
    let places =
        [column("Timestamp"), column("Model"), column("Request tokens"), column("Response tokens")];
    let [Some(time), Some(model), Some(input), Some(output)] = places else {
        return Err(TraceError::line(0, "a column is missing"));
    };
    let session = column("Session ID");
    for (index, line) in rows(text) {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |place: usize| {
            fields.get(place).copied().ok_or_else(|| TraceError::line(index, "fields are missing"))
        };
        let seconds: f64 = field(time)?
            .parse()
            .map_err(|_wrong| TraceError::line(index, "the time is no number of seconds"))?;
        let (input_tokens, output_tokens) =
            (count(index, field(input)?)?, count(index, field(output)?)?);
        if output_tokens == 0 {
            continue;
        }
        let session = session.and_then(|place| fields.get(place)).filter(|name| !name.is_empty());
        workload.requests.push(Request {
            arrives_at: rounded(seconds * 1e6),
            input_tokens: input_tokens.max(1),
            output_tokens,
            model: number(&mut workload.models, field(model)?),
            // Never 0, which means no session.
            session: session.map_or(0, |name| xxhash_rust::xxh3::xxh3_64(name.as_bytes()) | 1),
            ..Request::default()
        });
    }
    Ok(workload)
}

/// Returns the lines after the header, with their numbers.
fn rows(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.lines().map(str::trim).enumerate().skip(1).filter(|(_, line)| !line.is_empty())
}

fn count(index: usize, field: &str) -> Result<u32, TraceError> {
    let number: f64 = field
        .trim()
        .parse()
        .map_err(|_wrong| TraceError::line(index, format!("'{field}' is no number of tokens")))?;
    Ok(super::super::rounded_u32(number))
}

/// Returns the microseconds since about the start of year 0: only differences matter.
pub(super) fn micros_of(time: &str) -> Option<u64> {
    let (date, clock) = time.trim().split_once([' ', 'T'])?;
    let mut date = date.split('-').map(str::parse::<u64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let clock = clock.trim_end_matches('Z').split('+').next()?;
    let mut clock = clock.split(':');
    let (hours, minutes, seconds) = (clock.next()?, clock.next()?, clock.next()?);
    let seconds: f64 = seconds.parse().ok()?;
    let hours: u64 = hours.parse().ok()?;
    let minutes: u64 = minutes.parse().ok()?;
    let days = days_before(year, month)? + day;
    let whole = (days * 24 + hours) * 60 + minutes;
    Some(whole * 60_000_000 + rounded(seconds * 1e6))
}

/// Returns the days before the first of a month, in the Gregorian calendar (Zeller's count from
/// March on).
fn days_before(year: u64, month: u64) -> Option<u64> {
    if !(1..=12).contains(&month) {
        return None;
    }
    let (year, month) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    Some(year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5)
}

#[cfg(test)]
mod tests {
    use super::super::read_trace;

    #[test]
    fn azure_has_times_and_lengths() {
        let text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-30 23:59:59.5000000,4808,10\r\n\
                    2023-12-01 00:00:01.2500000,3180,8";
        let workload = read_trace(text, 1).unwrap();
        let [first, second] = workload.requests[..] else { panic!("two requests") };
        assert_eq!((first.input_tokens, first.output_tokens), (4808, 10));
        assert_eq!(second.arrives_at - first.arrives_at, 1_750_000, "across a month's end");
        assert!(read_trace("TIMESTAMP,ContextTokens,GeneratedTokens\nx,1,2", 1).is_err());
        let february = |date: &str| super::micros_of(&format!("{date} 00:00:00")).unwrap();
        let days = february("2024-03-01") - february("2024-02-28");
        assert_eq!(days, 2 * 86_400_000_000, "2024 is a leap year");
    }

    #[test]
    fn burstgpt_has_models_and_leaves_out_failures() {
        let text = "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n\
                    5,s1,1.0,ChatGPT,472,18,490,Conversation log\n\
                    45,s2,1.0,GPT-4,1087,0,1087,API log\n\
                    118,s1,2.0,GPT-4,417,276,693,API log\n";
        let workload = read_trace(text, 1).unwrap();
        assert_eq!(workload.requests.len(), 2);
        assert_eq!(workload.models, ["ChatGPT", "GPT-4"]);
        let [first, second] = workload.requests[..] else { panic!("two requests") };
        assert_eq!((second.arrives_at, second.model), (113_000_000, 1));
        assert_eq!(first.session, second.session);
    }
}
