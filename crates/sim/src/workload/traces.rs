//! Recorded traffic: the published traces of this field, and penstock's own access log. The first
//! line identifies the format.

mod access_log;
mod csv;
mod mooncake;
mod servegen;

use super::Workload;
pub use access_log::read_timings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TraceFormat {
    /// Mooncake's JSON lines: arrival, lengths and hashes of 512-token blocks.
    Mooncake,
    /// Bailian's JSON lines: like Mooncake's, with blocks of 16 tokens, and chats.
    Bailian,
    /// Azure's CSV: arrival and lengths.
    Azure,
    /// BurstGPT's CSV: arrival, session, model and lengths.
    BurstGpt,
    /// ServeGen's clients: their rates and length distributions.
    ServeGen,
    /// penstock's access log with the fields needed for replay.
    AccessLog,
}

/// The reason why a trace cannot be read.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The format is unknown.
    #[error(
        "no known trace: its first line is neither JSON with timestamp and input_length (Mooncake, Bailian), nor an \
         access log of penstock, nor a CSV header of Azure, BurstGPT or ServeGen"
    )]
    Unknown,
    /// A line does not have the expected form.
    #[error("line {line}: {reason}")]
    Line {
        /// The number of the line, from 1.
        line: usize,
        /// The error in the line.
        reason: String,
    },
    /// The trace has no requests.
    #[error("the trace has no requests")]
    Empty,
}

impl TraceError {
    fn line(index: usize, reason: impl ToString) -> Self {
        Self::Line { line: index + 1, reason: reason.to_string() }
    }
}

impl TraceFormat {
    /// Detects the format of a text; returns `None` if it is not a trace.
    pub fn of(text: &str) -> Option<Self> {
        let first = text.lines().find(|line| !line.trim().is_empty())?.trim();
        if first.starts_with('{') {
            let has = |key: &str| first.contains(&format!("\"{key}\""));
            return match () {
                () if has("chat_id") && has("hash_ids") => Some(Self::Bailian),
                () if has("timestamp") && has("input_length") => Some(Self::Mooncake),
                () if has("time") && has("duration_ms") => Some(Self::AccessLog),
                () => None,
            };
        }
        match () {
            () if first.starts_with("TIMESTAMP,ContextTokens") => Some(Self::Azure),
            () if first.starts_with("Timestamp,") && first.contains("Request tokens") => {
                Some(Self::BurstGpt)
            }
            () if first.starts_with("category,client,rate_rps") => Some(Self::ServeGen),
            () => None,
        }
    }
}

/// Reads a trace. `seed` spreads arrivals that were recorded in batches, and draws the requests
/// that ServeGen describes.
///
/// # Errors
/// [`TraceError`] for an unknown format, and for the first invalid line.
pub fn read_trace(text: &str, seed: u64) -> Result<Workload, TraceError> {
    if text.trim().is_empty() {
        return Err(TraceError::Empty);
    }
    let mut workload = match TraceFormat::of(text).ok_or(TraceError::Unknown)? {
        TraceFormat::Mooncake => mooncake::read(text, seed, mooncake::MOONCAKE)?,
        TraceFormat::Bailian => mooncake::read(text, seed, mooncake::BAILIAN)?,
        TraceFormat::Azure => csv::read_azure(text)?,
        TraceFormat::BurstGpt => csv::read_burstgpt(text)?,
        TraceFormat::ServeGen => servegen::read(text, seed)?,
        TraceFormat::AccessLog => access_log::read(text)?,
    };
    if workload.requests.is_empty() {
        return Err(TraceError::Empty);
    }
    if workload.models.is_empty() {
        workload.models.push(String::new());
    }
    if workload.clients.is_empty() {
        workload.clients.push("client".to_owned());
    }
    let start = workload.roots().first().and_then(|id| workload.requests.get(*id as usize));
    let start = start.map_or(0, |request| request.arrives_at);
    for request in &mut workload.requests {
        request.arrives_at = request.arrives_at.saturating_sub(start);
    }
    workload.edges.sort_unstable();
    Ok(workload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_recognised_by_their_first_line() {
        for (line, format) in [
            (r#"{"timestamp": 0, "input_length": 5, "hash_ids": [1]}"#, TraceFormat::Mooncake),
            (r#"{"chat_id": 1, "timestamp": 0.5, "hash_ids": [1]}"#, TraceFormat::Bailian),
            ("TIMESTAMP,ContextTokens,GeneratedTokens\r", TraceFormat::Azure),
            (
                "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type",
                TraceFormat::BurstGpt,
            ),
            ("category,client,rate_rps,cv", TraceFormat::ServeGen),
            (r#"{"time":"x","duration_ms":1}"#, TraceFormat::AccessLog),
        ] {
            assert_eq!(TraceFormat::of(line), Some(format), "{line}");
        }
        assert_eq!(read_trace("hello", 1), Err(TraceError::Unknown));
        assert_eq!(read_trace("\n", 1), Err(TraceError::Empty));
    }
}
