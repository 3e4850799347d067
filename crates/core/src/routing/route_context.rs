//! The mutable side of one decision. Everything that it reads is in [`RouteInput`].
//!
//! [`RouteInput`]: super::RouteInput

use super::scratch::Scratch;

/// The randomness, the buffers and the observer of one decision.
#[derive(Debug)]
pub(super) struct RouteContext<'a, S, R> {
    pub(super) random: &'a mut S,
    pub(super) scratch: &'a mut Scratch,
    pub(super) recorder: &'a mut R,
}
