//! Sessions: related requests with a common prompt prefix.

use penstock_api::mix::mix;

use super::lengths::Lengths;
use super::spec::{AgentSpec, StreamSpec};
use super::{Request, Workload, rounded_u32};
use crate::engine::BLOCK_TOKENS;
use crate::random::{Purpose, RandomStream, Zipf};

/// Draws the sessions of one stream of a workload.
pub(super) struct Sessions<'a> {
    pub(super) spec: &'a StreamSpec,
    model: u16,
    client: u32,
    key: u64,
    zipf: Option<Zipf>,
    group_tokens: Vec<u32>,
    inputs: RandomStream,
    outputs: RandomStream,
    prefixes: RandomStream,
    shapes: RandomStream,
    count: u64,
}

/// The context that the next request of a session starts with.
struct Context {
    /// The seed of the block hashes that all sessions of the group share.
    group: u64,
    /// The number of tokens that they share.
    group_tokens: u32,
    /// The seed of the block hashes of this session.
    session: u64,
    /// The number of tokens so far.
    tokens: u32,
}

impl Context {
    /// Returns the hashes of the whole blocks up to `tokens`; after `fork` they belong to its
    /// branch alone.
    fn hashes(&self, tokens: u32, fork: Fork) -> impl Iterator<Item = u64> + '_ {
        (0..tokens / BLOCK_TOKENS).map(move |block| {
            let end = (block + 1) * BLOCK_TOKENS;
            let content = match () {
                // Only whole blocks are shared, as in the caches of engines.
                () if end <= self.group_tokens => self.group,
                () if end <= fork.at => self.session,
                () => fork.blocks,
            };
            mix(content.wrapping_add(u64::from(block)))
        })
    }
}

/// The indexes of a stream's model and client in the workload.
pub(super) struct StreamIndexes {
    pub(super) model: u16,
    pub(super) client: u32,
}

impl<'a> Sessions<'a> {
    pub(super) fn new(spec: &'a StreamSpec, names: &StreamIndexes, seed: u64, id: u64) -> Self {
        let mut prefixes = RandomStream::new(seed, Purpose::Prefixes, id);
        let prefix = spec.prefix.as_ref();
        Self {
            spec,
            model: names.model,
            client: names.client,
            // From 1: `mix` leaves 0 as it is, and the first stream would have the bare seed.
            key: mix(seed ^ mix(id + 1)),
            zipf: prefix.map(|prefix| Zipf::new(prefix.groups, prefix.popularity)),
            group_tokens: prefix.map_or_else(Vec::new, |prefix| {
                (0..prefix.groups).map(|_| prefix.tokens.draw(&mut prefixes)).collect()
            }),
            inputs: RandomStream::new(seed, Purpose::Inputs, id),
            outputs: RandomStream::new(seed, Purpose::Outputs, id),
            prefixes,
            shapes: RandomStream::new(seed, Purpose::Sessions, id),
            count: 0,
        }
    }

    /// Adds a session that starts at `at`, or `pause` after the request `after`. Returns its last
    /// request.
    pub(super) fn add(
        &mut self,
        workload: &mut Workload,
        at: u64,
        after: Option<u32>,
    ) -> Option<u32> {
        let context = self.start();
        match (&self.spec.agent, &self.spec.turns) {
            (Some(agent), _) => self.add_agent(workload, agent, context, Start { at, after }),
            (None, turns) => self.add_turns(workload, turns.as_ref(), context, Start { at, after }),
        }
    }

    fn start(&mut self) -> Context {
        self.count += 1;
        let session = mix(self.key ^ mix(self.count));
        let mut context = Context { group: 0, group_tokens: 0, session, tokens: 0 };
        if let (Some(zipf), Some(prefix)) = (&self.zipf, &self.spec.prefix)
            && self.prefixes.uniform() < prefix.share
        {
            let group = zipf.draw(&mut self.prefixes);
            // Rotated: a group must not have the seed of the session with the same number.
            context.group = mix(self.key.rotate_left(17) ^ mix(group + 1));
            let tokens = usize::try_from(group).ok().and_then(|group| self.group_tokens.get(group));
            context.group_tokens = tokens.copied().unwrap_or(0);
            context.tokens = context.group_tokens;
        }
        context
    }

    fn add_turns(
        &mut self,
        workload: &mut Workload,
        turns: Option<&Lengths>,
        mut context: Context,
        start: Start,
    ) -> Option<u32> {
        let turns = turns.map_or(1, |turns| turns.draw(&mut self.shapes));
        let mut last = start.after;
        for turn in 0..turns {
            let request = self.request(&mut context, start.at);
            let follows: &[u32] = match (&last, turn) {
                (Some(before), _) => std::slice::from_ref(before),
                (None, _) => &[],
            };
            let fork = request.input_tokens;
            last = push(workload, request, &context, Fork { at: fork, blocks: 0 }, follows);
            // The next turn's prompt has the whole conversation, the last response included.
            context.tokens = request.input_tokens.saturating_add(request.output_tokens);
        }
        last
    }

    fn add_agent(
        &mut self,
        workload: &mut Workload,
        agent: &AgentSpec,
        mut context: Context,
        start: Start,
    ) -> Option<u32> {
        let mut before: Vec<u32> = start.after.into_iter().collect();
        let mut last = start.after;
        for round in 0..agent.rounds.draw(&mut self.shapes) {
            let plan = self.request(&mut context, start.at);
            last =
                push(workload, plan, &context, Fork { at: plan.input_tokens, blocks: 0 }, &before);
            context.tokens = plan.input_tokens.saturating_add(plan.output_tokens);
            before = last.into_iter().collect();
            let (fork, mut results, mut branches) = (context.tokens, 0_u32, Vec::new());
            for branch in 0..agent.branches.draw(&mut self.shapes) {
                context.tokens = fork;
                let call = self.request(&mut context, start.at);
                let own = mix(context.session ^ mix(u64::from(round) << 32 | u64::from(branch)));
                branches.extend(push(
                    workload,
                    call,
                    &context,
                    Fork { at: fork, blocks: own },
                    &before,
                ));
                results = results.saturating_add(call.output_tokens);
            }
            // The next round's prompt contains the results of all branches.
            context.tokens = fork.saturating_add(results);
            before = branches;
        }
        last
    }

    fn request(&mut self, context: &mut Context, at: u64) -> Request {
        let spec = self.spec;
        let input = spec.input.draw(&mut self.inputs);
        Request {
            arrives_at: at,
            pause: rounded_u32(spec.pause.micros()),
            follows: 0,
            model: self.model,
            input_tokens: context.tokens.saturating_add(input),
            output_tokens: spec.output.draw(&mut self.outputs),
            max_tokens: spec.max_tokens,
            client: self.client,
            // Zero means no session.
            session: context.session.max(1),
            prefix: (0, 0),
            patience_ms: rounded_u32(spec.patience.micros() / 1e3),
            is_streamed: spec.streamed,
            priority: spec.priority,
        }
    }
}

/// The start of a session: a time, or the request that it follows.
struct Start {
    at: u64,
    after: Option<u32>,
}

/// The point at which a prompt leaves that of its session.
#[derive(Clone, Copy)]
struct Fork {
    /// The tokens before it.
    at: u32,
    /// The seed of the blocks after it.
    blocks: u64,
}

fn push(
    workload: &mut Workload,
    mut request: Request,
    context: &Context,
    fork: Fork,
    follows: &[u32],
) -> Option<u32> {
    let id = u32::try_from(workload.requests.len()).ok()?;
    let start = workload.hashes.len() as u64;
    let hashes = context.hashes(request.input_tokens, fork);
    workload.hashes.extend(hashes);
    request.prefix = (start, request.input_tokens / BLOCK_TOKENS);
    request.follows = u16::try_from(follows.len()).unwrap_or(u16::MAX);
    if request.max_tokens > 0 {
        // The engine would cut it there; a workload file may draw more.
        request.output_tokens = request.output_tokens.min(request.max_tokens);
    }
    workload.requests.push(request);
    workload.edges.extend(follows.iter().map(|before| (*before, id)));
    Some(id)
}
