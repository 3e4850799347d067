//! penstock's own access log. `access_log.replay` adds the prefixes and sessions.

use std::collections::BTreeMap;
use std::num::ParseIntError;

use ahash::HashMap;
use penstock_core::prefix::unfold;
use serde::Deserialize;

use super::TraceError;
use super::csv::micros_of;
use crate::run::{Timing, mark_unseen};
use crate::workload::generate::number;
use crate::workload::{Request, Workload, counted_block, rounded};

/// A line of the log; fields that replay does not need are ignored.
#[derive(Debug, Deserialize)]
struct AccessLogLine {
    /// The end of the request.
    time: String,
    duration_ms: f64,
    #[serde(default)]
    model_requested: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    key: Option<String>,
    #[serde(default)]
    client: Option<String>,
    #[serde(default)]
    tokens_in: Option<u32>,
    #[serde(default)]
    tokens_out: Option<u32>,
    #[serde(default)]
    tokens_cached: Option<u32>,
    #[serde(default)]
    bytes_in: u64,
    #[serde(default)]
    ttft_ms: Option<f64>,
    #[serde(default)]
    backend: Option<String>,
    #[serde(default)]
    status: Option<u16>,
    #[serde(default)]
    outcome: Option<String>,
    #[serde(default)]
    stream: bool,
    #[serde(default)]
    replay: Replay,
}

impl AccessLogLine {
    fn is_complete(&self) -> bool {
        self.outcome.as_deref().is_none_or(|outcome| outcome == "ok")
    }
}

/// The multiple of the usual time per token from which the end of a stream that is not complete
/// shows how patient its client was, and not its engine.
const MAX_SLOWNESS: f64 = 4.0;

/// The fields that `access_log.replay` adds.
#[derive(Debug, Default, Deserialize)]
struct Replay {
    #[serde(default)]
    max_tokens: Option<u32>,
    /// The salted hashes of the prompt's blocks, folded, in hexadecimal, without separators.
    #[serde(default)]
    blocks: String,
    #[serde(default)]
    session: Option<String>,
}

/// The bytes of an estimated token.
const BYTES_PER_TOKEN: u64 = 4;

/// The hexadecimal digits of a hash.
const DIGITS: usize = 12;

impl Replay {
    fn hashes(&self) -> Result<Vec<u64>, ParseIntError> {
        let digits = self.blocks.as_bytes().chunks(DIGITS);
        let digits = digits.map(|digits| std::str::from_utf8(digits).unwrap_or_default());
        let folded: Vec<u64> =
            digits.map(|digits| u64::from_str_radix(digits, 16)).collect::<Result<_, _>>()?;
        Ok(unfold(&folded).collect())
    }
}

/// Reads the times of each backend's streams, from which an engine is learned: arrival, first token
/// and last token. The result is keyed by backend name; lines that are no stream, and streams that
/// were silent when their clients left, are ignored.
pub fn read_timings(text: &str) -> BTreeMap<String, Vec<Timing>> {
    let mut backends: BTreeMap<String, Vec<(Timing, bool)>> = BTreeMap::new();
    let mut unseen: BTreeMap<String, usize> = BTreeMap::new();
    let mut prompts = Vec::new();
    for line in text.lines() {
        let Ok(line) = serde_json::from_str::<AccessLogLine>(line) else { continue };
        if let (Some(backend), Some(200), None) = (&line.backend, line.status, line.ttft_ms) {
            *unseen.entry(backend.clone()).or_default() += 1;
        }
        let is_complete = line.is_complete();
        let counts = line.tokens_in.zip(line.tokens_out);
        let counts = counts.filter(|(input, output)| *input > 0 && *output > 0);
        let ended = micros_of(&line.time).map(|micros| micros as f64 * 1e-6);
        let (Some((input_tokens, output_tokens)), Some(last_token), Some(ttft), Some(backend)) =
            (counts, ended, line.ttft_ms, line.backend)
        else {
            continue;
        };
        let arrived = last_token - line.duration_ms * 1e-3;
        let first_token = arrived + ttft * 1e-3;
        if line.status != Some(200) || first_token > last_token {
            continue;
        }
        let Ok(prefix) = line.replay.hashes() else { continue };
        // If the blocks are unknown, the cached tokens are subtracted: only the computed part of a
        // prompt counts.
        let is_known = !prefix.is_empty();
        let cached = line.tokens_cached.filter(|_| !is_known).unwrap_or(0);
        let timing = Timing {
            arrived,
            first_token,
            last_token,
            input_tokens: input_tokens.saturating_sub(cached).max(1),
            output_tokens,
            model: line.model.or(line.model_requested).unwrap_or_default().into(),
            prefix,
            prefix_tokens: 0,
            lacks_others: false,
        };
        prompts.push((u64::from(input_tokens), line.bytes_in));
        backends.entry(backend).or_default().push((timing, is_complete));
    }
    let block = block_of(&prompts);
    let of_backend = |(name, streams): (String, Vec<(Timing, bool)>)| {
        let count = streams.len();
        let mut streams = without_silent(streams);
        let silent = count - streams.len();
        mark_unseen(&mut streams, unseen.get(&name).copied().unwrap_or_default() + silent);
        streams.iter_mut().for_each(|timing| timing.prefix_tokens = block);
        (name, streams)
    };
    backends.into_iter().map(of_backend).collect()
}

/// Returns the streams, but for those that are not complete and whose tokens took much longer than
/// those of complete ones.
fn without_silent(streams: Vec<(Timing, bool)>) -> Vec<Timing> {
    let token_time = |one: &Timing| {
        (one.last_token - one.first_token) / f64::from(one.output_tokens.saturating_sub(1).max(1))
    };
    let complete =
        streams.iter().filter(|(one, is_complete)| *is_complete && one.output_tokens > 1);
    let mut times: Vec<f64> = complete.map(|(one, _)| token_time(one)).collect();
    times.sort_by(f64::total_cmp);
    let most = times.get(times.len() / 2).map_or(f64::INFINITY, |usual| usual * MAX_SLOWNESS);
    let kept =
        streams.into_iter().filter(|(one, is_complete)| *is_complete || token_time(one) <= most);
    kept.map(|(one, _)| one).collect()
}

/// Returns the tokens of a block, from pairs of the tokens and bytes of prompts.
fn block_of(prompts: &[(u64, u64)]) -> u32 {
    let known = prompts.iter().filter(|(_, bytes)| *bytes > 0);
    counted_block(known.map(|(tokens, bytes)| (*tokens, bytes / BYTES_PER_TOKEN)))
}

pub(super) fn read(text: &str) -> Result<Workload, TraceError> {
    let mut workload = Workload::default();
    let (mut served, mut prompts) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line: AccessLogLine =
            serde_json::from_str(line).map_err(|error| TraceError::line(index, error))?;
        // A request that no engine served has no lengths.
        let counts = line.tokens_in.zip(line.tokens_out);
        let Some((input, output)) = counts.filter(|(input, output)| *input > 0 && *output > 0)
        else {
            continue;
        };
        let ended = micros_of(&line.time)
            .ok_or_else(|| TraceError::line(index, format!("'{}' is no time", line.time)))?;
        let start = workload.hashes.len() as u64;
        let hashes = line.replay.hashes().map_err(|_wrong| {
            TraceError::line(index, "replay.blocks has something else than hashes")
        })?;
        workload.hashes.extend(hashes);
        let count = u32::try_from(workload.hashes.len() as u64 - start).unwrap_or(0);
        prompts.push((u64::from(input), line.bytes_in));
        let client = line.key.as_deref().or(line.client.as_deref()).unwrap_or("client");
        let model = line.model_requested.as_deref().or(line.model.as_deref()).unwrap_or_default();
        let session = line.replay.session.as_deref();
        let request = Request {
            arrives_at: ended.saturating_sub(rounded(line.duration_ms * 1e3)),
            model: number(&mut workload.models, model),
            input_tokens: input,
            output_tokens: output,
            max_tokens: line.replay.max_tokens.unwrap_or(0),
            client: number(&mut workload.clients, client),
            // Never 0, which means no session.
            session: session.map_or(0, |name| xxhash_rust::xxh3::xxh3_64(name.as_bytes()) | 1),
            prefix: (start, count),
            is_streamed: line.stream,
            ..Request::default()
        };
        served.push(EndedRequest { request, ended_at: ended, has_follower: false });
    }
    workload.block_tokens = block_of(&prompts);
    // The log is in the order of ends.
    served.sort_by_key(|one| one.request.arrives_at);
    link_turns(&mut served, &mut workload);
    workload.requests = served.into_iter().map(|one| one.request).collect();
    Ok(workload)
}

/// A request that was served.
struct EndedRequest {
    request: Request,
    /// The time of its end, in microseconds.
    ended_at: u64,
    has_follower: bool,
}

/// Lets a request whose prompt begins with that of an earlier one of its client follow it, with the
/// pause between them: the next turn of a conversation cannot come before the response. A request
/// has one follower at most, so that prompts that only share their beginning stay apart.
fn link_turns(served: &mut [EndedRequest], workload: &mut Workload) {
    let mut last = HashMap::default();
    for id in 0..served.len() {
        let Some(request) = served.get(id).map(|one| one.request) else { return };
        let Some((own, before)) = workload.prefix_of(&request).split_last() else { continue };
        let key = |hash: u64| (request.client, request.model, hash);
        let earlier = before.iter().rev().find_map(|hash| last.get(&key(*hash)).copied());
        last.insert(key(*own), id);
        let Some((number, one)) = earlier.and_then(|at| Some((at, served.get_mut(at)?))) else {
            continue;
        };
        if one.has_follower || one.ended_at > request.arrives_at {
            continue;
        }
        one.has_follower = true;
        let (pause, first) = (request.arrives_at - one.ended_at, one.request.arrives_at);
        if let Some(one) = served.get_mut(id) {
            one.request.follows = 1;
            // It comes earlier as well, where the response does.
            one.request.arrives_at = first;
            one.request.pause = u32::try_from(pause).unwrap_or(u32::MAX);
        }
        let number_of = |id: usize| u32::try_from(id).unwrap_or(u32::MAX);
        workload.edges.push((number_of(number), number_of(id)));
    }
    workload.edges.sort_unstable();
}

#[cfg(test)]
mod tests {
    use super::super::read_trace;

    #[test]
    fn streams_that_were_silent_when_their_clients_left_show_no_engine() {
        let line = |outcome: &str, duration: u32, tokens: u32| {
            format!(
                r#"{{"time":"2026-11-23T10:00:59.000Z","model":"m","backend":"b","status":200,"stream":true,"outcome":"{outcome}","duration_ms":{duration},"ttft_ms":50,"tokens_in":100,"tokens_out":{tokens}}}
"#
            )
        };
        let complete = || line("ok", 250, 21).repeat(30);
        let tokens = |text: &str| -> Vec<u32> {
            super::read_timings(text)["b"].iter().map(|one| one.output_tokens).collect()
        };
        let text = complete() + &line("cancel", 150, 11) + &line("cancel", 30_000, 1);
        assert_eq!(tokens(&text), [vec![21; 30], vec![11]].concat(), "one is a load as any other");
        assert!(super::read_timings(&text)["b"].iter().all(|one| !one.lacks_others));
        assert_eq!(tokens(&line("cancel", 30_000, 3)), [3], "nothing to compare it with");
    }

    #[test]
    fn requests_start_before_their_lines_and_failures_have_none() {
        let text = r#"{"time":"2026-11-23T10:00:05.000Z","model_requested":"m","key":"web","status":200,"stream":true,"duration_ms":4000,"tokens_in":100,"tokens_out":20}
{"time":"2026-11-23T10:00:04.000Z","status":503,"duration_ms":1}
{"time":"2026-11-23T10:00:06.000Z","model_requested":"m","client":"10.0.0.1","duration_ms":5500.5,"tokens_in":64,"tokens_out":2,"bytes_in":512,"replay":{"max_tokens":9,"session":"a","block_tokens":64,"blocks":"000000000001000000000abc"}}
"#;
        let workload = read_trace(text, 1).unwrap();
        let [first, second] = workload.requests[..] else { panic!("two were served") };
        assert_eq!((first.input_tokens, first.arrives_at), (64, 0));
        assert_eq!(second.arrives_at, 500_500);
        assert_eq!(workload.prefix_of(&first), [1, 0xabc]);
        assert_eq!(
            (workload.block_tokens, first.max_tokens),
            (16, 9),
            "half the tokens that were estimated"
        );
        assert_ne!(first.session, 0);
        assert_eq!(workload.clients, ["web", "10.0.0.1"]);
    }

    #[test]
    fn next_turn_follows_the_one_whose_prompt_it_begins_with() {
        let line = |at: u32, duration: u32, client: &str, blocks: &[u32]| {
            let blocks: String = blocks.iter().map(|block| format!("{block:012x}")).collect();
            format!(
                r#"{{"time":"2026-11-23T10:00:{at:02}.000Z","model_requested":"m","client":"{client}","status":200,"duration_ms":{},"tokens_in":100,"tokens_out":20,"replay":{{"blocks":"{blocks}"}}}}
"#,
                duration * 1000
            )
        };
        let text = [
            line(5, 5, "a", &[1, 2]),
            line(9, 2, "a", &[1, 2, 3]),
            // A fork, a prompt that only shares the beginning, a copy, and another client.
            line(10, 2, "a", &[1, 2, 4]),
            line(12, 1, "a", &[1, 7, 8]),
            line(13, 1, "a", &[1, 2, 3]),
            line(14, 1, "b", &[1, 2, 3, 4]),
            // It comes before the response of the one it begins with.
            line(13, 4, "a", &[1, 2, 4, 5]),
            line(20, 1, "a", &[1, 2, 3, 9, 6]),
        ];
        let workload = read_trace(&text.concat(), 1).unwrap();
        let found: Vec<_> = workload.requests.iter().map(|one| (one.follows, one.pause)).collect();
        let second = 1_000_000;
        assert_eq!(workload.edges, [(0, 1), (5, 7)], "{found:?}");
        assert_eq!((found[1], found[7]), ((1, 2 * second), (1, 6 * second)));
        assert_eq!(workload.requests[1].arrives_at, 0, "it comes earlier if the response does");
    }
}
