//! Mooncake's and Bailian's traces: a JSON object per line and request.

use std::collections::BTreeMap;

use penstock_api::mix::mix;
use serde::Deserialize;

use super::TraceError;
use crate::random::{Purpose, RandomStream};
use crate::workload::{Request, Workload, rounded};

/// The units of a trace.
#[derive(Debug, Clone, Copy)]
pub(super) struct TraceUnits {
    /// The number of microseconds per unit of `timestamp`.
    micros: f64,
    /// The tokens of a block.
    block: u32,
}

/// Mooncake counts milliseconds, and blocks of 512 tokens.
pub(super) const MOONCAKE: TraceUnits = TraceUnits { micros: 1e3, block: 512 };
/// Bailian counts seconds, and blocks of 16 tokens.
pub(super) const BAILIAN: TraceUnits = TraceUnits { micros: 1e6, block: 16 };

/// A line of the trace. Unknown fields are ignored: traces have further ones.
#[derive(Debug, Deserialize)]
struct TraceLine {
    #[serde(default)]
    timestamp: Option<f64>,
    input_length: u32,
    output_length: u32,
    #[serde(default)]
    hash_ids: Vec<i64>,
    /// Agents: the name of this request, and the requests it waits for in `wait_for`.
    #[serde(default)]
    request_id: Option<String>,
    #[serde(default)]
    wait_for: Vec<String>,
    /// The pause after those requests, in milliseconds.
    #[serde(default, alias = "delay")]
    delay_ms: Option<f64>,
    #[serde(default)]
    tool_wait_ms: Option<f64>,
    /// Closed loop: the next request of a session waits for the previous one.
    #[serde(default)]
    session_id: Option<String>,
    #[serde(default)]
    chat_id: Option<i64>,
    #[serde(default)]
    parent_chat_id: Option<i64>,
}

/// The requests, sessions and chats that later lines refer to.
#[derive(Default)]
struct KnownIds {
    requests: BTreeMap<String, u32>,
    sessions: BTreeMap<String, u32>,
    chats: BTreeMap<i64, u32>,
}

pub(super) fn read(text: &str, seed: u64, units: TraceUnits) -> Result<Workload, TraceError> {
    let mut workload = Workload { block_tokens: units.block, ..Workload::default() };
    let mut known = KnownIds::default();
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let line: TraceLine =
            serde_json::from_str(line).map_err(|error| TraceError::line(index, error))?;
        let id = u32::try_from(workload.requests.len())
            .map_err(|_too_many| TraceError::line(index, "too many requests"))?;
        let follows = known.follow(&line, id).map_err(|reason| TraceError::line(index, reason))?;
        if line.timestamp.is_none() && follows.is_empty() {
            return Err(TraceError::line(index, "it has neither a timestamp nor a predecessor"));
        }
        let whole = line.input_length / units.block;
        let start = workload.hashes.len() as u64;
        let hashes = line.hash_ids.iter().take(whole as usize);
        // Small numbers in the trace: as hashes they would all be alike in their upper bits.
        workload.hashes.extend(hashes.map(|hash| mix(hash.cast_unsigned().wrapping_add(1))));
        let count = u32::try_from(workload.hashes.len() as u64 - start).unwrap_or(whole);
        workload.requests.push(Request {
            arrives_at: rounded(line.timestamp.unwrap_or(0.0) * units.micros),
            pause: line.pause(),
            follows: u16::try_from(follows.len()).unwrap_or(u16::MAX),
            input_tokens: line.input_length.max(1),
            output_tokens: line.output_length.max(1),
            session: line.session(),
            prefix: (start, count),
            ..Request::default()
        });
        workload.edges.extend(follows.iter().map(|before| (*before, id)));
    }
    spread(&mut workload, seed);
    Ok(workload)
}

impl TraceLine {
    fn pause(&self) -> u32 {
        let millis = self.delay_ms.unwrap_or(0.0) + self.tool_wait_ms.unwrap_or(0.0);
        u32::try_from(rounded(millis * 1e3)).unwrap_or(u32::MAX)
    }

    fn session(&self) -> u64 {
        // Never 0, which means no session.
        let chat = self.chat_id.map(|chat| mix(chat.cast_unsigned()) | 1);
        let session = self.session_id.as_ref();
        let named = session.map(|name| xxhash_rust::xxh3::xxh3_64(name.as_bytes()) | 1);
        named.or(chat).unwrap_or(0)
    }
}

impl KnownIds {
    /// Returns the numbers of the requests that a line follows, and registers the line for later
    /// ones.
    fn follow(&mut self, line: &TraceLine, id: u32) -> Result<Vec<u32>, String> {
        let mut follows = Vec::new();
        for name in &line.wait_for {
            let before = self.requests.get(name);
            follows.push(
                *before.ok_or_else(|| format!("it waits for '{name}', which is not before it"))?,
            );
        }
        if let Some(name) = &line.request_id {
            self.requests.insert(name.clone(), id);
        }
        if let Some(session) = &line.session_id {
            let before = self.sessions.insert(session.clone(), id);
            // Where the trace names predecessors, the order of the session adds nothing.
            follows.extend(before.filter(|_| line.wait_for.is_empty()));
        }
        if let Some(chat) = line.chat_id {
            // A parent of -1 means none.
            follows.extend(line.parent_chat_id.and_then(|parent| self.chats.get(&parent)).copied());
            self.chats.insert(chat, id);
        }
        follows.sort_unstable();
        // A predecessor that is named twice would be awaited twice, and end once.
        follows.dedup();
        Ok(follows)
    }
}

/// Spreads requests with the same time evenly at random up to the next time. Mooncake's were
/// recorded in batches of three seconds; left as they are, the batches would decide which strategy
/// wins.
fn spread(workload: &mut Workload, seed: u64) {
    let mut times: Vec<u64> = workload.requests.iter().map(|request| request.arrives_at).collect();
    times.sort_unstable();
    let mut stream = RandomStream::new(seed, Purpose::Arrivals, 0);
    let mut start = 0;
    while let Some(at) = workload.requests.get(start).map(|request| request.arrives_at) {
        let same = workload.requests.iter().skip(start);
        let count =
            same.take_while(|request| request.arrives_at == at && request.follows == 0).count();
        let next = times.get(times.partition_point(|time| *time <= at)).copied();
        if count > 1
            && let Some(next) = next
        {
            let mut drawn: Vec<u64> = (0..count).map(|_| at + stream.below(next - at)).collect();
            drawn.sort_unstable();
            let batch = workload.requests.iter_mut().skip(start).zip(drawn);
            batch.for_each(|(request, at)| request.arrives_at = at);
        }
        start += count.max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_trace;
    use super::*;

    #[test]
    fn batches_are_spread_and_blocks_are_whole() {
        let text = "{\"timestamp\": 5000, \"input_length\": 1000, \"output_length\": 7, \"hash_ids\": [0, 1]}\n\
                    {\"timestamp\": 5000, \"input_length\": 1024, \"output_length\": 9, \"hash_ids\": [0, 2]}\n\
                    {\"timestamp\": 8000, \"input_length\": 4, \"output_length\": 1, \"hash_ids\": [3]}\n";
        let workload = read_trace(text, 1).unwrap();
        let [first, second, last] = workload.requests[..] else { panic!("three requests") };
        assert_eq!(first.arrives_at, 0, "time starts with the first request");
        assert!((1..3_000_000).contains(&second.arrives_at), "{}", second.arrives_at);
        assert!((1..=3_000_000).contains(&last.arrives_at));
        assert_eq!(workload.prefix_of(&first), [mix(1)], "the second block is not whole");
        assert_eq!(workload.prefix_of(&second), [mix(1), mix(3)]);
        assert_eq!(workload.block_tokens, 512);
        assert_eq!(read_trace(text, 1), read_trace(text, 1));
        assert_ne!(read_trace(text, 1), read_trace(text, 2));
    }

    #[test]
    fn sessions_agents_and_chats_wait_for_each_other() {
        let agents = "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 7, \"request_id\": \"a\"}\n\
                      {\"input_length\": 9, \"output_length\": 7, \"request_id\": \"b\", \"wait_for\": [\"a\"], \
                      \"delay\": 5, \"tool_wait_ms\": 20}\n";
        let workload = read_trace(agents, 1).unwrap();
        assert_eq!(workload.edges, [(0, 1)]);
        assert_eq!(workload.requests[1].pause, 25_000);
        let chats = "{\"chat_id\": 1, \"parent_chat_id\": -1, \"timestamp\": 0.5, \"input_length\": 33, \
                     \"output_length\": 7, \"hash_ids\": [5, 6, 7]}\n\
                     {\"chat_id\": 2, \"parent_chat_id\": 1, \"timestamp\": 1.5, \"input_length\": 9, \
                     \"output_length\": 7, \"hash_ids\": [5]}\n";
        let workload = read_trace(chats, 1).unwrap();
        assert_eq!((workload.block_tokens, workload.edges.as_slice()), (16, &[(0, 1)][..]));
        assert_eq!(workload.requests[1].arrives_at, 1_000_000);
        assert_eq!(workload.requests[0].prefix.1, 2);
        let wrong =
            "{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 7, \"wait_for\": [\"x\"]}";
        assert!(read_trace(wrong, 1).unwrap_err().to_string().contains("line 1: it waits for 'x'"));
    }

    #[test]
    fn recorded_conversations_share_their_first_block() {
        let head = include_str!("../../../../../tests/data/mooncake-conversation.head120.jsonl");
        let workload = read_trace(head, 1).unwrap();
        assert_eq!(workload.requests.len(), 120);
        let first = workload.hashes[0];
        let shares =
            workload.requests.iter().filter(|one| workload.prefix_of(one).first() == Some(&first));
        assert_eq!(shares.count(), workload.requests.iter().filter(|one| one.prefix.1 > 0).count());
    }
}
