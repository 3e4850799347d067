//! Mock engines and the configuration lines for them.

use penstock_api::{Capabilities, OPERATIONS};
use penstock_mock::{EngineModel, MockEngine, MockSpec};

use super::block_on;

/// Starts an engine from its specification.
pub fn start(spec: MockSpec) -> MockEngine {
    block_on(MockEngine::start_local(spec)).unwrap()
}

/// Starts an engine that serves models which can do everything.
pub fn engine(name: &str, models: &[&str]) -> MockEngine {
    start(MockSpec::new(name, models.iter().map(|id| EngineModel::new(id))))
}

/// A model with a context of `context_length` tokens.
pub fn model(id: &str, context_length: u32, capabilities: Capabilities) -> EngineModel {
    EngineModel { id: id.to_owned(), context_length, capabilities }
}

/// An item of `backends:`, named like its engine, with further keys.
pub fn backend(engine: &MockEngine, rest: &str) -> String {
    let (name, url) = (&engine.spec().name, engine.url());
    format!("  - {{ name: {name}, url: \"{url}\", {rest} }}\n")
}

/// An item of `models:` that is declared to serve every operation, so that none is converted.
pub fn serving_all(model: &str) -> String {
    let names: Vec<&str> = OPERATIONS.iter().map(|row| row.name).collect();
    format!("{{ id: {model}, operations: [{}] }}", names.join(", "))
}

/// A whole `backends:` section of engines that are described alike.
pub fn backends(engines: &[&MockEngine], rest: &str) -> String {
    let items: String = engines.iter().map(|engine| backend(engine, rest)).collect();
    format!("backends:\n{items}")
}

/// Returns the number of requests for work that each engine received.
pub fn shares(engines: &[&MockEngine]) -> Vec<usize> {
    engines.iter().map(|engine| engine.counters().requests).collect()
}

/// The body of the last request an engine was sent.
pub fn last_body(engine: &MockEngine) -> Vec<u8> {
    let last = engine.received().pop().expect("it was sent a request");
    last.body.expect("the whole body arrived").to_vec()
}
