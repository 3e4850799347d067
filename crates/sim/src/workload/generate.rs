//! Generates requests from a workload file.

use super::sessions::{Sessions, StreamIndexes};
use super::spec::{StreamSpec, WorkloadSpec};
use super::{Workload, rounded};
use crate::engine::BLOCK_TOKENS;
use crate::random::{Purpose, RandomStream};

/// Generates the requests of a workload file. The same seed gives the same requests.
pub fn generate(spec: &WorkloadSpec, seed: u64) -> Workload {
    let mut workload = Workload { block_tokens: BLOCK_TOKENS, ..Workload::default() };
    let mut streams: Vec<Sessions<'_>> = (0_u64..)
        .zip(&spec.streams)
        .map(|(id, stream)| {
            let names = StreamIndexes {
                model: number(&mut workload.models, stream.model.as_deref().unwrap_or_default()),
                client: number(&mut workload.clients, &stream.client),
            };
            Sessions::new(stream, &names, seed, id)
        })
        .collect();
    let last = spec.duration.map_or(f64::INFINITY, |duration| duration.micros());
    let mut starts = starts(&spec.streams, seed, last);
    // Users join in the order of their first session, and keep that order in the closed loop.
    let mut users: Vec<(usize, Option<u32>)> = Vec::new();
    while workload.requests.len() < spec.limit() {
        let due = starts
            .iter_mut()
            .enumerate()
            .filter_map(|(index, arrivals)| Some((*arrivals.times.peek()?, index)));
        let Some((at, index)) = due.min() else { break };
        let Some((stream, arrivals)) = streams.get_mut(index).zip(starts.get_mut(index)) else {
            break;
        };
        arrivals.times.next();
        let session = stream.add(&mut workload, at, None);
        if arrivals.are_users {
            users.push((index, session));
        }
    }
    add_closed_loop(&mut workload, &mut streams, users, spec.limit());
    workload.requests.truncate(spec.limit());
    let kept = u32::try_from(workload.requests.len()).unwrap_or(u32::MAX);
    // Edges to requests that were cut off would release what does not exist.
    workload.edges.retain(|(_, after)| *after < kept);
    workload.edges.sort_unstable();
    workload
}

/// Adds a session for each user in turn, each after the response to the last, until there are
/// enough requests.
fn add_closed_loop(
    workload: &mut Workload,
    streams: &mut [Sessions<'_>],
    mut users: Vec<(usize, Option<u32>)>,
    limit: usize,
) {
    while !users.is_empty() && workload.requests.len() < limit {
        for (index, last) in &mut users {
            if let Some(stream) = streams.get_mut(*index) {
                *last = stream.add(workload, 0, *last);
            }
        }
    }
}

/// The start times of a stream's sessions.
struct Starts<'a> {
    times: std::iter::Peekable<Box<dyn Iterator<Item = u64> + 'a>>,
    are_users: bool,
}

fn starts(streams: &[StreamSpec], seed: u64, last: f64) -> Vec<Starts<'_>> {
    let of = |(id, stream): (u64, &'_ StreamSpec)| -> (Vec<u64>, bool) {
        let mut random = RandomStream::new(seed, Purpose::Arrivals, id);
        let pause = stream.pause.micros().max(1e6);
        let mut times: Vec<u64> =
            (0..stream.users.unwrap_or(0)).map(|_| rounded(random.uniform() * pause)).collect();
        times.sort_unstable();
        (times, stream.users.is_some())
    };
    let streams = (0_u64..).zip(streams);
    let started = streams.map(|(id, stream)| {
        let (users, are_users) = of((id, stream));
        let times: Box<dyn Iterator<Item = u64> + '_> = match &stream.arrivals {
            None => Box::new(users.into_iter()),
            Some(arrivals) => {
                let random = RandomStream::new(seed, Purpose::Arrivals, id);
                Box::new(arrivals.times(random).take_while(move |at| (*at as f64) < last))
            }
        };
        Starts { times: times.peekable(), are_users }
    });
    started.collect()
}

/// Returns the index of a name, which is appended if it is new.
pub(super) fn number<N: TryFrom<usize> + Default>(names: &mut Vec<String>, name: &str) -> N {
    let known = names.iter().position(|one| one == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    });
    N::try_from(known).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload(yaml: &str) -> Workload {
        generate(&WorkloadSpec::parse(yaml).unwrap(), 1)
    }

    const CHAT: &str = "\
requests: 400
streams:
  - arrivals: { rate: 10 }
    pause: 2s
    turns: { distribution: uniform, mean: 3, min: 1, max: 5 }
    input: 100
    output: 50
    prefix: { groups: 3, tokens: 320, popularity: 1 }
";

    #[test]
    fn turns_share_the_prefix_of_earlier_turns() {
        let chat = workload(CHAT);
        assert_eq!(chat.requests.len(), 400);
        let mut followed = 0;
        for (before, after) in &chat.edges {
            let [first, second] = [before, after].map(|id| &chat.requests[*id as usize]);
            assert_eq!(first.session, second.session);
            assert_eq!(second.input_tokens, first.input_tokens + 50 + 100);
            assert_eq!((second.follows, second.pause), (1, 2_000_000));
            let [first, second] = [first, second].map(|request| chat.prefix_of(request));
            assert_eq!(
                first,
                &second[..first.len()],
                "a longer prompt begins with the shorter one"
            );
            followed += 1;
        }
        assert!(followed > 150, "{followed}");
        let first: std::collections::BTreeSet<_> =
            chat.requests.iter().map(|request| chat.prefix_of(request)[19]).collect();
        assert_eq!(first.len(), 3, "three system prompts of 20 blocks");
        let own = chat.requests.iter().map(|request| chat.prefix_of(request)[20]);
        assert!(own.collect::<std::collections::BTreeSet<_>>().len() > 100);
    }

    #[test]
    fn same_seed_gives_the_same_requests() {
        let spec = WorkloadSpec::parse(CHAT).unwrap();
        assert_eq!(generate(&spec, 3), generate(&spec, 3));
        assert_ne!(generate(&spec, 3), generate(&spec, 4));
    }

    #[test]
    fn agents_wait_for_all_branches() {
        let agents = workload(
            "requests: 90\nstreams:\n  - arrivals: { rate: 1, process: constant }\n    \
             agent: { rounds: 2, branches: 4 }\n    input: 64\n    output: 32\n",
        );
        // The requests are a plan, four branches, and the plan of the second round, which follows
        // all four.
        assert_eq!(agents.requests[5].follows, 4);
        assert_eq!(agents.followers_of(0).collect::<Vec<_>>(), [1, 2, 3, 4]);
        assert_eq!(agents.followers_of(3).collect::<Vec<_>>(), [5]);
        let [one, two] = [1, 2].map(|id| agents.prefix_of(&agents.requests[id]));
        assert_eq!(one[..6], two[..6], "branches share the plan's 96 tokens");
        assert_ne!(one[6], two[6]);
        assert_eq!(agents.requests[5].input_tokens, 96 + 4 * 32 + 64);
    }

    #[test]
    fn users_send_one_request_after_the_other() {
        let users = workload(
            "requests: 30\nstreams:\n  - users: 10\n    pause: 1s\n    input: 10\n    output: 5\n",
        );
        assert_eq!(users.roots().len(), 10);
        assert_eq!(users.edges.len(), 20);
        assert!(users.roots().iter().all(|id| users.requests[*id as usize].arrives_at < 1_000_000));
    }

    #[test]
    fn rates_follow_the_day_and_spikes() {
        let day = workload(
            "duration: 100s\nstreams:\n  - arrivals: { rate: 100, daily: { period: 100s, peak: 50s, \
             peak_to_trough: 3 }, spikes: [{ at: 10s, lasts: 1s, times: 20 }] }\n    input: 1\n    \
             output: 1\n",
        );
        let within = |from: u64, to: u64| {
            let range = from * 1_000_000..to * 1_000_000;
            day.requests.iter().filter(|request| range.contains(&request.arrives_at)).count() as f64
        };
        assert!((within(45, 55) / 1500.0 - 1.0).abs() < 0.1, "the peak: {}", within(45, 55));
        assert!((within(0, 5) / 250.0 - 1.0).abs() < 0.2, "the trough: {}", within(0, 5));
        assert!(within(10, 11) > 900.0, "the spike: {}", within(10, 11));
    }

    #[test]
    fn wrong_files_are_refused_with_the_reason() {
        let error = |yaml: &str| WorkloadSpec::parse(yaml).unwrap_err().to_string();
        let stream = "streams:\n  - input: 1\n    output: 1\n";
        assert!(error(stream).contains("never ends"));
        assert!(error(&format!("requests: 1\n{stream}")).contains("stream 1: it needs arrivals"));
        assert!(error("requests: 1\nstreams: []").contains("no streams"));
        assert!(error(&format!("requests: 1\nsteps: 2\n{stream}")).contains("steps"));
        let rate =
            "requests: 1\nstreams:\n  - arrivals: { rate: 0 }\n    input: 1\n    output: 1\n";
        assert!(error(rate).contains("the rate of arrivals must be greater than 0"));
    }
}
