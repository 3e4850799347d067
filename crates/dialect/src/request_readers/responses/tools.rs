//! Reads the tools of `/v1/responses`: functions, tools that take any text, and namespaces of both.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::conversation::{Tool, flat_name};
use crate::error::ConvertError;
use crate::json::{Fields, Text};

/// The tools that the platform runs itself; they are not offered to the model.
const HOSTED: &[&str] =
    &["web_search", "file_search", "code_interpreter", "image_generation", "tool_search"];

/// The tools that clients run and that only OpenAI's models know, without a schema.
const BUILT_IN: &[&str] = &["local_shell", "shell", "apply_patch", "computer", "mcp"];

/// The schema of the arguments of a tool that takes any text.
const FREE_FORM: &str = r#"{"type":"object","properties":{"input":{"type":"string"}},"required":["input"],"additionalProperties":false}"#;

const EXPECTED: &str = "a function, a custom tool or a namespace of them, with a name";

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct ResponsesTool<'a> {
    #[serde(rename = "type")]
    kind: Text<'a>,
    name: Option<Text<'a>>,
    description: Option<Text<'a>>,
    parameters: Option<&'a RawValue>,
    strict: Option<&'a RawValue>,
    /// The tools of a namespace.
    #[serde(default)]
    tools: Vec<ResponsesTool<'a>>,
}

/// Takes `tools`. Tools of a namespace get its name as a prefix: other APIs have one list.
pub(super) fn read_tools<'a>(fields: &mut Fields<'a>) -> Result<Vec<Tool<'a>>, ConvertError> {
    let tools: Vec<ResponsesTool<'_>> = fields.take_list("tools", EXPECTED)?;
    let mut list = Vec::with_capacity(tools.len());
    for (index, tool) in tools.into_iter().enumerate() {
        if &*tool.kind != "namespace" {
            list.extend(read_tool(tool, index)?);
            continue;
        }
        let invalid = ConvertError::InvalidItem { field: "tools", index, expected: EXPECTED };
        let namespace = tool.name.ok_or(invalid)?;
        for inner in tool.tools {
            if let Some(mut inner) = read_tool(inner, index)? {
                let flat = flat_name(&namespace, &inner.name).into();
                let name = std::mem::replace(&mut inner.name, flat);
                inner.namespace = Some((namespace.clone(), name));
                list.push(inner);
            }
        }
    }
    Ok(list)
}

/// Drops a `tool_choice` that forces a tool of the platform: the model is not offered that tool.
pub(super) fn discard_hosted_choice(fields: &mut Fields<'_>) {
    #[derive(Deserialize)]
    #[serde(bound(deserialize = "'de: 'a"))]
    struct ToolChoiceKind<'a> {
        #[serde(rename = "type")]
        kind: Text<'a>,
    }
    let is_hosted = |raw: &RawValue| {
        let choice = serde_json::from_str::<ToolChoiceKind<'_>>(raw.get());
        choice.is_ok_and(|choice| is_hosted(&choice.kind))
    };
    if fields.iter().any(|(name, raw)| name == "tool_choice" && is_hosted(raw)) {
        fields.discard(&["tool_choice"]);
    }
}

/// Returns whether the platform runs a tool of this type.
fn is_hosted(kind: &str) -> bool {
    // By their start, because types end in a date or a version.
    HOSTED.iter().any(|name| kind.starts_with(name))
}

/// Reads a tool; returns `None` if the platform runs it.
fn read_tool(tool: ResponsesTool<'_>, index: usize) -> Result<Option<Tool<'_>>, ConvertError> {
    let is_free_form = match &*tool.kind {
        "function" => false,
        "custom" => true,
        kind if is_hosted(kind) => return Ok(None),
        known if BUILT_IN.iter().any(|name| known.starts_with(name)) => {
            let reason = "of the tools without a schema, such as local_shell, shell, apply_patch, computer \
                 and mcp, it has none";
            return Err(ConvertError::Unsupported { field: "tools", reason });
        }
        _ => return Err(ConvertError::InvalidItem { field: "tools", index, expected: EXPECTED }),
    };
    let invalid = ConvertError::InvalidItem { field: "tools", index, expected: EXPECTED };
    let free_form = || serde_json::from_str(FREE_FORM).ok();
    Ok(Some(Tool {
        name: tool.name.ok_or(invalid)?,
        description: tool.description,
        schema: if is_free_form { free_form() } else { tool.parameters },
        strict: tool.strict,
        is_free_form,
        namespace: None,
    }))
}
