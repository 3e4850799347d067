//! The members that exist only in Ollama's own API: options, format, images, `keep_alive`.

use super::cursor::{Cursor, Members, Parsed, Syntax};
use super::twin::twin_among;

/// A member of the body of an Ollama request.
#[derive(Debug, Clone, Copy)]
pub(super) enum OllamaMember {
    Format,
    Options,
    KeepAlive,
    Images,
}

impl OllamaMember {
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        match name {
            b"format" => Some(Self::Format),
            b"options" => Some(Self::Options),
            b"keep_alive" => Some(Self::KeepAlive),
            b"images" => Some(Self::Images),
            _ => None,
        }
    }
}

/// The values of these members.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct OllamaFacts {
    /// `options.num_predict`, if it is a limit.
    pub(super) num_predict: Option<u32>,
    /// `options.num_ctx`.
    pub(super) num_ctx: Option<u32>,
    /// True if `format` requests JSON.
    pub(super) wants_json: bool,
    /// The length of `format` as JSON.
    pub(super) schema: u64,
    /// The number of `images`.
    pub(super) images: u64,
    /// True if `keep_alive` is zero: the model is unloaded after the request.
    pub(super) unloads: bool,
    /// The field that a member of `options` is a twin of, or `options` if it is repeated.
    pub(super) twin: Option<&'static str>,
    has_options: bool,
}

impl OllamaFacts {
    #[inline(never)]
    pub(super) fn read(
        &mut self,
        member: OllamaMember,
        cursor: &mut Cursor<'_>,
        kind: u8,
    ) -> Parsed {
        match member {
            OllamaMember::Format => {
                self.wants_json = is_filled(cursor, kind)?;
                self.schema = if kind == b'{' { cursor.weight.as_json() } else { 0 };
                Ok(())
            }
            OllamaMember::Images => {
                self.images = count_images(cursor, kind)?;
                Ok(())
            }
            OllamaMember::KeepAlive => {
                let start = cursor.at;
                cursor.skip(kind)?;
                let value = cursor.bytes.get(start..cursor.at).unwrap_or_default();
                self.unloads = is_zero_duration(value);
                Ok(())
            }
            OllamaMember::Options => self.read_options(cursor, kind),
        }
    }

    fn read_options(&mut self, cursor: &mut Cursor<'_>, kind: u8) -> Parsed {
        // Go merges the members of a repeated object into the first one.
        if std::mem::replace(&mut self.has_options, true) {
            self.twin = Some("options");
        }
        (self.num_predict, self.num_ctx) = (None, None);
        if kind != b'{' {
            return cursor.skip(kind);
        }
        cursor.members(Members::named(OptionMember::of), |cursor, member, kind| {
            let slot = match member {
                OptionMember::NumPredict => &mut self.num_predict,
                OptionMember::NumCtx => &mut self.num_ctx,
                OptionMember::Twin(field) => {
                    self.twin = Some(field);
                    return cursor.skip(kind);
                }
                OptionMember::Other => return cursor.skip(kind),
            };
            // A repeated member replaces the earlier one, whatever its type.
            *slot = None;
            if !kind.is_ascii_digit() {
                return cursor.skip(kind);
            }
            *slot = cursor.number()?.filter(|count| *count > 0);
            Ok(())
        })
    }
}

#[derive(Debug, Clone, Copy)]
enum OptionMember {
    NumPredict,
    NumCtx,
    Twin(&'static str),
    Other,
}

impl OptionMember {
    fn of(name: &[u8]) -> Self {
        match name {
            b"num_predict" => Self::NumPredict,
            b"num_ctx" => Self::NumCtx,
            _ => twin_among(name, &["num_predict", "num_ctx"]).map_or(Self::Other, Self::Twin),
        }
    }
}

/// Consumes a value. Returns whether it is a non-empty string, array or object.
pub(super) fn is_filled(cursor: &mut Cursor<'_>, kind: u8) -> Result<bool, Syntax> {
    let start = cursor.at;
    cursor.skip(kind)?;
    let value = cursor.bytes.get(start..cursor.at).unwrap_or_default();
    Ok(matches!(kind, b'"' | b'[' | b'{') && !is_empty(value))
}

/// Consumes a value that may be cut off. Returns whether it is a non-empty string, array or object,
/// as far as it came.
pub(super) fn is_filled_so_far(cursor: &mut Cursor<'_>, kind: u8) -> bool {
    let start = cursor.at;
    is_filled(cursor, kind).unwrap_or_else(|_cut| {
        let inner = cursor.bytes.get(start + 1..).unwrap_or_default();
        match kind {
            b'"' => !inner.is_empty(),
            b'[' | b'{' => !inner.trim_ascii().is_empty(),
            _ => false,
        }
    })
}

/// Consumes a list of images. Returns their number.
pub(super) fn count_images(cursor: &mut Cursor<'_>, kind: u8) -> Result<u64, Syntax> {
    let is_filled = is_filled(cursor, kind)?;
    let count = if kind == b'[' { cursor.weight.values } else { 1 };
    Ok(if is_filled { count.max(1) } else { 0 })
}

/// Returns whether a value is missing, null, an empty string, or an empty array.
pub(super) fn is_empty(value: &[u8]) -> bool {
    match value {
        [] | b"null" => true,
        [b'"', inner @ .., b'"'] => inner.is_empty(),
        [b'[', inner @ .., b']'] | [b'{', inner @ .., b'}'] => inner.trim_ascii().is_empty(),
        _ => false,
    }
}

/// Returns whether a value is the number zero, or a string like `0s` or `0h0m`.
fn is_zero_duration(value: &[u8]) -> bool {
    let is_text =
        |byte: &u8| matches!(byte, b'"' | b'.' | b'-' | b'+') || byte.is_ascii_lowercase();
    let digits = || value.iter().filter(|byte| byte.is_ascii_digit());
    digits().next().is_some()
        && digits().all(|digit| *digit == b'0')
        && value.iter().all(|byte| byte.is_ascii_digit() || is_text(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_of_zero_unload() {
        for zero in ["0", "-0", "0.0", "\"0\"", "\"0s\"", "\"0h0m\""] {
            assert!(is_zero_duration(zero.as_bytes()), "{zero}");
        }
        for other in ["1", "-1", "0.5", "\"5m\"", "\"10s\"", "null", "\"\"", "[0]"] {
            assert!(!is_zero_duration(other.as_bytes()), "{other}");
        }
    }
}
