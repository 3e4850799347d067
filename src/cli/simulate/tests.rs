//! The command, with short workloads.

mod step_tables;

use super::super::tests::call;

const SHORT: [&str; 8] =
    ["simulate", "chatbot", "--part", "0.05", "--backends", "2", "--seeds", "2"];

fn simulate(more: &[&str]) -> super::super::tests::Done {
    call(&[&SHORT[..], more].concat())
}

#[test]
fn one_page_of_results_is_the_same_in_every_run() {
    let first = simulate(&["--threads", "1"]);
    assert_eq!(first.code, 0, "{}", first.complaints);
    for part in [
        "TTFT      mean",
        "goodput",
        "load (rate / capacity)",
        "250 requests",
        "2 x h100/qwen3-32b/tp2",
    ] {
        assert!(first.results.contains(part), "{part}: {}", first.results);
    }
    assert_eq!(first.results, simulate(&["--threads", "2"]).results);
    assert_ne!(first.results, simulate(&["--seed", "9"]).results);
}

#[test]
fn oracle_has_its_columns_and_refusals_are_judged() {
    let line = [
        "simulate", "overload", "--part", "0.02", "--seeds", "1", "--load", "3", "--ttft", "500ms",
        "--oracle",
    ];
    let done = call(&line);
    assert_eq!(done.code, 0, "{}", done.complaints);
    for part in ["oracle  oracle, refusing\n", "shed wrongly ", "shedding changes/minute "] {
        assert!(done.results.contains(part), "{part}: {}", done.results);
    }
    assert_eq!(done.results, call(&[&line[..], &["--threads", "2"]].concat()).results);
    let json = call(&[&line[..], &["--json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&json.results).unwrap();
    let sheds = |index: usize| &found["configurations"][index]["seeds"][0]["sheds"];
    assert_eq!((found["configurations"].as_array().unwrap().len(), sheds(0).is_null()), (3, true));
    let judged = sheds(1)["judged"].as_u64().unwrap();
    assert!(judged > 0 && sheds(1)["wrong"] == 0, "{}", sheds(1));
    let bursts = simulate(&["--arrivals", "gamma:3"]);
    assert_ne!(bursts.results, simulate(&[]).results);
    let wrong = call(&["simulate", "chatbot", "--arrivals", "bursty"]);
    assert!(wrong.complaints.contains("as in gamma:3"), "{}", wrong.complaints);
}

#[test]
fn assertions_decide_the_exit_code() {
    assert_eq!(simulate(&["--assert", "goodput > 0.5"]).code, 0);
    let failed = simulate(&["--assert", "ttft_p99 < 1ms"]);
    assert_eq!(failed.code, 1);
    assert!(failed.complaints.contains("1 of 1: 'ttft_p99 < 1ms'"), "{}", failed.complaints);
    let wrong = simulate(&["--assert", "speed < 1ms"]);
    assert_eq!(wrong.code, 2);
    assert!(wrong.complaints.contains("there is no such figure"), "{}", wrong.complaints);
    // An assertion is checked before anything runs: the workload does not exist either.
    for (assertion, part) in [
        ("speed < 1ms", "there is no such figure (known: ttft_mean"),
        ("ttft_p99", "write 'FIGURE < VALUE'"),
        ("ttft_p99 < baseline", "the baseline is a second --config"),
    ] {
        let early = call(&["simulate", "/nowhere", "--assert", assertion]);
        assert!(early.code == 2 && early.complaints.contains(part), "{}", early.complaints);
    }
}

#[test]
fn sweep_shows_each_point_and_gives_advice_or_a_reason() {
    let swept = simulate(&["--load", "0.8", "--sweep", "routing.strategy=round_robin,smart"]);
    assert_eq!(swept.code, 0, "{}", swept.complaints);
    for part in ["strategy=round_robin", "strategy=smart", "as configured", "best"] {
        assert!(swept.results.contains(part), "{part}: {}", swept.results);
    }
    assert_eq!(swept.complaints, "");
    let typos =
        simulate(&["--sweep", "routing.strategy=smart,least_conn", "--sweep", "queue.size=0,1"]);
    assert_eq!(typos.complaints.matches("UNKNOWN STRATEGY 'least_conn'").count(), 1, "each once");
    let named = "warning: strategy=least_conn size=0: command line: UNKNOWN STRATEGY";
    assert!(typos.complaints.contains(named), "{}", typos.complaints);
    let unknown = simulate(&["--sweep", "routing.speed=1,2"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.complaints.contains("routing.speed"), "{}", unknown.complaints);
}

#[test]
fn run_beyond_the_capacity_says_so_in_its_first_line() {
    let first_line = |more: &[&str]| {
        let done = simulate(more);
        assert_eq!(done.code, 0, "{}", done.complaints);
        done.results.lines().next().unwrap().to_owned()
    };
    let beyond = first_line(&["--load", "1.5"]);
    assert!(beyond.starts_with("overload  load 1.50 ± 0.15: the fleet keeps up with "), "{beyond}");
    assert!(first_line(&["--load", "0.5"]).starts_with("workload  "));
}

#[test]
fn columns_have_the_same_load_whatever_they_refuse() {
    let folder = std::env::temp_dir().join(format!("penstock-load-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let backends = "backends: [{ name: a, url: 'http://a:1' }, { name: b, url: 'http://b:1' }]";
    let file = |name: &str, yaml: &str| {
        let path = folder.join(name);
        std::fs::write(&path, format!("{yaml}\n{backends}\n")).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let plain = file("plain.yaml", "routing: { strategy: weighted }");
    let limit = "max_in_flight: 1";
    let limited =
        "backends: [{ name: a, url: 'http://a:1', LIMIT }, { name: b, url: 'http://b:1', LIMIT }]";
    let shedding = folder.join("limited.yaml");
    std::fs::write(&shedding, limited.replace("LIMIT", limit)).unwrap();
    let shedding = shedding.to_str().unwrap().to_owned();
    let line = ["simulate", "chatbot", "--part", "0.2", "--seeds", "1", "--json"];
    let of = |configs: &[&str]| -> serde_json::Value {
        let done = call(&[&line[..], configs].concat());
        serde_json::from_str(&done.results).unwrap_or_else(|_| panic!("{}", done.complaints))
    };
    let both = of(&["--config", &plain, "--config", &shedding]);
    let loads = |found: &serde_json::Value| -> Vec<f64> {
        let all = found["configurations"].as_array().unwrap().iter();
        all.map(|one| one["load"].as_f64().unwrap()).collect()
    };
    let found = loads(&both);
    assert_eq!(found[0], found[1]);
    assert_eq!(loads(&of(&["--config", &shedding])), found[..1]);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn closed_loop_has_no_load_and_nothing_predicted_is_no_zero() {
    let folder = std::env::temp_dir().join(format!("penstock-closed-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("users.yaml");
    let users = "requests: 60\nstreams:\n  - { users: 3, pause: 1s, input: 100, output: 20 }\n";
    std::fs::write(&path, users).unwrap();
    let smart = folder.join("smart.yaml");
    std::fs::write(&smart, "routing: { strategy: smart }\nbackends: [http://a:1]\n").unwrap();
    let config = ["--config", smart.to_str().unwrap()];
    let done = call(&[&["simulate", path.to_str().unwrap(), "--seeds", "1"], &config[..]].concat());
    let load = done.results.lines().find(|line| line.starts_with("load ")).unwrap();
    assert!(load.ends_with(" -"), "{load}");
    let head = done.results.lines().next().unwrap();
    assert!(head.contains(": 60 requests; tokens in"), "{head}");
    assert!(!done.results.contains("predicted TTFT"), "{}", done.results);
    let wrong = call(&["simulate", path.to_str().unwrap(), "--load", "0.5"]);
    assert!(wrong.complaints.contains("a closed loop has no rate"), "{}", wrong.complaints);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn files_of_the_tutorial_exist() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(root.join("docs/simulation.md")).unwrap();
    let words = text.split(|one: char| one.is_whitespace() || "`()'".contains(one));
    let paths: Vec<&str> = words.filter(|word| word.starts_with("conf/")).collect();
    assert!(paths.len() > 5, "{paths:?}");
    for path in paths {
        assert!(root.join(path.trim_end_matches(['.', ','])).exists(), "{path}");
    }
}

#[test]
fn small_gain_gives_no_advice() {
    let sweep = ["--sweep", "routing.preset=balanced,lmetric", "--load", "0.3"];
    let done = simulate(&sweep);
    assert_eq!(done.code, 0, "{}", done.complaints);
    let advice = done.results.lines().find(|line| line.starts_with("No advice: ")).unwrap();
    assert!(
        advice.contains("less than a reload is worth") || advice.contains("no point"),
        "{advice}"
    );
    let config = std::env::temp_dir().join(format!("penstock-advice-{}.yaml", std::process::id()));
    let backends = "routing: { strategy: round_robin }\nbackends: ['http://a:1', 'http://b:1']\n";
    std::fs::write(&config, backends).unwrap();
    let line = [
        "simulate",
        "shared-prefix",
        "--part",
        "0.1",
        "--seeds",
        "3",
        "--load",
        "0.8",
        "--objective",
        "ttft_mean",
        "--sweep",
        "routing.strategy=weighted",
        "--config",
        config.to_str().unwrap(),
    ];
    let done = call(&line);
    assert_eq!(done.code, 0, "{}", done.complaints);
    let advice = done.results.lines().find(|line| line.starts_with("strategy=weighted: ")).unwrap();
    assert!(advice.contains("ttft_mean -") && advice.contains(" ± "), "{advice}");
    std::fs::remove_file(&config).unwrap();
}

#[test]
fn search_keeps_the_better_third_of_a_sample() {
    let sweep = "routing.scorers.prefix-affinity=0..8/1";
    let found = simulate(&["--sweep", sweep, "--search", "halving", "--budget", "6"]);
    assert_eq!(found.code, 0, "{}", found.complaints);
    let points = found.results.lines().filter(|line| line.starts_with("prefix-affinity=")).count();
    assert_eq!(points, 3, "{}", found.results);
    assert!(call(&["simulate", "chatbot", "--search", "halving"]).complaints.contains("--sweep"));
}

#[test]
fn wrong_inputs_are_named() {
    for (arguments, part) in [
        (&["simulate"][..], "pass a workload: a file, a trace, or one of chatbot"),
        (&["simulate", "/nowhere"][..], "there is no file and no preset '/nowhere' (presets: "),
        (&["simulate", "chatbot", "--engine", "x"][..], "no row 'x'"),
        (&["simulate", "chatbot", "--objective", "zz"][..], "--objective: no figure 'zz' (known: "),
        (&["simulate", "chatbot", "--budget", "0"][..], "--budget: at least 1"),
        (&["simulate", "chatbot", "--engine", "b9=h100/qwen3-32b/tp2"][..], "no backend 'b9'"),
        (
            &["simulate", "chatbot", "--fault", "at 1s backend b9 down 1s"][..],
            "names the backend 'b9'",
        ),
        (&["simulate", "chatbot", "--seeds", "0"][..], "--seeds: at least 1"),
        (&["simulate", "chatbot", "--balancers", "0"][..], "--balancers: at least 1"),
        (&["simulate", "chatbot", "--threads", "0"][..], "--threads: at least 1"),
        (&["simulate", "chatbot", "--speed", "0"][..], "--speed: a number greater than 0"),
        (&["simulate", "rustfmt.toml"][..], "no known trace"),
        (&["simulate", "/dev/null"][..], "the trace has no requests"),
    ] {
        let called = call(arguments);
        assert_eq!(called.code, 2, "{arguments:?}");
        assert!(called.complaints.contains(part), "{arguments:?}: {}", called.complaints);
    }
    assert!(call(&["simulate", "--list"]).results.contains("shared-prefix"));
}

/// Writes the access log of a simulated run. Its reader does not know the engines.
fn simulated_log(folder: &std::path::Path, engines: &[&str]) -> std::path::PathBuf {
    let requests = folder.join("requests.jsonl");
    let path = requests.to_str().unwrap();
    let line = ["simulate", "chatbot", "--part", "0.2", "--backends", "2", "--requests", path];
    let engines: Vec<&str> = engines.iter().flat_map(|engine| ["--engine", *engine]).collect();
    let done = call(&[&line[..], &engines].concat());
    assert_eq!(done.code, 0, "{}", done.complaints);
    let mut log = String::new();
    for line in std::fs::read_to_string(requests).unwrap().lines() {
        let one: serde_json::Value = serde_json::from_str(line).unwrap();
        let ended = one["arrived"].as_f64().unwrap() + one["e2e_seconds"].as_f64().unwrap();
        let time = format!("2026-11-23T10:{:02.0}:{:06.3}Z", (ended / 60.0).floor(), ended % 60.0);
        let line = serde_json::json!({
            "time": time, "model_requested": "m", "key": "web", "backend": one["backend"], "status": 200,
            "stream": true, "duration_ms": one["e2e_seconds"].as_f64().unwrap() * 1e3,
            "ttft_ms": one["ttft_seconds"].as_f64().unwrap() * 1e3,
            "tokens_in": one["input_tokens"], "tokens_out": one["output_tokens"],
        });
        log.push_str(&format!("{line}\n"));
    }
    let path = folder.join("access.jsonl");
    std::fs::write(&path, log).unwrap();
    path
}

#[test]
fn yesterday_learns_an_engine_for_each_backend() {
    let folder = std::env::temp_dir().join(format!("penstock-unequal-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let slow = folder.join("slow.json");
    let engine = serde_json::json!({
        "step_time": {"base_ms": 39, "token_us": 120, "decode_us": 126, "context_us": 210, "pair_us": 150},
        "limits": {"max_requests": 256, "max_step_tokens": 8192, "max_context": 131_072, "kv_blocks": 16_000},
        "front_end_ms": 20,
    });
    std::fs::write(&slow, engine.to_string()).unwrap();
    let given = format!("b2={}", slow.to_str().unwrap());
    let log = simulated_log(&folder, &["rtxpro6000/llama-3.1-8b/tp1", &given]);
    let line =
        ["simulate", "--yesterday", log.to_str().unwrap(), "--backends", "2", "--seeds", "1"];
    let error = |more: &[&str]| -> (String, f64) {
        let sweep =
            ["--sweep", "routing.preset=balanced", "--engine", "rtxpro6000/llama-3.1-8b/tp1"];
        let done = call(&[&line[..], &sweep, more].concat());
        let means = done.results.lines().filter(|line| line.contains(" mean "));
        let percents =
            means.map(|line| line.split_whitespace().nth_back(1).unwrap().parse::<f64>().unwrap());
        let most = percents.map(f64::abs).fold(0.0, f64::max);
        (done.results, most)
    };
    let (learned, most) = error(&[]);
    assert!(
        learned.contains(" streams of b1: ") && learned.contains(" streams of b2: "),
        "{learned}"
    );
    // The slow one gets a fifth of the requests, so that less is known of it.
    assert!(most < 15.0, "{learned}");
    let (given, most) = error(&["--engine", &given]);
    assert!(!given.contains(" streams of b2: ") && most < 10.0, "{given}");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn yesterday_names_the_requests_at_a_time() {
    let folder = std::env::temp_dir().join(format!("penstock-slots-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let engine = |max_requests: u32| {
        let path = folder.join(format!("{max_requests}.json"));
        let engine = serde_json::json!({
            "step_time": {"base_ms": 13, "token_us": 40, "decode_us": 42, "context_us": 70, "pair_us": 50},
            "limits": {
                "max_requests": max_requests, "max_step_tokens": 8192, "max_context": 131_072,
                "kv_blocks": 16_000,
            },
        });
        std::fs::write(&path, engine.to_string()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let log = simulated_log(&folder, &[&engine(40)]);
    let (log, start) = (log.to_str().unwrap(), engine(1024));
    let line = ["simulate", "--yesterday", log, "--backends", "2", "--seeds", "1"];
    let rest = ["--engine", &start, "--sweep", "routing.preset=balanced"];
    let done = call(&[&line[..], &rest].concat());
    assert!(done.results.contains(", at most 40 requests at a time\n"), "{}", done.results);
    let done = call(&[&line[..], &rest, &["--json"]].concat());
    let first = done.results.lines().next().unwrap();
    let json: serde_json::Value = serde_json::from_str(first).unwrap();
    for learned in json["calibration"]["engines"].as_array().unwrap() {
        assert_eq!(
            (&learned["max_requests"], &learned["is_limit_lent"]),
            (&40.into(), &false.into())
        );
    }
    let done = call(&["fit", log, "--engine", &start]);
    assert!(done.results.contains("40  requests at a time"), "{}", done.results);
    let done = call(&["fit", log, "--engine", &start, "--json"]);
    let json: serde_json::Value = serde_json::from_str(&done.results).unwrap();
    assert_eq!(json["limits"]["max_requests"], 40);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn yesterday_learns_the_engines_shows_the_error_and_advises() {
    let folder = std::env::temp_dir().join(format!("penstock-yesterday-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let log = simulated_log(&folder, &["rtxpro6000/llama-3.1-8b/tp1"]);
    let line =
        ["simulate", "--yesterday", log.to_str().unwrap(), "--backends", "2", "--seeds", "2"];
    let done = call(&line);
    assert_eq!(done.code, 0, "{}", done.complaints);
    assert!(done.results.starts_with("Learned from "), "{}", done.results);
    let error = done.results.lines().find(|line| line.starts_with("E2E mean")).unwrap();
    let percent: f64 = error.split_whitespace().nth_back(1).unwrap().parse().unwrap();
    assert!(percent.abs() < 5.0, "{error}");
    assert!(done.results.contains("preset=lmetric"), "{}", done.results);
    let other = call(&[&line[..], &["--max-requests", "1"]].concat());
    assert_eq!(other.code, 1, "an engine with one slot has another load");
    assert!(other.complaints.contains("no advice"), "{}", other.complaints);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn regret_is_that_of_the_decision_of_each_scorer_and_of_chance() {
    let done = simulate(&["--load", "0.9", "--regret", "8"]);
    assert_eq!(done.code, 0, "{}", done.complaints);
    for part in
        ["What 8 decisions of weighted cost", "as decided", "prefix-affinity alone", "at random"]
    {
        assert!(done.results.contains(part), "{part}: {}", done.results);
    }
    let json = simulate(&["--regret", "4", "--json"]);
    let last = json.results.lines().last().unwrap();
    let found: serde_json::Value = serde_json::from_str(last).unwrap();
    for decision in found["regret"].as_array().unwrap() {
        let by_backend = decision["by_backend_seconds"].as_array().unwrap();
        let decided = decision["decided_seconds"].as_f64().unwrap();
        let regret = decision["regret_seconds"].as_f64().unwrap();
        let best = by_backend.iter().map(|time| time.as_f64().unwrap()).fold(f64::MAX, f64::min);
        assert!((decided - regret - best).abs() < 1e-9, "{decision}");
        assert!(
            by_backend.iter().any(|time| (time.as_f64().unwrap() - decided).abs() < 1e-9),
            "{decision}"
        );
    }
}
