//! Reads whether an engine may cut a prompt that is longer than its context.

use penstock_api::{Dialect, Operation, Work};

use super::cursor::{Cursor, Parsed};

/// A member by which a request allows its engine to cut the prompt.
#[derive(Debug, Clone, Copy)]
pub(super) enum TruncationMember {
    /// `truncate` of Ollama's API, TEI's and others.
    Flag,
    /// `truncate_prompt_tokens` of vLLM's API.
    Length,
}

impl TruncationMember {
    pub(super) fn of(operation: Operation, name: &[u8]) -> Option<Self> {
        let row = operation.row();
        match name {
            // Ollama cuts a conversation at its messages: the context shift decides there.
            b"truncate" if row.work == Work::Inference => Some(Self::Flag),
            b"truncate_prompt_tokens" if row.dialect == Dialect::OpenAi => Some(Self::Length),
            _ => None,
        }
    }
}

/// The values of these members. A repeated one replaces the earlier value.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Truncation {
    flag: Option<bool>,
    length: Option<u32>,
}

impl Truncation {
    #[inline(never)]
    pub(super) fn read(
        &mut self,
        member: TruncationMember,
        cursor: &mut Cursor<'_>,
        kind: u8,
    ) -> Parsed {
        match (member, kind) {
            (TruncationMember::Flag, b'"') => {
                let text = cursor.string()?;
                // Some APIs name the end of the text that is cut.
                let is_none = |name: &[u8]| name.is_empty() || name.eq_ignore_ascii_case(b"none");
                self.flag = Some(!cursor.decoded(text, is_none));
                return Ok(());
            }
            (TruncationMember::Flag, _) => {
                self.flag = (kind != b'n').then_some(kind == b't');
            }
            (TruncationMember::Length, b'0'..=b'9') => {
                self.length = cursor.number()?.filter(|length| *length > 0);
                return Ok(());
            }
            // -1 stands for the context of the engine.
            (TruncationMember::Length, _) => self.length = (kind == b'-').then_some(0),
        }
        cursor.skip(kind)
    }

    /// Returns the length to which an engine may cut each prompt; 0 for that of its context.
    pub(super) fn cut_to(&self, operation: Operation) -> Option<u32> {
        let is_ollama = operation.row().dialect == Dialect::Ollama;
        let embeds = is_ollama && operation.row().work == Work::Inference;
        // Ollama cuts unless the client says no.
        self.length.or_else(|| self.flag.unwrap_or(embeds).then_some(0))
    }
}
