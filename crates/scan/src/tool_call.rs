//! The output that the members of a message carry: text, or tool calls, which have to call
//! something.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::member_name::members_called;
use super::ollama::is_filled_so_far;

/// The name of a function in a call.
static NAME: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new("\"name\""));
/// The arguments of a function, and the input of a tool of another type.
static ARGUMENTS: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| ["\"arguments\"", "\"input\""].map(Finder::new));

/// The output in a member of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemberOutput {
    Nothing,
    Text,
    Calls,
}

impl MemberOutput {
    /// The output in a member of this name, if the others carry `other`.
    pub(super) fn by(name: &[u8], other: Self) -> Self {
        match name {
            b"tool_calls" | b"function_call" => Self::Calls,
            _ => other,
        }
    }

    /// Returns whether a value that is not empty is output.
    #[inline(always)]
    pub(super) fn is_output(self, value: &[u8]) -> bool {
        match self {
            Self::Nothing => false,
            Self::Text => true,
            Self::Calls => has_call(value),
        }
    }
}

/// Returns whether a call names a function or has arguments, as far as it came, or has neither
/// member: its form is not known then.
fn has_call(calls: &[u8]) -> bool {
    let mut is_known = false;
    for part in ARGUMENTS.iter().chain([&*NAME]) {
        for mut cursor in members_called(part, calls) {
            is_known = true;
            let kind = cursor.peek();
            if is_filled_so_far(&mut cursor, kind) {
                return true;
            }
        }
    }
    !is_known
}

/// Returns whether an item or a block is a call of nothing: its name is empty, and so are its
/// arguments.
pub(super) fn is_empty_call(item: &[u8]) -> bool {
    members_called(&NAME, item).next().is_some() && !has_call(item)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_have_a_name_or_arguments() {
        for (calls, expected) in [
            (r#"[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]"#, true),
            (r#"[{"index":0,"function":{"arguments":"{"}}]"#, true),
            (r#"[{"function":{"name": "","arguments":{"a":1}}}]"#, true),
            (r#"[{"type":"custom","custom":{"name":"","input":"a"}}]"#, true),
            (r#"[{"function":{"name":"","arguments":"a"#, true),
            (r#"{"name":"f","arguments":""}"#, true),
            (r#"[{"index":0,"id":"c","function":{"name":"","arguments":""}}]"#, false),
            (r#"[{"function":{"name":"","arguments":{ }}}]"#, false),
            (r#"[{"function":{"name":null,"arguments":null}}]"#, false),
            (r#"[{"id":"\"name\":\"f\"","function":{"name":""}}]"#, false),
            (r#"[{"id":"c","code":"print(1)"}]"#, true),
        ] {
            assert_eq!(MemberOutput::Calls.is_output(calls.as_bytes()), expected, "{calls}");
        }
    }
}
