//! The most tokens that the prompt in a body can have: `usage_bounds` cuts what an engine reports to it.

use std::sync::LazyLock;

use memchr::memchr_iter;
use memchr::memmem::Finder;

use crate::api::Operation;
use crate::units::TokenCount;

/// What the template of a model may add for a message, a part or a tool.
const PER_OBJECT: usize = 64;
/// What it may add where tools are offered.
const FOR_TOOLS: usize = 512;
/// A longer body has room for a whole context: it is not searched.
const SEARCHED: usize = 131_072;

/// Parts, files and tools have a type; most bodies have none of them, and are searched no further.
static TYPE: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"type\""));
static TOOLS: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"tools\""));
/// What stands in a body that refers to something outside it, or unfolds: files, pictures, earlier items, tools that
/// the engine runs by itself.
static REFERENCES: LazyLock<[Finder<'static>; 7]> = LazyLock::new(|| {
    ["file_id\"", "url\"", "item_reference", "_search", "\"mcp\"", "\"document\"", "file_data"]
        .map(Finder::new)
});

/// The most tokens of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PromptLimit {
    /// Those that the body can make up.
    pub tokens: TokenCount,
    /// Whether the body refers to something outside it, which may fill the context.
    pub refers_outside: bool,
}

impl PromptLimit {
    /// The limit of a body. `is_whole`: whether it has no picture and continues nothing, as far as that is known.
    pub(super) fn of(operation: Operation, body: &[u8], is_whole: bool) -> Self {
        let objects = memchr_iter(b'{', body).count();
        let has_types = body.len() <= SEARCHED && TYPE.find(body).is_some();
        let refers = || REFERENCES.iter().any(|name| name.find(body).is_some());
        let refers_outside = !is_whole || (has_types && refers());
        let tools = if has_types && TOOLS.find(body).is_some() { FOR_TOOLS } else { 0 };
        let most = objects.saturating_mul(PER_OBJECT).saturating_add(body.len());
        let copies = match operation {
            // The query goes before each of the documents.
            Operation::Rerank | Operation::Score => memchr_iter(b'"', body).count() / 2 + 1,
            _ => 1,
        };
        let most = most.saturating_add(tools).saturating_mul(copies);
        Self { tokens: TokenCount(u32::try_from(most).unwrap_or(u32::MAX)), refers_outside }
    }

    /// The limit of a body that is not read.
    pub(super) fn unread() -> Self {
        Self { tokens: TokenCount::default(), refers_outside: true }
    }
}
