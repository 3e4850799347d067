//! Engines that are described by a table of step times.

use super::simulate;

/// Uses the table of the documentation.
#[test]
fn engine_may_have_a_table_of_step_times() {
    let page = include_str!("../../../../docs/simulated-engines.md");
    let block = page.split("```json\n").find(|block| block.contains("step_table")).unwrap();
    let text = block.split("```").next().unwrap();
    let path = std::env::temp_dir().join(format!("penstock-table-{}.json", std::process::id()));
    let run = |text: &str| {
        std::fs::write(&path, text).unwrap();
        simulate(&["--engine", path.to_str().unwrap()])
    };
    let done = run(text);
    let wrong = run(&text.replace("49.4", "4.9"));
    let both =
        run(&text.replace("\"limits\"", "\"other\": 1, \"limits\"").replace("step_table", "x"));
    std::fs::remove_file(&path).unwrap();
    assert_eq!(done.code, 0, "{}", done.complaints);
    assert!(done.results.contains("TTFT      mean"), "{}", done.results);
    assert_eq!(wrong.code, 2);
    assert!(wrong.complaints.contains("the times of prefill_ms must be"), "{}", wrong.complaints);
    assert!(both.complaints.contains("either step_time or step_table"), "{}", both.complaints);
}
