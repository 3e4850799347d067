//! `/api/generate` on backends with `/v1`, and `/v1/completions` on Ollama's own API.

use penstock_api::Engine;
use penstock_api::Operation::{Chat, Completions, Messages, OllamaGenerate};
use serde_json::{Value, json};

use super::{
    convert, convert_for, events, lines, ndjson, refused, respond, respond_whole, sse, stream_terms,
};
use crate::ConvertError;

fn generate(fields: Value) -> Value {
    let mut body = json!({"model": "m", "prompt": "hi"});
    body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    body
}

#[test]
fn prompt_with_a_template_becomes_a_chat() {
    let fields = json!({
        "system": "be brief", "images": ["iVBORw0KGgoAAAAN"], "options": {"seed": 1}, "think": true,
    });
    let (body, converted) =
        convert_for(Engine::LlamaCpp, OllamaGenerate, Chat, &generate(fields)).unwrap();
    assert_eq!(converted.operation, Chat);
    assert_eq!(
        body["messages"],
        json!([
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [
                {"type": "text", "text": "hi"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAAN"}},
            ]},
        ])
    );
    assert_eq!(body["seed"], 1);
}

#[test]
fn raw_prompts_and_gaps_become_completions() {
    for (fields, suffix) in
        [(json!({"raw": true}), Value::Null), (json!({"suffix": "}"}), json!("}"))]
    {
        for target in [Chat, Completions] {
            let body = generate(fields.clone());
            let (body, converted) =
                convert_for(Engine::LlamaCpp, OllamaGenerate, target, &body).unwrap();
            assert_eq!(converted.operation, Completions);
            assert_eq!(body["prompt"], "hi");
            assert_eq!(body["suffix"], suffix);
            assert_eq!(body.get("messages"), None);
        }
    }
    let logprobs = generate(json!({"raw": true, "logprobs": true, "top_logprobs": 3}));
    assert_eq!(convert(OllamaGenerate, Completions, &logprobs)["logprobs"], 3);
}

#[test]
fn prompts_are_plain_where_only_completions_are_served() {
    let body = convert(OllamaGenerate, Completions, &generate(json!({})));
    assert_eq!(body["prompt"], "hi");
    for (field, fields) in [
        ("system", json!({"system": "x"})),
        ("images", json!({"images": ["iVBORw0KGgoAAAAN"]})),
        ("format", json!({"format": "json"})),
        ("think", json!({"think": true})),
    ] {
        assert_eq!(refused(OllamaGenerate, Completions, &generate(fields)), field);
    }
}

#[test]
fn what_only_ollama_can_do_is_refused() {
    for (field, fields) in [
        ("template", json!({"template": "{{ .Prompt }}"})),
        ("context", json!({"context": [1, 2]})),
        ("template", json!({"template": "x", "raw": true})),
        ("system", json!({"system": "x", "raw": true})),
        ("images", json!({"images": ["iVBORw0KGgoAAAAN"], "suffix": "x"})),
        ("prompt", json!({"prompt": 5})),
    ] {
        assert_eq!(refused(OllamaGenerate, Chat, &generate(fields.clone())), field, "{fields}");
    }
    let empty = generate(json!({"template": "", "context": [], "system": "", "suffix": ""}));
    assert_eq!(convert(OllamaGenerate, Chat, &empty)["messages"][0]["content"], "hi");
    assert_eq!(refused(OllamaGenerate, Messages, &generate(json!({"raw": true}))), "prompt");
}

#[test]
fn empty_prompts_load_a_model_and_are_not_converted() {
    for body in [json!({"model": "m"}), json!({"model": "m", "prompt": ""})] {
        let error = convert_for(Engine::Vllm, OllamaGenerate, Chat, &body).unwrap_err();
        assert_eq!(error, ConvertError::Empty { field: "prompt" });
    }
}

#[test]
fn chat_stream_becomes_lines_of_generate() {
    let chunk = |delta: Value, finish: Option<&str>| json!({"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]});
    let stream = sse(&[
        chunk(json!({"reasoning": "hm"}), None),
        chunk(json!({"content": "a"}), None),
        chunk(json!({}), Some("stop")),
    ]);
    let lines = lines(&respond((OllamaGenerate, Chat), &stream_terms(), &stream));
    assert_eq!(lines[0]["thinking"], "hm");
    assert_eq!(lines[0]["response"], "");
    assert_eq!(lines[1]["response"], "a");
    assert_eq!(lines[2]["done"], true);
    assert_eq!(lines[2].get("context"), None);
    assert_eq!(lines[2].get("message"), None);
}

#[test]
fn completion_becomes_a_response_of_generate() {
    let choice = json!({
        "index": 0, "text": "ab", "finish_reason": "length",
        "logprobs": {
            "tokens": ["a", "b"], "token_logprobs": [null, -0.5], "text_offset": [0, 1],
            "top_logprobs": [null, {"b": -0.5, "c": -2.0}],
        },
    });
    let body = json!({"choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 2}});
    let whole = respond_whole((OllamaGenerate, Completions), &body);
    assert_eq!(whole["response"], "ab");
    assert_eq!(whole["done_reason"], "length");
    assert_eq!(whole["eval_count"], 2);
    assert_eq!(
        whole["logprobs"][1],
        json!({
            "token": "b", "logprob": -0.5, "bytes": [98],
            "top_logprobs": [
                {"token": "b", "logprob": -0.5, "bytes": [98]},
                {"token": "c", "logprob": -2.0, "bytes": [99]},
            ],
        })
    );
    let stream = sse(&[
        json!({"choices": [{"index": 0, "text": "a", "finish_reason": null}]}),
        json!({"choices": [{"index": 0, "text": "", "finish_reason": "stop"}]}),
    ]) + "data: [DONE]\n\n";
    let lines = lines(&respond((OllamaGenerate, Completions), &stream_terms(), &stream));
    assert_eq!(lines[0]["response"], "a");
    assert_eq!(lines.len(), 2);
}

#[test]
fn completions_become_raw_prompts_of_ollama() {
    let body = json!({
        "model": "m", "prompt": ["once"], "max_tokens": 5, "logprobs": 2, "stop": "x", "echo": false,
    });
    let body = convert(Completions, OllamaGenerate, &body);
    assert_eq!(
        body,
        json!({
            "model": "backend-model", "prompt": "once", "raw": true, "stream": false,
            "options": {"temperature": 1.0, "top_p": 1.0, "num_predict": 5, "stop": ["x"]},
            "logprobs": true, "top_logprobs": 2,
        })
    );
    let gap = json!({"model": "m", "prompt": "f(", "suffix": ")"});
    let gap = convert(Completions, OllamaGenerate, &gap);
    assert_eq!(gap["suffix"], ")");
    assert_eq!(gap.get("raw"), None, "the model's template has the marks around the gap");
    for (field, value) in [
        ("prompt", json!([1, 2])),
        ("prompt", json!(["a", "b"])),
        ("echo", json!(true)),
        ("best_of", json!(3)),
        ("n", json!(3)),
    ] {
        let body = json!({"model": "m", "prompt": "x", field: value});
        assert_eq!(refused(Completions, OllamaGenerate, &body), field, "{value}");
    }
}

#[test]
fn lines_of_generate_become_completion_chunks() {
    let token = |token: &str| {
        json!([{"token": token, "logprob": -0.5, "top_logprobs": [
        {"token": token, "logprob": -0.5}]}])
    };
    let stream = ndjson(&[
        json!({"response": "é", "done": false, "logprobs": token("é")}),
        json!({"response": "b", "done": false, "logprobs": token("b")}),
        json!({"response": "", "done": true, "done_reason": "stop", "eval_count": 2}),
    ]);
    let events = events(&respond((Completions, OllamaGenerate), &stream_terms(), &stream));
    assert_eq!(events[0]["object"], "text_completion");
    assert_eq!(events[0]["choices"][0]["text"], "é");
    assert_eq!(
        events[1]["choices"][0]["logprobs"],
        json!({
            "tokens": ["b"], "token_logprobs": [-0.5], "top_logprobs": [{"b": -0.5}],
            "text_offset": [1],
        })
    );
    assert_eq!(events[2]["choices"][0]["finish_reason"], "stop");
    assert_eq!(events[3], "[DONE]");
}
