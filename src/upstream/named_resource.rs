//! Finds whether a body names something that only some backend has: a stored response, a file, a
//! container. A tool's schema that describes parameters of the same names does not count.

use memchr::memmem;

/// Members whose value is the id of such a thing, or a list of ids.
const MEMBERS: [&str; 5] = [
    "\"previous_response_id\"",
    "\"conversation\"",
    "\"file_id\"",
    "\"vector_store_ids\"",
    "\"container\"",
];
/// The starts of ids that are members of an object, and the type of an item that is one.
const STARTS: [&str; 3] = ["\"conv_", "\"pmpt_", "\"item_reference\""];

/// Returns whether a request names such a thing, or looks like it.
pub(crate) fn names_resource(body: &[u8]) -> bool {
    MEMBERS.iter().any(|member| {
        let mut found = memmem::find_iter(body, member.as_bytes());
        found.any(|at| body.get(at + member.len()..).is_some_and(is_id))
    }) || STARTS.iter().any(|start| memmem::find(body, start.as_bytes()).is_some())
}

/// Returns whether a colon and a string or a list follow; a schema is an object.
fn is_id(rest: &[u8]) -> bool {
    let rest = rest.trim_ascii_start().strip_prefix(b":").map(<[u8]>::trim_ascii_start);
    rest.is_some_and(|value| matches!(value.first(), Some(b'"' | b'[')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_resources_and_schemas_are_none() {
        for body in [
            r#"{"previous_response_id" : "resp_1"}"#,
            r#"{"conversation":"conv_1"}"#,
            r#"{"conversation":{"id":"conv_1"}}"#,
            r#"{"prompt":{"id":"pmpt_1"}}"#,
            r#"{"input":[{"type":"item_reference","id":"msg_1"}]}"#,
            r#"{"content":[{"type":"input_file","file_id":"file-1"}]}"#,
            r#"{"tools":[{"type":"file_search","vector_store_ids":["vs_1"]}]}"#,
            r#"{"container":"container_1"}"#,
        ] {
            assert!(names_resource(body.as_bytes()), "{body}");
        }
        for body in [
            r#"{"tools":[{"input_schema":{"properties":{"prompt":{"type":"string"}}}}]}"#,
            r#"{"tools":[{"input_schema":{"properties":{"file_id":{"type":"string"}},"required":["file_id"]}}]}"#,
            r#"{"tools":[{"parameters":{"properties":{"conversation":{},"container": {"type":"object"}}}}]}"#,
            r#"{"previous_response_id":null}"#,
            r#"{"messages":[{"role":"user","content":"a \"file_id\": \"x\""}]}"#,
        ] {
            assert!(!names_resource(body.as_bytes()), "{body}");
        }
    }
}
