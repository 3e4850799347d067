//! The verdict of the filters on a backend.

use super::RejectReason;

/// The result of [`Filters::check`](super::Filters::check). `bool` is for callers that ignore the
/// reason: none is built.
pub trait Verdict {
    /// The backend may take the request.
    fn admit() -> Self;
    /// The backend may not take it.
    fn reject(reason: impl FnOnce() -> RejectReason) -> Self;
}

impl Verdict for bool {
    #[inline(always)]
    fn admit() -> Self {
        true
    }

    #[inline(always)]
    fn reject(_reason: impl FnOnce() -> RejectReason) -> Self {
        false
    }
}

impl Verdict for Result<(), RejectReason> {
    fn admit() -> Self {
        Ok(())
    }

    fn reject(reason: impl FnOnce() -> RejectReason) -> Self {
        Err(reason())
    }
}
