//! The requests of an engine.

use super::block_cache::HeldBlocks;

/// A request as a client sends it. Only the engine knows its output length.
#[derive(Debug, Clone, Copy)]
pub struct SubmittedRequest<'a> {
    /// The id of the request in events; unique among the engine's requests.
    pub id: u32,
    /// The number of prompt tokens.
    pub input_tokens: u32,
    /// The number of output tokens; at least 1.
    pub output_tokens: u32,
    /// The output limit of the request, for engines that reserve blocks.
    pub max_tokens: Option<u32>,
    /// The hashes of the prompt's whole blocks; each includes everything before it.
    pub prefix: &'a [u64],
    /// The tokens per hash: a multiple of [`BLOCK_TOKENS`](super::BLOCK_TOKENS).
    pub prefix_tokens: u32,
}

/// The reason why an engine refuses a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefuseReason {
    /// Its prompt leaves no room for an output.
    TooLong,
}

/// The phase of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Prefilling,
    /// `base` is the number of computed tokens minus the engine's number of decoding steps. It
    /// stays the same from step to step, so decoding needs no bookkeeping.
    Decoding {
        base: i64,
    },
}

/// A request within the engine.
#[derive(Debug, Clone)]
pub(super) struct EnqueuedRequest {
    pub(super) id: u32,
    /// The arrival number of the request.
    pub(super) number: u64,
    pub(super) input_tokens: u32,
    pub(super) output_tokens: u32,
    /// The maximum number of tokens of the request, for reservations.
    pub(super) longest: u32,
    /// The number of tokens whose KV is in the cache; not updated while the request decodes.
    pub(super) computed: u32,
    /// The number of tokens emitted when it last started to decode.
    pub(super) emitted: u32,
    /// The admission number of the request: a batch is served in this order.
    pub(super) order: u64,
    pub(super) phase: Phase,
    pub(super) held: HeldBlocks,
    /// The slot that it occupies, if each slot has its own cache.
    pub(super) slot_cache: Option<usize>,
    /// The number of prompt tokens that were cached at its first admission.
    pub(super) cached_tokens: Option<u32>,
}

impl EnqueuedRequest {
    pub(super) fn new(request: &SubmittedRequest<'_>, longest: u32, number: u64) -> Self {
        let room = longest.saturating_sub(request.input_tokens);
        let most = request.max_tokens.unwrap_or(room).min(room);
        Self {
            id: request.id,
            number,
            input_tokens: request.input_tokens,
            output_tokens: request.output_tokens.clamp(1, room.max(1)),
            longest: request.input_tokens.saturating_add(most),
            computed: 0,
            emitted: 0,
            order: 0,
            phase: Phase::Waiting,
            held: HeldBlocks::new(request.prefix, request.prefix_tokens, request.input_tokens),
            slot_cache: None,
            cached_tokens: None,
        }
    }

    /// Returns whether the request decodes since admission number `order`.
    pub(super) fn is_decoding(&self, order: u64) -> bool {
        matches!(self.phase, Phase::Decoding { .. }) && self.order == order
    }

    /// Returns the number of tokens to compute before the next one is emitted.
    pub(super) fn target(&self) -> u32 {
        self.input_tokens.saturating_add(self.emitted)
    }
}

/// The requests by slot; slots are reused.
#[derive(Debug, Clone, Default)]
pub(super) struct Requests {
    slots: Vec<Option<EnqueuedRequest>>,
    free: Vec<u32>,
}

impl Requests {
    pub(super) fn add(&mut self, request: EnqueuedRequest) -> u32 {
        if let Some(slot) = self.free.pop() {
            if let Some(place) = self.slots.get_mut(slot as usize) {
                *place = Some(request);
            }
            return slot;
        }
        self.slots.push(Some(request));
        let slot = u32::try_from(self.slots.len() - 1);
        debug_assert!(slot.is_ok(), "fewer requests than ids");
        slot.unwrap_or(u32::MAX)
    }

    pub(super) fn get(&self, slot: u32) -> Option<&EnqueuedRequest> {
        self.slots.get(slot as usize).and_then(Option::as_ref)
    }

    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut EnqueuedRequest> {
        self.slots.get_mut(slot as usize).and_then(Option::as_mut)
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<EnqueuedRequest> {
        let request = self.slots.get_mut(slot as usize).and_then(Option::take);
        if request.is_some() {
            self.free.push(slot);
        }
        request
    }
}
