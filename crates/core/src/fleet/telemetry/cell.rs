//! A sample that readers see whole without a lock: a seqlock over two slots.
//!
//! **Why.** Every decision reads the telemetry of every candidate. A mutex would make deciding
//! threads wait for each other. An `Arc` behind an `ArcSwap` would cost two contended reference
//! counts per candidate. One atomic cannot hold the six numbers of a sample. Torn samples (the
//! queue of one scrape with the cache use of another) must never be seen.
//!
//! **How.** `version` counts samples, and its lowest bit names the slot that holds the last one.
//! The writer fills the *other* slot and then publishes it by storing the next version with
//! `Release`. A reader loads the version (`Acquire`), copies that slot, and checks that the version
//! is unchanged.
//!
//! **Invariants, and what would break them.**
//! - One writer at a time: `writer` is locked for the whole write. Two writers would fill one slot.
//! - The slot a reader copies is rewritten only by the sample after next. Such a writer has first
//!   published the sample between, so a reader that saw any of its words sees a changed version and
//!   retries. That needs both fences: the writer's `Release` fence keeps its words from becoming
//!   visible before that version, and the reader's `Acquire` fence keeps its second read of the
//!   version behind the copy. Without either, a weakly ordered CPU could pass off a mixed sample as
//!   whole.
//! - A reader retries only if two samples arrive during one copy of 28 bytes; scrapes are at least
//!   milliseconds apart, so in practice it never does.
//! - The fields that readers touch fit one cache line; the assertion below keeps the writer's mutex
//!   out of it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use penstock_api::units::{Micros, Timestamp, lower_half, to_micros};

use super::EngineSample;

/// Numbers of 64 bits in a sample, beside one of 32.
const WORDS: usize = 3;

#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct SampleCell {
    /// The number of samples so far; 0 before the first. The lowest bit names the slot of the last.
    version: AtomicU64,
    words: [[AtomicU64; WORDS]; 2],
    cache_use: [AtomicU32; 2],
    writer: Mutex<()>,
}

const _: () = assert!(std::mem::offset_of!(SampleCell, writer) == 64);

impl SampleCell {
    fn slot(&self, version: u64) -> (&[AtomicU64; WORDS], &AtomicU32) {
        let ([even, odd], [even_use, odd_use]) = (&self.words, &self.cache_use);
        if version.is_multiple_of(2) { (even, even_use) } else { (odd, odd_use) }
    }

    #[inline]
    pub(super) fn read(&self) -> Option<Packed> {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version == 0 {
                return None;
            }
            let (words, cache_use) = self.slot(version);
            let words = words.each_ref().map(|word| word.load(Ordering::Relaxed));
            let packed = Packed { words, cache_use: cache_use.load(Ordering::Relaxed) };
            // A copy with words of a later sample sees the later version below.
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return Some(packed);
            }
        }
    }

    pub(super) fn write(&self, sample: EngineSample) {
        let _one_writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.version.load(Ordering::Relaxed);
        // The words below must not become visible before the version that moved readers off this
        // slot.
        fence(Ordering::Release);
        let packed = Packed::of(sample);
        let (words, cache_use) = self.slot(version.wrapping_add(1));
        for (word, value) in words.iter().zip(packed.words) {
            word.store(value, Ordering::Relaxed);
        }
        cache_use.store(packed.cache_use, Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Release);
    }
}

/// A packed sample. Decisions compare its age before unpacking: converting microseconds to a
/// `Duration` costs more than everything else.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packed {
    /// Two numbers of 32 bits each, the first in the upper half: waiting and running (as `f32`
    /// bits); in flight and the interval in microseconds. The last word is the time of the scrape,
    /// in microseconds.
    words: [u64; WORDS],
    /// The share of the KV cache in use, as `f32` bits.
    cache_use: u32,
}

impl Packed {
    /// NaN stands for unknown.
    fn of(sample: EngineSample) -> Self {
        let bits = |value: Option<f32>| value.unwrap_or(f32::NAN).to_bits();
        let both = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        // Saturates at over an hour.
        let interval = u32::try_from(to_micros(sample.interval)).unwrap_or(u32::MAX);
        let words = [
            both(bits(sample.waiting), bits(sample.running)),
            both(sample.in_flight, interval),
            sample.sent_at.0,
        ];
        Self { words, cache_use: bits(sample.kv_utilization) }
    }

    pub(super) fn sent_at(&self) -> Timestamp {
        let [.., sent_at] = self.words;
        Timestamp(sent_at)
    }

    pub(super) fn interval(&self) -> Micros {
        let [_, numbers, _] = self.words;
        Micros(u64::from(lower_half(numbers)))
    }

    #[inline]
    pub(super) fn unpack(&self) -> EngineSample {
        let [requests, numbers, _] = self.words;
        let value = |bits: u32| Some(f32::from_bits(bits)).filter(|value| !value.is_nan());
        EngineSample {
            waiting: value(lower_half(requests >> 32)),
            running: value(lower_half(requests)),
            kv_utilization: value(self.cache_use),
            in_flight: lower_half(numbers >> 32),
            sent_at: self.sent_at(),
            interval: self.interval().to_duration(),
        }
    }
}
