//! Reads the tools of Anthropic's messages. Tools that the client runs have a date in place of a
//! schema: Claude knows them. Other models get them as functions with the schemas that Anthropic
//! documents, so the client sees calls with the names and arguments that it knows.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::conversation::{Conversation, Tool, ToolChoice};
use crate::error::ConvertError;
use crate::json::{Fields, Text};

/// The tools that Anthropic's platform runs; they are not offered to the model.
const HOSTED: &[&str] = &["web_search_", "web_fetch_", "code_execution_", "tool_search_tool_"];

/// A tool that clients run.
struct ClientTool {
    /// The prefix of its types. The first matching row counts.
    kind: &'static str,
    description: &'static str,
    schema: &'static str,
}

/// Source: Anthropic's documentation of each tool.
const CLIENT_TOOLS: &[ClientTool] = &[
    ClientTool {
        kind: "bash_",
        description: "Runs a command in a bash session that keeps its state between calls.",
        schema: r#"{"type":"object","properties":{"command":{"type":"string","description":"The command to run. Required unless restart is true."},"restart":{"type":"boolean","description":"Set to true to restart the session."}}}"#,
    },
    // The first versions insert `new_str`, and can undo.
    ClientTool { kind: "text_editor_20241022", description: EDITOR, schema: OLDER_EDITOR_SCHEMA },
    ClientTool { kind: "text_editor_20250124", description: EDITOR, schema: OLDER_EDITOR_SCHEMA },
    ClientTool {
        kind: "text_editor_",
        description: EDITOR,
        schema: r#"{"type":"object","properties":{"command":{"type":"string","enum":["view","create","str_replace","insert"]},"path":{"type":"string","description":"The path of the file or directory."},"view_range":{"type":"array","items":{"type":"integer"},"description":"With view: the first and the last line, from 1; -1 is the end."},"file_text":{"type":"string","description":"With create: the text of the file."},"old_str":{"type":"string","description":"With str_replace: the text to replace, which must occur exactly once."},"new_str":{"type":"string","description":"With str_replace: the text in its place."},"insert_line":{"type":"integer","description":"With insert: the line after which the text goes; 0 is the start."},"insert_text":{"type":"string","description":"With insert: the text."}},"required":["command","path"]}"#,
    },
    ClientTool {
        kind: "computer_20241022",
        description: COMPUTER,
        schema: r#"{"type":"object","properties":{"action":{"type":"string","enum":["key","type","mouse_move","left_click","left_click_drag","right_click","middle_click","double_click","screenshot","cursor_position"]},"coordinate":{"type":"array","items":{"type":"integer"},"description":"With mouse_move and left_click_drag: the pixel [x, y]."},"text":{"type":"string","description":"The text to type, or the keys to press."}},"required":["action"]}"#,
    },
    ClientTool {
        kind: "computer_20250124",
        description: COMPUTER,
        schema: r#"{"type":"object","properties":{"action":{"type":"string","enum":["screenshot","left_click","right_click","middle_click","double_click","triple_click","left_click_drag","left_mouse_down","left_mouse_up","mouse_move","cursor_position","scroll","type","key","hold_key","wait"]},"coordinate":{"type":"array","items":{"type":"integer"},"description":"The pixel [x, y] of the action, or where a drag ends."},"start_coordinate":{"type":"array","items":{"type":"integer"},"description":"With left_click_drag: the pixel where it starts."},"text":{"type":"string","description":"The text to type, the keys to press, or the keys held during a click or scroll."},"scroll_direction":{"type":"string","enum":["up","down","left","right"]},"scroll_amount":{"type":"integer"},"duration":{"type":"number","description":"With wait and hold_key: the seconds."}},"required":["action"]}"#,
    },
    ClientTool {
        kind: "computer_",
        description: COMPUTER,
        schema: r#"{"type":"object","properties":{"action":{"type":"string","enum":["screenshot","left_click","right_click","middle_click","double_click","triple_click","left_click_drag","left_mouse_down","left_mouse_up","mouse_move","cursor_position","scroll","type","key","hold_key","wait","zoom"]},"coordinate":{"type":"array","items":{"type":"integer"},"description":"The pixel [x, y] of the action, or where a drag ends."},"start_coordinate":{"type":"array","items":{"type":"integer"},"description":"With left_click_drag: the pixel where it starts."},"text":{"type":"string","description":"The text to type, the keys to press, or the keys held during a click or scroll."},"scroll_direction":{"type":"string","enum":["up","down","left","right"]},"scroll_amount":{"type":"integer"},"duration":{"type":"number","description":"With wait and hold_key: the seconds."},"region":{"type":"array","items":{"type":"integer"},"description":"With zoom: the corners [x1, y1, x2, y2]."}},"required":["action"]}"#,
    },
    ClientTool {
        kind: "memory_",
        description: "Keeps notes in files below /memories, which last from one conversation to the next. View the directory before anything else.",
        schema: r#"{"type":"object","properties":{"command":{"type":"string","enum":["view","create","str_replace","insert","delete","rename"]},"path":{"type":"string","description":"The path below /memories; not with rename."},"view_range":{"type":"array","items":{"type":"integer"},"description":"With view: the first and the last line."},"file_text":{"type":"string","description":"With create: the text of the file."},"old_str":{"type":"string","description":"With str_replace: the text to replace."},"new_str":{"type":"string","description":"With str_replace: the text in its place."},"insert_line":{"type":"integer","description":"With insert: the line after which the text goes."},"insert_text":{"type":"string","description":"With insert: the text."},"old_path":{"type":"string","description":"With rename: the path before."},"new_path":{"type":"string","description":"With rename: the path after."}},"required":["command"]}"#,
    },
];

const EDITOR: &str = "Views, creates and edits text files.";
const COMPUTER: &str = "Uses the mouse, the keyboard and screenshots of a computer.";

const OLDER_EDITOR_SCHEMA: &str = r#"{"type":"object","properties":{"command":{"type":"string","enum":["view","create","str_replace","insert","undo_edit"]},"path":{"type":"string","description":"The path of the file or directory."},"view_range":{"type":"array","items":{"type":"integer"},"description":"With view: the first and the last line, from 1; -1 is the end."},"file_text":{"type":"string","description":"With create: the text of the file."},"old_str":{"type":"string","description":"With str_replace: the text to replace, which must occur exactly once."},"new_str":{"type":"string","description":"With str_replace and insert: the new text."},"insert_line":{"type":"integer","description":"With insert: the line after which the text goes; 0 is the start."}},"required":["command","path"]}"#;

#[derive(Deserialize)]
#[serde(bound(deserialize = "'de: 'a"))]
struct AnthropicTool<'a> {
    #[serde(rename = "type")]
    kind: Option<Text<'a>>,
    name: Text<'a>,
    description: Option<Text<'a>>,
    input_schema: Option<&'a RawValue>,
    strict: Option<&'a RawValue>,
    display_width_px: Option<u32>,
    display_height_px: Option<u32>,
}

/// Takes `tools` and `tool_choice`.
pub(super) fn fill_tools<'a>(
    conversation: &mut Conversation<'a>,
    fields: &mut Fields<'a>,
) -> Result<(), ConvertError> {
    #[derive(Deserialize)]
    #[serde(bound(deserialize = "'de: 'a"))]
    struct AnthropicToolChoice<'a> {
        #[serde(rename = "type")]
        kind: Text<'a>,
        name: Option<Text<'a>>,
        disable_parallel_tool_use: Option<bool>,
    }
    const CHOICE: &str = "an object of type auto, any, tool or none";
    let tools: Vec<AnthropicTool<'_>> = fields.take_list("tools", "an object with a name")?;
    let mut hosted = HashSet::new();
    for tool in tools {
        let name = tool.name.clone();
        match read_tool(tool)? {
            Some(tool) => conversation.tools.list.push(tool),
            None => _ = hosted.insert(name.to_string()),
        }
    }
    let Some(choice) = fields.take_as::<AnthropicToolChoice<'_>>("tool_choice", CHOICE)? else {
        return Ok(());
    };
    conversation.tools.parallel = choice.disable_parallel_tool_use.map(|disabled| !disabled);
    let invalid = ConvertError::Invalid { field: "tool_choice", expected: CHOICE };
    conversation.tools.choice = match (&*choice.kind, choice.name) {
        ("auto", _) => Some(ToolChoice::Auto),
        ("none", _) => Some(ToolChoice::None),
        ("any", _) => Some(ToolChoice::Required),
        // The model cannot call what it is not offered.
        ("tool", Some(name))
            if hosted.contains(&*name)
                && !conversation.tools.list.iter().any(|tool| *tool.name == *name) =>
        {
            None
        }
        ("tool", Some(name)) => Some(ToolChoice::Named(name)),
        _ => return Err(invalid),
    };
    Ok(())
}

/// Reads a tool; returns `None` if the platform runs it.
fn read_tool(mut tool: AnthropicTool<'_>) -> Result<Option<Tool<'_>>, ConvertError> {
    let kind = tool.kind.take();
    if let Some(kind) = kind.filter(|kind| &**kind != "custom") {
        let starts = |start: &str| kind.starts_with(start);
        if HOSTED.iter().any(|start| starts(start)) {
            return Ok(None);
        }
        let Some(known) = CLIENT_TOOLS.iter().find(|known| starts(known.kind)) else {
            let reason = "a tool has a type that only Anthropic's models know";
            return Err(ConvertError::Unsupported { field: "tools", reason });
        };
        tool.input_schema = serde_json::from_str(known.schema).ok();
        let screen = tool.display_width_px.zip(tool.display_height_px);
        let screen = screen.map(|(x, y)| format!(" The screen has {x} x {y} pixels."));
        tool.description =
            Some((known.description.to_owned() + &screen.unwrap_or_default()).into());
    }
    Ok(Some(Tool {
        name: tool.name,
        description: tool.description,
        schema: tool.input_schema,
        strict: tool.strict,
        is_free_form: false,
        namespace: None,
    }))
}
