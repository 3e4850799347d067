//! The models that an Ollama has on disk: its clients pull, create, copy, delete and push them.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_api::{ModelCommand, OllamaRoute, hex};
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};

use super::responses::{Events, Response, StreamEvent, WholeResponse};
use super::spec::{EngineModel, Flavour, MockSpec};

/// The models and files of one engine.
#[derive(Debug, Clone)]
pub(super) struct Library(Arc<Mutex<LibraryContent>>);

#[derive(Debug)]
struct LibraryContent {
    models: Vec<EngineModel>,
    /// The digests of uploaded files.
    blobs: BTreeSet<String>,
}

impl Library {
    /// Creates the library of an Ollama; other engines have none.
    pub(super) fn of(spec: &MockSpec) -> Option<Self> {
        let content = LibraryContent { models: spec.models.clone(), blobs: BTreeSet::new() };
        (spec.flavour == Flavour::Ollama).then(|| Self(Arc::new(Mutex::new(content))))
    }

    /// Returns the engine with its current models.
    pub(super) fn apply(&self, spec: &MockSpec) -> MockSpec {
        MockSpec { models: self.content().models.clone(), ..spec.clone() }
    }

    /// Returns the response to a request about the library; `None` for any other request.
    pub(super) fn response(
        &self,
        spec: &MockSpec,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Option<Response> {
        let route = OllamaRoute::of(path).filter(|route| route.takes(method))?;
        let request: Value = serde_json::from_slice(body).unwrap_or_default();
        let text = |field: &str| request.get(field).and_then(Value::as_str).unwrap_or("");
        // Ollama's older clients send `name`.
        let model = if text("model").is_empty() { text("name") } else { text("model") };
        let command = match route {
            OllamaRoute::Blob(digest) => return Some(self.blob(method, digest, body)),
            OllamaRoute::Command(command) => command,
            _ => return None,
        };
        Some(match command {
            // A pull fails after its 200, as a line of the stream: a client has to read it to know.
            ModelCommand::Pull if model.starts_with("missing") => {
                let error = json!({"error": "pull model manifest: file does not exist"});
                lines(&request, spec.pace.per_token, vec![error], || {})
            }
            ModelCommand::Create if !self.has_files(&request) => {
                error(400, "the files of the model are not there")
            }
            ModelCommand::Push if !self.has(model) => not_found(model),
            ModelCommand::Pull | ModelCommand::Create | ModelCommand::Push => {
                let (library, model) = (self.clone(), EngineModel::new(model));
                let progress = if command == ModelCommand::Create { vec![] } else { transfer() };
                lines(&request, spec.pace.per_token, progress, move || library.add(&model))
            }
            ModelCommand::Copy if self.has(text("source")) => {
                // Ollama's own copies and deletions have an empty 200.
                self.add(&EngineModel::new(text("destination")));
                Response::Whole(WholeResponse::json(200, Vec::new()))
            }
            ModelCommand::Delete if self.has(model) => {
                self.content().models.retain(|one| one.id != model);
                Response::Whole(WholeResponse::json(200, Vec::new()))
            }
            ModelCommand::Copy => not_found(text("source")),
            ModelCommand::Delete => not_found(model),
        })
    }

    fn content(&self) -> MutexGuard<'_, LibraryContent> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, model: &str) -> bool {
        self.content().models.iter().any(|one| one.id == model)
    }

    fn add(&self, model: &EngineModel) {
        if !self.has(&model.id) {
            self.content().models.push(model.clone());
        }
    }

    /// Returns whether the files named by a create request were uploaded.
    fn has_files(&self, request: &Value) -> bool {
        let files = request.get("files").and_then(Value::as_object);
        let mut digests = files.into_iter().flatten().filter_map(|(_, digest)| digest.as_str());
        let content = self.content();
        digests.all(|digest| content.blobs.contains(digest))
    }

    fn blob(&self, method: &str, name: &str, body: &[u8]) -> Response {
        if method == "HEAD" {
            let status = if self.content().blobs.contains(name) { 200 } else { 404 };
            return Response::Whole(WholeResponse::json(status, Vec::new()));
        }
        let mut digits = [0; 64];
        hex::write(digest(&SHA256, body).as_ref(), &mut digits);
        let is_right = name.strip_prefix("sha256:").is_some_and(|name| name.as_bytes() == digits);
        // Ollama checks the digest, so that a broken upload makes no model.
        if !is_right {
            return error(400, "digest mismatch, file must be downloaded again");
        }
        self.content().blobs.insert(name.to_owned());
        Response::Whole(WholeResponse::json(201, Vec::new()))
    }
}

fn error(status: u16, text: &str) -> Response {
    Response::Whole(WholeResponse::value(status, &json!({ "error": text })))
}

fn not_found(model: &str) -> Response {
    error(404, &format!("model '{model}' not found"))
}

/// Returns the progress messages of a download.
fn transfer() -> Vec<Value> {
    let digest = format!("sha256:{}", "5f".repeat(32));
    let layer = |completed: u32| json!({"status": "pulling 5f5f5f5f5f5f", "digest": digest, "total": 100, "completed": completed});
    let mut all = vec![json!({"status": "pulling manifest"})];
    all.extend([0, 50, 100].map(layer));
    all.push(json!({"status": "verifying sha256 digest"}));
    all
}

/// Returns a response of lines, the last of which reports success unless one of them is an error;
/// `done` runs before success. Without streaming it is a single object.
fn lines(
    request: &Value,
    pause: Duration,
    mut progress: Vec<Value>,
    done: impl FnOnce() + Send + 'static,
) -> Response {
    let failure = progress.iter().find(|line| line.get("error").is_some()).cloned();
    if request.get("stream").and_then(Value::as_bool) == Some(false) {
        if failure.is_none() {
            done();
        }
        // Without a stream the status can still say that it failed.
        let last = failure.map(|error| (500, error));
        let (status, page) = last.unwrap_or((200, json!({"status": "success"})));
        return Response::Whole(WholeResponse::value(status, &page));
    }
    if failure.is_none() {
        progress.push(json!({"status": "success"}));
    }
    // The model is there once the client reads of it, and not if the client leaves before.
    let mut done = Some(done);
    let list = progress.into_iter().map(move |line| {
        if line.get("status").and_then(Value::as_str) == Some("success")
            && let Some(done) = done.take()
        {
            done();
        }
        StreamEvent { wait: pause, bytes: format!("{line}\n").into_bytes(), is_token: false }
    });
    Response::Events(Events {
        list: Box::new(list),
        content_type: "application/x-ndjson",
        ping: Vec::new(),
        error: b"{\"error\":\"the engine failed\"}\n".to_vec(),
    })
}
