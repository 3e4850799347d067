//! The fields that the access log keeps of a request so that it can be replayed: hashes of its
//! prompt and session, and no text. The salt is this process's own, so that hashes of two
//! processes, or of a guessed prompt, do not match.

use once_cell::sync::Lazy;
use penstock_api::mix::mix;
use penstock_core::prefix::{Chain, FOLDED_TOKENS, MAX_UNFOLDED, fold, prompt_chain};
use penstock_core::routing::ReplayFields;
use penstock_scoring::PrefixParams;

use crate::proxy::request::RequestView;

static SALT: Lazy<u64> = Lazy::new(|| ahash::RandomState::new().hash_one(FOLDED_TOKENS));

/// The fields of a request whose body is still held.
pub(super) fn replay_fields(RequestView { ctx, request }: RequestView<'_>) -> ReplayFields {
    let terms = PrefixParams {
        block_tokens: FOLDED_TOKENS,
        max_blocks: MAX_UNFOLDED,
        ..PrefixParams::default()
    };
    let names = &ctx.generation.router.names;
    let model = names.resolve(request.wanted_model(), &request.fleet, request.split);
    let mut chain = Chain::default();
    prompt_chain(&request.profile, request.body(), model, terms, &mut chain);
    ReplayFields {
        max_tokens: request.profile.max_tokens,
        session: request.session.map(|session| mix(session.root ^ *SALT)),
        block_tokens: FOLDED_TOKENS,
        blocks: fold(chain.hashes()).map(|hash| mix(hash ^ *SALT)).collect(),
    }
}
