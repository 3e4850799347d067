//! A sample that readers see whole without a lock: two slots of atomics, of which the one that is
//! not being read is written. A reader repeats only when two samples came in while it read one.

use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::EngineSample;
use crate::units::{Timestamp, to_micros};

const WORDS: usize = 4;

#[derive(Debug, Default)]
struct Slot([AtomicU64; WORDS]);

/// Holds the last sample.
#[derive(Debug, Default)]
pub(super) struct SampleCell {
    /// How many samples there have been; the last one's lowest bit names its slot.
    version: AtomicU64,
    slots: [Slot; 2],
    writer: Mutex<()>,
}

impl SampleCell {
    fn slot(&self, version: u64) -> &Slot {
        let [even, odd] = &self.slots;
        if version.is_multiple_of(2) { even } else { odd }
    }

    /// The last sample.
    pub(super) fn read(&self) -> Option<EngineSample> {
        loop {
            let version = self.version.load(Ordering::Acquire);
            if version == 0 {
                return None;
            }
            let words = self.slot(version).0.each_ref().map(|word| word.load(Ordering::Relaxed));
            // Whoever saw a word of a later sample sees here that there is one.
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return Some(unpack(words));
            }
        }
    }

    /// Puts a sample in the place of the last one.
    pub(super) fn write(&self, sample: EngineSample) {
        let _one_writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.version.load(Ordering::Relaxed);
        // The words below must not be seen before the version that took readers off their slot.
        fence(Ordering::Release);
        for (word, value) in self.slot(version.wrapping_add(1)).0.iter().zip(pack(sample)) {
            word.store(value, Ordering::Relaxed);
        }
        self.version.store(version.wrapping_add(1), Ordering::Release);
    }
}

/// Not a number stands for unknown.
fn pack(sample: EngineSample) -> [u64; WORDS] {
    let bits = |value: Option<f32>| u64::from(value.unwrap_or(f32::NAN).to_bits());
    [
        bits(sample.waiting) << 32 | bits(sample.running),
        bits(sample.kv_utilization) << 32 | u64::from(sample.in_flight),
        sample.sent_at.0,
        to_micros(sample.interval),
    ]
}

fn unpack([requests, cache, sent_at, interval]: [u64; WORDS]) -> EngineSample {
    let value = |bits: u64| Some(f32::from_bits(low(bits))).filter(|value| !value.is_nan());
    EngineSample {
        waiting: value(requests >> 32),
        running: value(requests),
        kv_utilization: value(cache >> 32),
        in_flight: low(cache),
        sent_at: Timestamp(sent_at),
        interval: Duration::from_micros(interval),
    }
}

fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}
