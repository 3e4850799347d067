//! The endpoints of live usage, in the shapes of the NOMYO Router. They are on the admin port, and
//! with `server.compat` on the data port.

/// A usage endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UsageCall {
    /// `GET /api/usage`: requests in flight and tokens per backend and model.
    Usage,
    /// `GET /api/usage-stream`: the same as events.
    Stream,
    /// `GET /api/token_counts`
    TokenCounts,
    /// `POST /api/stats`: one model over time.
    Stats,
    /// `GET /api/config`: the backends.
    Config,
    /// `POST /api/aggregate_time_series_days`
    Days,
    /// `GET /api/cache/stats`
    CacheStats,
    /// `POST /api/cache/invalidate`
    InvalidateCache,
}

impl UsageCall {
    /// Every call with its path.
    pub const ALL: [(Self, &'static str); 8] = [
        (Self::Usage, "/api/usage"),
        (Self::Stream, "/api/usage-stream"),
        (Self::TokenCounts, "/api/token_counts"),
        (Self::Stats, "/api/stats"),
        (Self::Config, "/api/config"),
        (Self::Days, "/api/aggregate_time_series_days"),
        (Self::CacheStats, "/api/cache/stats"),
        (Self::InvalidateCache, "/api/cache/invalidate"),
    ];

    /// Returns the call at a path.
    pub fn of_path(path: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, own)| *own == path).map(|(call, _)| *call)
    }

    /// Returns whether it is a POST; the others are GET.
    pub const fn is_post(self) -> bool {
        matches!(self, Self::Stats | Self::Days | Self::InvalidateCache)
    }
}

/// A request for usage.
#[derive(Debug, Clone, Copy)]
pub struct UsageRequest<'a> {
    /// The path that was requested.
    pub call: UsageCall,
    /// The query of the URL.
    pub query: &'a str,
    /// The body; empty for a GET.
    pub body: &'a [u8],
}
