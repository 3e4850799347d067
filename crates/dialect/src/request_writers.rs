//! Writers of requests: one per operation that backends serve. Each prints a [`Conversation`].

pub(super) mod chat;
pub(super) mod completions;
pub(super) mod messages;
pub(super) mod ollama;
