//! The mixed load of `penstock demo --traffic`, as a table: three APIs, streams, tools, images,
//! embeddings, several models and keys, and some requests that must fail.

use rand::Rng;
use rand::rngs::SmallRng;
use serde_json::{Value, json};

/// A client of the demo: its name, its key, and the models that the key may use.
pub(super) struct DemoKey {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
    pub(super) models: &'static [&'static str],
}

const CHAT_APP: DemoKey = DemoKey { name: "chat-app", key: "demo-chat-app", models: &["*"] };
const AGENTS: DemoKey = DemoKey { name: "agents", key: "demo-agents", models: &["*"] };
const SEARCH: DemoKey =
    DemoKey { name: "search", key: "demo-search", models: &["nomic-embed-text", "llama3.2:3b"] };

/// Every key; the first one may use every model.
pub(super) const KEYS: [DemoKey; 3] = [CHAT_APP, AGENTS, SEARCH];

/// The shape of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BodyShape {
    /// `messages`
    Chat,
    /// `messages` with an image
    Image,
    /// `messages` with a tool
    Tools,
    /// `prompt`
    Prompt,
    /// `input`
    Texts,
    /// Not JSON.
    Broken,
}

/// A kind of request.
#[derive(Debug, Clone, Copy)]
struct RequestKind {
    /// The share of the kind in the load.
    weight: u32,
    path: &'static str,
    model: &'static str,
    key: &'static str,
    shape: BodyShape,
    streams: bool,
    /// True if the client disconnects in the middle of the response.
    leaves: bool,
}

const CHAT: RequestKind = RequestKind {
    weight: 12,
    path: "/v1/chat/completions",
    model: "llama3:8b",
    key: CHAT_APP.key,
    shape: BodyShape::Chat,
    streams: true,
    leaves: false,
};

const KINDS: [RequestKind; 16] = [
    CHAT,
    RequestKind { weight: 6, streams: false, ..CHAT },
    RequestKind { weight: 2, leaves: true, ..CHAT },
    RequestKind { weight: 5, model: "llava:13b", shape: BodyShape::Image, ..CHAT },
    RequestKind {
        weight: 6,
        model: "gpt-4",
        key: AGENTS.key,
        shape: BodyShape::Tools,
        streams: false,
        ..CHAT
    },
    RequestKind { weight: 4, path: "/v1/messages", key: AGENTS.key, ..CHAT },
    RequestKind {
        weight: 4,
        path: "/v1/responses",
        key: AGENTS.key,
        shape: BodyShape::Texts,
        ..CHAT
    },
    RequestKind { weight: 5, path: "/api/chat", model: "qwen2.5:14b", ..CHAT },
    RequestKind {
        weight: 4,
        path: "/api/generate",
        model: "llama3.2:3b",
        key: SEARCH.key,
        shape: BodyShape::Prompt,
        ..CHAT
    },
    RequestKind {
        weight: 6,
        path: "/v1/embeddings",
        model: "nomic-embed-text",
        key: SEARCH.key,
        shape: BodyShape::Texts,
        streams: false,
        ..CHAT
    },
    RequestKind {
        weight: 3,
        path: "/api/embed",
        model: "nomic-embed-text",
        key: SEARCH.key,
        shape: BodyShape::Texts,
        streams: false,
        ..CHAT
    },
    // These are refused: an unknown model, an image for a model without vision, invalid JSON, a key
    // that may not use the model, an unknown key.
    RequestKind { weight: 1, model: "no-backend-serves-this", ..CHAT },
    RequestKind { weight: 1, shape: BodyShape::Image, ..CHAT },
    RequestKind { weight: 1, shape: BodyShape::Broken, ..CHAT },
    RequestKind { weight: 1, key: SEARCH.key, ..CHAT },
    RequestKind { weight: 1, key: "demo-unknown", ..CHAT },
];

/// The system texts: long enough to fill blocks of the prefix index. Each conversation starts with
/// one of them.
const SYSTEM: [&str; 3] = [
    "You are the assistant of a water company. Be short, be polite, and name the regulation you rely on. ",
    "You review the code of a small team. Say what is wrong, say how to mend it, and quote the line. ",
    "You plan trips by train. Prefer fewer changes over shorter times, and mention where to eat. ",
];
const QUESTIONS: [&str; 4] = [
    "Why do rivers bend?",
    "What changed since yesterday?",
    "Write the summary for the meeting on Monday.",
    "Which of these is the cheapest, and why?",
];
/// The number of times that the start of a conversation is repeated, to make it long.
const EMPHASIS: usize = 12;
/// A PNG of one pixel.
const PIXEL: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";

/// A request of the load.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DemoRequest {
    pub(super) path: &'static str,
    pub(super) key: &'static str,
    pub(super) body: String,
    /// True if the client disconnects in the middle of the response.
    pub(super) leaves: bool,
}

/// Draws the next request. The same generator yields the same requests.
pub(super) fn draw(rng: &mut SmallRng) -> DemoRequest {
    let total: u32 = KINDS.iter().map(|kind| kind.weight).sum();
    let mut left = rng.random_range(0..total);
    let drawn = KINDS.iter().find(|kind| {
        let is_drawn = left < kind.weight;
        left = left.saturating_sub(kind.weight);
        is_drawn
    });
    let kind = drawn.unwrap_or(&CHAT);
    let body = match kind.shape {
        BodyShape::Broken => "{\"model\": ".to_owned(),
        BodyShape::Chat
        | BodyShape::Image
        | BodyShape::Tools
        | BodyShape::Prompt
        | BodyShape::Texts => body(kind, rng).to_string(),
    };
    DemoRequest { path: kind.path, key: kind.key, body, leaves: kind.leaves }
}

fn body(kind: &RequestKind, rng: &mut SmallRng) -> Value {
    let pick = |texts: &[&'static str], rng: &mut SmallRng| {
        texts.get(rng.random_range(0..texts.len())).copied().unwrap_or_default()
    };
    let system = pick(&SYSTEM, rng).repeat(EMPHASIS);
    let question = pick(&QUESTIONS, rng);
    let tokens: u32 = rng.random_range(12..60);
    let user = match kind.shape {
        BodyShape::Image => json!([
            {"type": "text", "text": question},
            {"type": "image_url", "image_url": {"url": PIXEL}},
        ]),
        BodyShape::Chat
        | BodyShape::Tools
        | BodyShape::Prompt
        | BodyShape::Texts
        | BodyShape::Broken => {
            json!(question)
        }
    };
    let mut body = match kind.shape {
        BodyShape::Prompt => json!({"prompt": format!("{system}{question}")}),
        BodyShape::Texts => json!({"input": format!("{system}{question}")}),
        // Anthropic's API has no system messages.
        BodyShape::Chat | BodyShape::Image | BodyShape::Tools | BodyShape::Broken
            if kind.path == "/v1/messages" =>
        {
            json!({"system": system, "messages": [{"role": "user", "content": user}]})
        }
        BodyShape::Chat | BodyShape::Image | BodyShape::Tools | BodyShape::Broken => {
            json!({"messages": [
                {"role": "system", "content": system},
                {"role": "user", "content": user},
            ]})
        }
    };
    let limit = match kind.path {
        "/v1/chat/completions" | "/v1/messages" => Some(("max_tokens", json!(tokens))),
        "/v1/responses" => Some(("max_output_tokens", json!(tokens))),
        "/api/chat" | "/api/generate" => Some(("options", json!({"num_predict": tokens}))),
        _ => None,
    };
    let tools = json!([{"type": "function", "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    }}]);
    if let Some(fields) = body.as_object_mut() {
        fields.insert("model".to_owned(), json!(kind.model));
        if kind.streams {
            fields.insert("stream".to_owned(), json!(true));
        }
        if kind.shape == BodyShape::Tools {
            fields.insert("tools".to_owned(), tools);
        }
        fields.extend(limit.map(|(name, value)| (name.to_owned(), value)));
    }
    body
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng;

    use super::*;

    #[test]
    fn same_seed_draws_the_same_requests() {
        let draw_some = |seed| {
            let mut rng = SmallRng::seed_from_u64(seed);
            (0..50).map(|_| draw(&mut rng)).collect::<Vec<_>>()
        };
        assert_eq!(draw_some(1), draw_some(1));
        assert_ne!(draw_some(1), draw_some(2));
    }

    #[test]
    fn demo_sends_every_kind_of_request() {
        let mut rng = SmallRng::seed_from_u64(1);
        let drawn: Vec<DemoRequest> = (0..2000).map(|_| draw(&mut rng)).collect();
        let paths: BTreeSet<&str> = drawn.iter().map(|one| one.path).collect();
        assert_eq!(paths.len(), KINDS.iter().map(|kind| kind.path).collect::<BTreeSet<_>>().len());
        for key in KEYS.iter().map(|key| key.key).chain(["demo-unknown"]) {
            assert!(drawn.iter().any(|one| one.key == key), "{key}");
        }
        assert!(drawn.iter().any(|one| one.leaves));
        let broken = |one: &&DemoRequest| serde_json::from_str::<Value>(&one.body).is_err();
        let count = drawn.iter().filter(broken).count();
        assert!((1..100).contains(&count), "{count} of 2000 are no JSON");
    }
}
