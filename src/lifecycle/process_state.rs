//! The state that a process passes on in an upgrade: manual drains, the learned state of
//! predictors, the used part of keys' limits, the backends of stored responses, and the homes of
//! sessions. The old process sends it as one line of JSON. A version that does not send this line
//! closes the channel: then there is nothing to continue with.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use penstock_core::admission::rate_limits::KeyUse;
use penstock_core::fleet::{LearnedPrediction, ManualDrain};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::proxy::{RememberedHomes, RememberedIds};

/// The time limit for waiting on the other process, on either side.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest line: far above what 1,024 backends and as many predictors take.
const MAX_BYTES: u64 = 16 << 20;

/// The state that the new process continues with.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessState {
    /// Drains and resumes of backends.
    pub drains: Vec<ManualDrain>,
    /// The learned state of predictors; empty if another version learns something else.
    #[serde(deserialize_with = "those_readable")]
    pub predictions: Vec<LearnedPrediction>,
    /// The used part of keys' limits.
    pub limits: Vec<KeyUse>,
    /// The stored responses and conversations that clients come back for; empty if another version
    /// writes them in another form.
    #[serde(deserialize_with = "if_readable")]
    pub stored: RememberedIds,
    /// The homes of sessions; empty if another version writes them in another form.
    #[serde(deserialize_with = "if_readable")]
    pub homes: RememberedHomes,
}

/// Reads a value; its default if this version cannot read it.
fn if_readable<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + Default,
{
    let value = serde_json::Value::deserialize(deserializer)?;
    Ok(serde_json::from_value(value).unwrap_or_else(|error| {
        tracing::warn!(%error, "a part of the previous process's state could not be taken over");
        T::default()
    }))
}

/// Leaves out predictions that this version cannot read: drains must not be lost with them.
fn those_readable<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<LearnedPrediction>, D::Error> {
    let all = Vec::<serde_json::Value>::deserialize(deserializer)?;
    Ok(all.into_iter().filter_map(|one| serde_json::from_value(one).ok()).collect())
}

/// Sends a line to the new process: the [`ProcessState`], or [`RememberedIds`] that were learned
/// after it.
pub(super) async fn send_line(
    channel: &mut tokio::net::UnixStream,
    sent: &impl Serialize,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(sent)?;
    line.push(b'\n');
    tokio::time::timeout(TIMEOUT, channel.write_all(&line)).await?
}

/// Receives the state of the old process, empty if that process sends none. Also returns the bytes
/// that were read after it.
pub(super) fn receive_state(channel: &UnixStream) -> io::Result<(ProcessState, Vec<u8>)> {
    channel.set_read_timeout(Some(TIMEOUT))?;
    let mut line = Vec::new();
    let mut reader = BufReader::new(channel.take(MAX_BYTES));
    reader.read_until(b'\n', &mut line)?;
    // Other versions close the channel without a line.
    if line.is_empty() {
        return Ok((ProcessState::default(), Vec::new()));
    }
    // The reader may have buffered ids that follow the line; dropping it would lose them.
    Ok((serde_json::from_slice(&line)?, reader.buffer().to_vec()))
}

/// The ids that the old process learns after this one has taken over, until it ends.
#[derive(Debug)]
pub struct LaterState {
    /// The bytes that were read already.
    pub(super) read: Vec<u8>,
    pub(super) channel: UnixStream,
}

impl LaterState {
    /// Passes everything to `take` as it arrives.
    ///
    /// # Errors
    /// If the channel breaks.
    pub(super) async fn receive(self, mut take: impl FnMut(RememberedIds)) -> io::Result<()> {
        self.channel.set_nonblocking(true)?;
        let channel = tokio::net::UnixStream::from_std(self.channel)?;
        let bytes = AsyncReadExt::chain(&self.read[..], channel);
        let mut lines = AsyncBufReadExt::lines(tokio::io::BufReader::new(bytes));
        while let Some(line) = lines.next_line().await? {
            take(serde_json::from_str(&line)?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn state_arrives_as_it_was_sent() {
        let drain = |number: usize| ManualDrain {
            name: format!("gpu-{number}"),
            url: "http://10.0.0.5:8000".to_owned(),
            engine: "vllm".to_owned(),
            draining: number.is_multiple_of(2),
        };
        let learned = penstock_predict::Predictor::default().learned_state();
        let prediction = |number: usize| LearnedPrediction {
            backend: format!("gpu-{number}"),
            url: "http://10.0.0.5:8000".to_owned(),
            engine: "vllm".to_owned(),
            model: "m".to_owned(),
            learned: learned.clone(),
        };
        let text = r#"{"backends":[["a","http://a","vllm"]],"ids":[[18446744073709551615,0,7],[1,0,null]]}"#;
        let stored: RememberedIds = serde_json::from_str(text).unwrap();
        let state = ProcessState {
            drains: (0..1024).map(drain).collect(),
            predictions: (0..1024).map(prediction).collect(),
            limits: vec![KeyUse::default()],
            stored: stored.clone(),
            homes: RememberedHomes::default(),
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let receiver = tokio::task::spawn_blocking(move || receive_state(&theirs));
        ours.set_nonblocking(true).unwrap();
        let mut ours = tokio::net::UnixStream::from_std(ours).unwrap();
        send_line(&mut ours, &state).await.unwrap();
        let (received, _) = receiver.await.unwrap().unwrap();
        assert_eq!(received.stored, stored);
        assert_eq!(received.drains, state.drains);
        let names = |state: &ProcessState| -> Vec<String> {
            state.predictions.iter().map(|one| one.backend.clone()).collect()
        };
        assert_eq!(names(&received), names(&state));
        assert_eq!(received.limits, state.limits);
    }

    #[tokio::test]
    async fn later_ids_follow_the_state() {
        let later: RememberedIds =
            serde_json::from_str(r#"{"backends":[["a","u","e"]],"ids":[[5,0,null]]}"#).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut ours = tokio::net::UnixStream::from_std(ours).unwrap();
        send_line(&mut ours, &ProcessState::default()).await.unwrap();
        send_line(&mut ours, &later).await.unwrap();
        let (state, read) = receive_state(&theirs).unwrap();
        assert_eq!(state, ProcessState::default());
        send_line(&mut ours, &later).await.unwrap();
        drop(ours);
        let mut received = Vec::new();
        LaterState { read, channel: theirs }.receive(|ids| received.push(ids)).await.unwrap();
        assert_eq!(received, [later.clone(), later]);
    }

    #[test]
    fn older_version_sends_nothing() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert_eq!(receive_state(&theirs).unwrap(), (ProcessState::default(), Vec::new()));
    }

    #[test]
    fn predictions_of_another_version_are_left_out_and_drains_stay() {
        let drain =
            r#"{"name": "a", "url": "http://10.0.0.5", "engine": "vllm", "draining": true}"#;
        let line = format!(
            r#"{{"drains": [{drain}], "predictions": [{{"backend": 5}}, 7], "stored": 5}}"#
        );
        let state: ProcessState = serde_json::from_str(&line).unwrap();
        assert_eq!((state.drains.len(), state.predictions.len()), (1, 0));
        let state: ProcessState = serde_json::from_str(r#"{"drains": []}"#).unwrap();
        assert_eq!(state, ProcessState::default());
    }
}
