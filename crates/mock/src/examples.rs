//! Requests to try against the demo's fleet, for the curl lines of `penstock demo`.

/// A request worth trying.
#[derive(Debug, Clone, Copy)]
pub struct Example {
    /// The behaviour it shows, without a full stop.
    pub shows: &'static str,
    /// The JSON body, free of single quotes so that it can be pasted into a shell.
    pub body: &'static str,
}

/// A PNG of two by two blue pixels, in base64.
pub(super) const PIXELS: &str = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR42mOQi1oBRAwQCgAdZgSBg2zVagAAAABJRU5ErkJggg==";

const fn chat(shows: &'static str, body: &'static str) -> Example {
    Example { shows, body }
}

/// Requests that together reach every engine of [`super::fleet`]. `gpt-4` is an alias that the
/// demo's configuration maps to `qwen2.5:14b`.
pub const EXAMPLES: [Example; 6] = [
    chat(
        "a plain question goes to the only engine with the model",
        r#"{"model": "llama3:8b", "messages": [{"role": "user", "content": "Hello!"}]}"#,
    ),
    chat(
        "the same, streamed token by token",
        r#"{"model": "llama3:8b", "stream": true, "messages": [{"role": "user", "content": "Hello!"}]}"#,
    ),
    chat(
        "an image goes to the engine that can see",
        r#"{"model": "llava:13b", "messages": [{"role": "user", "content": [{"type": "text", "text": "What is this?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR42mOQi1oBRAwQCgAdZgSBg2zVagAAAABJRU5ErkJggg=="}}]}]}"#,
    ),
    chat(
        "an alias is replaced before the engine sees it, and tools reach an engine that has them",
        r#"{"model": "gpt-4", "messages": [{"role": "user", "content": "Weather in Oslo?"}], "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]}"#,
    ),
    chat(
        "JSON mode",
        r#"{"model": "qwen2.5:14b", "response_format": {"type": "json_object"}, "messages": [{"role": "user", "content": "Response in JSON."}]}"#,
    ),
    chat(
        "an image for a model that cannot see is refused, with the reason",
        r#"{"model": "llama3:8b", "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAIAAAACCAIAAAD91JpzAAAAEElEQVR42mOQi1oBRAwQCgAdZgSBg2zVagAAAABJRU5ErkJggg=="}}]}]}"#,
    ),
];
