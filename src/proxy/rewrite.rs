//! The changes of a request that most requests do not need: each is looked at before an attempt, or
//! after a backend refused one.

pub(crate) mod context_shift;
pub(crate) mod residency;
pub(crate) mod shift_plan;
pub(crate) mod token_count;
pub(crate) mod unsupported;
pub(crate) mod usage_filter;
