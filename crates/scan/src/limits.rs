//! The limits on the tokens of a response, by their names in the APIs of several engines.

use penstock_api::slices::between;

use super::cursor::{Cursor, Parsed};

/// A member that limits the response.
#[derive(Debug, Clone, Copy)]
pub(super) enum LimitMember {
    MaxCompletionTokens,
    MaxOutputTokens,
    MaxTokens,
    /// The limit that only llama.cpp has.
    Predict,
    /// `n` or `best_of`.
    Choices,
}

impl LimitMember {
    #[inline(always)]
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"max_completion_tokens" => Some(Self::MaxCompletionTokens),
            b"max_output_tokens" => Some(Self::MaxOutputTokens),
            b"max_tokens" => Some(Self::MaxTokens),
            b"n_predict" => Some(Self::Predict),
            b"n" | b"best_of" => Some(Self::Choices),
            _ => None,
        }
    }
}

/// The values of the limits.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LimitValues {
    max_completion_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
    max_tokens: Option<u32>,
    n_predict: Option<u32>,
    /// The larger of `n` and `best_of`.
    choices: Option<u32>,
}

/// Returns the number that lenient engines read in another value: a text such as `"64"`, or a
/// fraction such as `64.0`, rounded up.
#[cold]
fn lenient(value: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(value).ok()?;
    if text.starts_with('"') && text.contains('\\') {
        // No client writes a number with escapes; one that does hides it, so it is the largest.
        return Some(u32::MAX);
    }
    let text = text.strip_prefix('"').and_then(|text| text.strip_suffix('"')).unwrap_or(text);
    let number: f64 = text.trim().parse().ok()?;
    (number > 0.0).then(|| saturated(number.ceil()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "saturates")]
fn saturated(value: f64) -> u32 {
    value as u32
}

impl LimitValues {
    #[inline(never)]
    pub(super) fn read(&mut self, limit: LimitMember, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        let start = cursor.at;
        let value = match kind.is_ascii_digit() {
            true => cursor.number()?,
            false => {
                cursor.skip(kind)?;
                None
            }
        };
        let written = || lenient(between(cursor.bytes, start, cursor.at));
        let value = value.or_else(written);
        match limit {
            LimitMember::MaxCompletionTokens => self.max_completion_tokens = value,
            LimitMember::MaxOutputTokens => self.max_output_tokens = value,
            LimitMember::MaxTokens => self.max_tokens = value,
            LimitMember::Predict => self.n_predict = value,
            LimitMember::Choices => self.choices = self.choices.max(value),
        }
        Ok(())
    }

    /// Returns the first limit that is set, in the order in which OpenAI replaced them, and then
    /// llama.cpp's.
    pub(super) fn first(&self) -> Option<u32> {
        let of_openai = self.max_completion_tokens.or(self.max_output_tokens).or(self.max_tokens);
        of_openai.or(self.n_predict)
    }

    /// Returns the number of responses: the choices for each of `prompts`.
    pub(super) fn choices(&self, prompts: u64) -> u32 {
        let prompts = u32::try_from(prompts).unwrap_or(u32::MAX).max(1);
        self.choices.unwrap_or(1).max(1).saturating_mul(prompts)
    }

    /// Returns the largest number of tokens that all `choices` together can have. `own` is the
    /// limit in the dialect of the request. Engines differ in which of several limits they read, so
    /// the largest one counts.
    pub(super) fn of_output(&self, own: Option<u32>, choices: u32) -> Option<u32> {
        let of_openai = [self.max_completion_tokens, self.max_output_tokens, self.max_tokens];
        let all = of_openai.into_iter().chain([self.n_predict, own]).flatten();
        // Some engines treat 0 as no limit.
        let most = all.filter(|limit| *limit > 0).max()?;
        Some(most.saturating_mul(choices))
    }
}
