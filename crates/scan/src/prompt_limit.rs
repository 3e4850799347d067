//! The upper bound of the tokens of a prompt; `usage_bounds` cuts the counts of an engine to it.
//! All facts come from the scan. Only definitions of tools are searched, because some gateways run
//! the searches that a client defines.

use std::sync::LazyLock;

use memchr::memchr_iter;
use memchr::memmem::Finder;
use penstock_api::units::TokenCount;
use penstock_api::{Operation, Work};

use super::prompt::PromptContents;

/// The most tokens that a model's template may add for each message, and once for the whole.
const MAX_PER_MESSAGE: u64 = 64;
/// The most tokens of the system prompt that a template has for conversations without one.
const MAX_FOR_TEMPLATE: u64 = 512;
/// The most tokens that a template may add if tools are offered.
const MAX_FOR_TOOLS: u64 = 512;

/// The end of the name of a tool that a gateway may run itself.
static SEARCH: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("_search"));

/// The upper bound of a prompt's tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptLimit {
    /// The most tokens that the body itself can make up.
    pub(super) tokens: TokenCount,
    /// True if the body refers to something outside it, which may fill the context.
    pub(super) refers_outside: bool,
}

/// The parts of a body that decide on the limit.
pub(super) struct LimitFacts<'a> {
    pub(super) operation: Operation,
    pub(super) body: &'a [u8],
    pub(super) prompt: PromptContents,
    /// The definitions of tools; empty if there are none.
    pub(super) tools: &'a [u8],
    /// True if it has an image, continues a stored response or conversation, or lets the engine add
    /// to the prompt.
    pub(super) refers: bool,
}

impl PromptLimit {
    /// The limit of a JSON body.
    pub(super) fn of(facts: &LimitFacts<'_>) -> Self {
        let searches = || SEARCH.find(facts.tools).is_some();
        let refers_outside = facts.refers || facts.prompt.refers || searches();
        let is_generation = facts.operation.row().work == Work::Generation;
        let default_system = if is_generation { MAX_FOR_TEMPLATE } else { 0 };
        let template = (facts.prompt.messages + 1) * MAX_PER_MESSAGE + default_system;
        let tools = if facts.tools.is_empty() { 0 } else { MAX_FOR_TOOLS };
        let copies = match facts.operation {
            // The query is put before each of the documents.
            // Each document has at least one string, so half of the quotes bound their number.
            Operation::Rerank | Operation::Score => memchr_iter(b'"', facts.body).count() / 2 + 1,
            _ => 1,
        };
        let most = (to_u64(facts.body.len()) + template + tools).saturating_mul(to_u64(copies));
        Self { tokens: TokenCount(u32::try_from(most).unwrap_or(u32::MAX)), refers_outside }
    }

    /// The limit of a form: an upload is at least as long as its transcript.
    pub(super) fn of_form(body: &[u8]) -> Self {
        let tokens = TokenCount(u32::try_from(body.len()).unwrap_or(u32::MAX));
        Self { tokens, refers_outside: false }
    }

    /// The limit of a body that is not read.
    pub(super) fn unread() -> Self {
        Self { tokens: TokenCount::default(), refers_outside: true }
    }
}

fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}
