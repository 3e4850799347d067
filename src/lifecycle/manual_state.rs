//! What operators changed by hand in a running process and an upgrade must keep: one line of JSON from
//! the old process to the new one. A version without this line closes the channel, which means no changes.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::AsyncWriteExt;

use crate::fleet::ManualDrain;

/// How long either process waits for the other.
const TIMEOUT: Duration = Duration::from_secs(2);
/// The longest line: far above what 1,024 backends take.
const MAX_BYTES: u64 = 4 << 20;

/// What operators changed by hand.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ManualState {
    /// Drains and resumes of backends.
    pub drains: Vec<ManualDrain>,
}

/// Sends `state` to the new process.
pub(super) async fn send_state(
    channel: &mut tokio::net::UnixStream,
    state: &ManualState,
) -> io::Result<()> {
    let mut line = serde_json::to_vec(state)?;
    line.push(b'\n');
    tokio::time::timeout(TIMEOUT, channel.write_all(&line)).await?
}

/// Receives the state of the old process; empty if that process sends none.
pub(super) fn receive_state(channel: &UnixStream) -> io::Result<ManualState> {
    channel.set_read_timeout(Some(TIMEOUT))?;
    let mut line = Vec::new();
    BufReader::new(channel.take(MAX_BYTES)).read_until(b'\n', &mut line)?;
    if line.is_empty() {
        return Ok(ManualState::default());
    }
    Ok(serde_json::from_slice(&line)?)
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
        let state = ManualState { drains: (0..1024).map(drain).collect() };
        let (ours, theirs) = UnixStream::pair().unwrap();
        let receiver = tokio::task::spawn_blocking(move || receive_state(&theirs));
        ours.set_nonblocking(true).unwrap();
        let mut ours = tokio::net::UnixStream::from_std(ours).unwrap();
        send_state(&mut ours, &state).await.unwrap();
        assert_eq!(receiver.await.unwrap().unwrap(), state);
    }

    #[test]
    fn older_version_sends_nothing() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert_eq!(receive_state(&theirs).unwrap(), ManualState::default());
    }
}
