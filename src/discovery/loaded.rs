//! The models in a backend's memory, as its engine reports them. Engines that serve only the model
//! they were started with report nothing: that model is always there.

use std::time::Duration;

use penstock_api::units::{ByteSize, Timestamp, TokenCount};
use penstock_clock::{now, unix_seconds};
use penstock_config::UnixTime;
use penstock_core::fleet::{Backend, LoadedModel};
use penstock_scoring::Residency;
use serde_json::Value;

use super::client::{DiscoveryClient, DiscoveryError};
use super::engines::{LM_STUDIO_LIST, LoadedSource};
use super::listed_models::{text, to_tokens};
use super::queries::Queries;

/// The result of querying a backend's memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum LoadedReport {
    /// These models are in memory or asleep; all others are on disk.
    Listed(Vec<LoadedModel>),
    /// The same holds for every model of the backend.
    Every(Residency),
    /// The engine does not report it, in this version or with these settings.
    NotServed,
}

/// Queries the models in the memory of `backend`, each request for at most `timeout`.
///
/// # Errors
/// If the page is served but cannot be read.
pub(super) async fn probe_loaded(
    client: &DiscoveryClient,
    backend: &Backend,
    timeout: Duration,
    source: LoadedSource,
) -> Result<LoadedReport, DiscoveryError> {
    let queries = &Queries { client, backend, timeout };
    let page = |path| queries.get(path);
    match source {
        LoadedSource::Always => Ok(LoadedReport::Every(Residency::Resident)),
        LoadedSource::OllamaPs => {
            let list = page("/api/ps").await?;
            if let Some(items) = list.get("models").and_then(Value::as_array) {
                backend.state.pages.learn_loaded(items);
            }
            read_list(&list, "/models", "/api/ps", read_ollama)
        }
        LoadedSource::LmStudio => {
            let list = page(LM_STUDIO_LIST).await?;
            read_list(&list, "/data", LM_STUDIO_LIST, read_lm_studio)
        }
        LoadedSource::LlamaCpp => {
            let list = page("/v1/models").await?;
            match read_router_list(&list) {
                Some(models) => Ok(LoadedReport::Listed(models)),
                // A server without router mode has one model, which may sleep.
                None => Ok(LoadedReport::Every(is_asleep(page("/props").await)?)),
            }
        }
        LoadedSource::SleepPage => {
            let state = is_asleep(page("/is_sleeping").await);
            match state {
                // vLLM serves this page in development mode only.
                Err(DiscoveryError::Status { status: 404 | 405 | 501, .. }) => {
                    Ok(LoadedReport::NotServed)
                }
                other => other.map(LoadedReport::Every),
            }
        }
    }
}

fn is_asleep(page: Result<Value, DiscoveryError>) -> Result<Residency, DiscoveryError> {
    match page?.pointer("/is_sleeping").and_then(Value::as_bool) {
        Some(true) => Ok(Residency::Sleeping),
        Some(false) | None => Ok(Residency::Resident),
    }
}

fn read_list(
    list: &Value,
    at: &str,
    path: &str,
    read: fn(&Value) -> Option<LoadedModel>,
) -> Result<LoadedReport, DiscoveryError> {
    let items = list.pointer(at).and_then(Value::as_array);
    let items = items.ok_or_else(|| DiscoveryError::NotJson { path: path.to_owned() })?;
    Ok(LoadedReport::Listed(items.iter().filter_map(read).collect()))
}

/// An item of Ollama's `/api/ps`.
fn read_ollama(item: &Value) -> Option<LoadedModel> {
    let name = text(item, "/model").or_else(|| text(item, "/name"))?;
    Some(LoadedModel {
        name: name.to_owned(),
        residency: Residency::Resident,
        vram: item.pointer("/size_vram").and_then(Value::as_u64).map(ByteSize),
        expires_at: text(item, "/expires_at")
            .and_then(|at| to_timestamp(at, unix_seconds(), now())),
        context_length: item.pointer("/context_length").and_then(to_tokens).map(TokenCount),
    })
}

/// An item of LM Studio's own list.
fn read_lm_studio(item: &Value) -> Option<LoadedModel> {
    let is_loaded = text(item, "/state")? == "loaded";
    let context_length = item.pointer("/loaded_context_length").and_then(to_tokens);
    is_loaded.then_some(LoadedModel {
        name: text(item, "/id")?.to_owned(),
        residency: Residency::Resident,
        context_length: context_length.map(TokenCount),
        ..LoadedModel::default()
    })
}

/// Returns the models of llama.cpp's router that are in memory or asleep; `None` if no model has a
/// status.
fn read_router_list(list: &Value) -> Option<Vec<LoadedModel>> {
    let items = list.pointer("/data").and_then(Value::as_array)?;
    let with_status = |item: &Value| {
        let status = item.get("status")?;
        let status = status.as_str().or_else(|| text(status, "/value"))?.to_owned();
        Some((text(item, "/id")?.to_owned(), status))
    };
    let all: Vec<(String, String)> = items.iter().filter_map(with_status).collect();
    if all.is_empty() {
        return None;
    }
    let loaded = all.into_iter().filter_map(|(name, status)| {
        let residency = match status.as_str() {
            "loaded" => Residency::Resident,
            "sleeping" => Residency::Sleeping,
            _ => return None,
        };
        Some(LoadedModel { name, residency, ..LoadedModel::default() })
    });
    Some(loaded.collect())
}

/// Converts a time such as `2026-11-23T04:10:31.5-07:00` to our own clock. `None` for one that has
/// passed: the engine's clock differs from ours, or it never unloads the model.
fn to_timestamp(text: &str, unix_now: u64, now: Timestamp) -> Option<Timestamp> {
    let at = UnixTime::parse(text)?;
    let left = at.0.checked_sub(unix_now).filter(|left| *left > 0)?;
    Some(now.after(Duration::from_secs(left)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ollama_lists_what_is_in_memory() {
        let list = json!({"models": [{
            "name": "llama3:8b", "model": "llama3:8b", "size": 6_000, "size_vram": 5_000,
            "expires_at": "2318-09-06T16:04:20.5+02:00", "context_length": 4096,
        }, {"size": 3}]});
        let LoadedReport::Listed(models) = read_list(&list, "/models", "p", read_ollama).unwrap()
        else {
            panic!("a list");
        };
        assert_eq!(models.len(), 1, "an item without a name is none");
        let one = &models[0];
        assert_eq!((one.name.as_str(), one.residency), ("llama3:8b", Residency::Resident));
        assert_eq!((one.vram, one.context_length.unwrap().0), (Some(ByteSize(5000)), 4096));
        assert!(one.expires_at.is_some());
        assert!(read_list(&json!({"error": "x"}), "/models", "p", read_ollama).is_err());
    }

    #[test]
    fn llamacpp_router_reports_a_status_per_model() {
        let list = json!({"data": [
            {"id": "a", "status": {"value": "loaded"}}, {"id": "b", "status": "sleeping"},
            {"id": "c", "status": {"value": "unloaded"}}, {"id": "d", "status": {"value": "loading"}},
        ]});
        let found = read_router_list(&list).unwrap();
        let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.residency)).collect();
        assert_eq!(found, [("a", Residency::Resident), ("b", Residency::Sleeping)]);
        assert_eq!(read_router_list(&json!({"data": [{"id": "a"}]})), None, "a single model");
    }

    #[test]
    fn lm_studio_reports_a_state_per_model() {
        let list = json!({"data": [
            {"id": "a", "state": "loaded", "loaded_context_length": 8192, "max_context_length": 9000},
            {"id": "b", "state": "not-loaded"},
        ]});
        let LoadedReport::Listed(models) = read_list(&list, "/data", "p", read_lm_studio).unwrap()
        else {
            panic!("a list");
        };
        assert_eq!(models.len(), 1);
        assert_eq!((models[0].name.as_str(), models[0].context_length.unwrap().0), ("a", 8192));
    }

    #[test]
    fn page_says_whether_a_server_sleeps() {
        let page = |value: Value| is_asleep(Ok(value)).unwrap();
        assert_eq!(page(json!({"is_sleeping": true})), Residency::Sleeping);
        assert_eq!(page(json!({"is_sleeping": false})), Residency::Resident);
        assert_eq!(page(json!({})), Residency::Resident, "an older version");
    }

    #[test]
    fn expiry_is_read_with_its_offset() {
        // 2026-11-23T04:00:00Z.
        let (unix_now, now) = (1_795_406_400, Timestamp(7_000_000));
        let in_a_minute = Some(now.after(Duration::from_secs(60)));
        for text in
            ["2026-11-23T04:01:00Z", "2026-11-22T21:01:00.25-07:00", "2026-11-23T05:31:00+01:30"]
        {
            assert_eq!(to_timestamp(text, unix_now, now), in_a_minute, "{text}");
        }
        for text in ["2026-11-23T03:59:00Z", "0001-01-01T00:00:00Z", "soon", "", "2026-11-23+aa:bb"]
        {
            assert_eq!(to_timestamp(text, unix_now, now), None, "{text}");
        }
    }
}
