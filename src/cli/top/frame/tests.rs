//! The content of a frame, and its width.

use std::time::Duration;

use serde_json::json;

use super::super::page::TopPage;
use super::*;

fn frame(style: Style) -> Vec<String> {
    frame_with("", style)
}

fn frame_with(more: &str, style: Style) -> Vec<String> {
    let page = |times: u32| {
        TopPage::parse(&format!(
            "penstock_requests_total{{outcome=\"ok\"}} {}\npenstock_requests_total{{outcome=\"fault\"}} {}\n\
             penstock_attempts_total{{backend=\"a\",outcome=\"fault\",code=\"x\"}} {times}\n\
             penstock_errors_total{{code=\"connect_failed\"}} {times}\n\
             penstock_in_flight 7\npenstock_connections 90\npenstock_max_connections 100\n{more}",
            9 * times,
            times,
        ))
    };
    let fleet = json!({"backends": [
        {"name": "a", "health": "healthy", "breaker": "closed", "engine": "vllm", "in_flight": 3,
         "max_in_flight": 12, "models": [{"id": "llama3:8b"}, {"id": "evil\u{1b}[2J"}]},
        {"name": "second", "health": "healthy", "breaker": "open", "in_flight": 0,
         "models_in_memory": 1, "vram_used_bytes": 5_000_000_000_u64,
         "models": [{"id": "n", "residency": "loadable"},
                    {"id": "m", "residency": "resident", "in_flight": 2}]},
        {"name": "c", "health": "healthy", "cooldown_remaining_s": 11.6},
        {"name": "d", "health": "unhealthy"},
    ]});
    let (before, after) = (page(0), page(10));
    let figures = TopFigures::new(&before, &after, Duration::from_secs(2));
    let scene = Scene { authority: "host:1", version: "1.2.3", fleet: &fleet, up: 11_520.0 };
    draw(&scene, &figures, style)
}

#[test]
fn frame_shows_the_state_of_the_fleet() {
    let lines = frame(Style { width: 200, has_colors: false });
    let text = lines.join("\n");
    for piece in [
        "penstock 1.2.3  host:1  up 3h12m",
        "requests/s 50.0   ok 90.0 %",
        "fault 10.0 %",
        "in flight 7",
        "connections 90/100",
        "connect_failed 5.0",
        "cooldown 12 s",
        "breaker open",
        "down",
        "3/12",
        "  25%  ",
        "llama3:8b evil?[2J",
        "5.0G",
        "*m(2) n",
    ] {
        assert!(text.contains(piece), "{piece} in\n{text}");
    }
    assert!(text.chars().all(|c| c == '\n' || !c.is_control()), "{text}");
}

#[test]
fn shadow_strategy_has_a_line() {
    let style = Style { width: 200, has_colors: false };
    let lines = frame_with(
        "penstock_shadow_decisions_total{result=\"same\"} 13\n\
         penstock_shadow_decisions_total{result=\"other\"} 39\n\
         penstock_shadow_decisions_total{result=\"dropped\"} 8\n\
         penstock_shadow_prompt_tokens_total 1000\n\
         penstock_shadow_expected_tokens_total{side=\"shadow\"} 694\n",
        style,
    );
    let line = "shadow agrees 25.0 %   expected cached: live 0.0 %   shadow 69.4 %   dropped/s 0";
    assert_eq!(lines[3], line);
    assert!(!frame(style).join("\n").contains("shadow"), "without a shadow");
}

#[test]
fn telemetry_columns_need_a_backend_with_telemetry() {
    let page = TopPage::parse("");
    let figures = TopFigures::new(&page, &page, Duration::from_secs(2));
    let heads = |telemetry: Value| {
        let fleet = json!({"backends": [
            {"name": "gpu-a", "health": "healthy", "engine": "vllm", "in_flight": 128,
             "max_in_flight": 256, "telemetry": telemetry},
            {"name": "gpu-b", "health": "healthy", "engine": "sglang"},
        ]});
        let scene = Scene { authority: "host:1", version: "1.2.3", fleet: &fleet, up: 1.0 };
        let lines = draw(&scene, &figures, Style { width: 100, has_colors: false });
        [4, 5].map(|line: usize| lines[line].split_whitespace().collect::<Vec<_>>().join(" "))
    };
    assert_eq!(
        heads(json!({"waiting": 3.0, "running": 250.0, "kv_utilization": 0.914})),
        [
            "BACKEND STATE ENGINE IN FLIGHT LOAD WAIT RUN KV REQ/S FAIL/S TTFT P50 P95 TOK/S MODELS",
            "gpu-a ready vllm 128/256 50% 3 250 91% 0 0 - - 0",
        ]
    );
    let [heads, _] = heads(Value::Null);
    assert_eq!(heads, "BACKEND STATE ENGINE IN FLIGHT LOAD REQ/S FAIL/S TTFT P50 P95 TOK/S MODELS");
}

#[test]
fn predictions_have_a_table() {
    let page =
        TopPage::parse("penstock_max_queue_requests 256\npenstock_queue_requests{model=\"m\"} 3");
    let figures = TopFigures::new(&page, &page, Duration::from_secs(2));
    let draw = |models: Value| {
        let fleet = json!({"backends": [{"name": "gpu-a", "health": "healthy", "models": models}]});
        let scene = Scene { authority: "host:1", version: "1.2.3", fleet: &fleet, up: 1.0 };
        let lines = draw(&scene, &figures, Style { width: 200, has_colors: false });
        let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
        lines.iter().map(words).collect::<Vec<_>>()
    };
    let prediction = json!({"trusted": true, "error": 0.124, "coverage": 0.91, "backlog_ms": 310.0,
        "step_ms": 14.2, "prompt_token_us": 42.0, "front_end_ms": 6.1, "slots": null});
    let all = draw(json!([{"id": "m", "prediction": prediction}, {"id": "n"}]));
    assert!(all[2].contains("queue 3"), "{all:#?}");
    assert_eq!(
        all[6..],
        [
            "",
            "PREDICTIONS MODEL TRUSTED ERROR BELOW P90 BACKLOG STEP 1K PROMPT FRONT END SLOTS",
            "gpu-a m yes 12% 91% 310 ms 14 ms 42 ms 6 ms -",
        ]
    );
    assert_eq!(draw(json!([{"id": "m"}])).len(), 6, "nothing is predicted");
    let many = Value::Array(vec![json!({"id": "m", "prediction": {"trusted": false}}); 33]);
    let all = draw(many);
    assert_eq!(all.last().unwrap(), "and 3 more in /fleet");
    assert_eq!(all[8], "gpu-a m not yet - - - - - - -");
}

#[test]
fn lines_fit_the_terminal_with_and_without_colours() {
    for width in [1, 20, 79, 200] {
        let plain = frame(Style { width, has_colors: false });
        assert!(plain.iter().all(|line| line.chars().count() <= width), "{plain:#?}");
        let coloured = frame(Style { width, has_colors: true }).join("\n");
        let mut bare = String::new();
        for (index, piece) in coloured.split("\u{1b}[").enumerate() {
            bare.push_str(if index == 0 { piece } else { piece.split_once('m').unwrap().1 });
        }
        let trimmed: Vec<&str> = bare.lines().map(str::trim_end).collect();
        assert_eq!(trimmed, plain, "the same words");
    }
}

#[test]
fn figures_are_short() {
    assert_eq!(
        [0.0, 0.04, 5.26, 812.4, 15_200.0].map(show_rate),
        ["0", "0.0", "5.3", "812", "15.2k"]
    );
    let shown = [None, Some(0.0314), Some(1.26), Some(300.0)].map(show_latency);
    assert_eq!(shown, ["-", "31 ms", "1.3 s", "300 s"]);
    assert_eq!([5.0, 61.0, 7260.0, 360_000.0].map(show_time), ["5s", "1m", "2h01m", "4d4h"]);
    assert_eq!([0.0, 0.016, 1.0].map(show_share), ["0%", "2%", "100%"]);
}
