//! A sample that readers see whole without a lock: two slots of atomics, of which the one that is
//! not being read is written. A reader repeats only when two samples came in while it read one.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use super::EngineSample;
use crate::units::{Micros, Timestamp, to_micros};

/// Numbers of 64 bits in a sample, beside one of 32.
const WORDS: usize = 3;

/// Holds the last sample. What a reader touches is one cache line: decisions read those of all backends.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(super) struct SampleCell {
    /// How many samples there have been; the last one's lowest bit names its slot.
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

    /// The last sample.
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
            // Whoever saw a word of a later sample sees here that there is one.
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return Some(packed);
            }
        }
    }

    /// Puts a sample in the place of the last one.
    pub(super) fn write(&self, sample: EngineSample) {
        let _one_writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.version.load(Ordering::Relaxed);
        // The words below must not be seen before the version that took readers off their slot.
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

/// A sample as it is kept. Decisions read it as it is: to make durations of its microseconds costs more
/// than the rest.
#[derive(Debug, Clone, Copy)]
pub(super) struct Packed {
    /// Waiting and running; in flight and the interval in microseconds; when it was sent.
    words: [u64; WORDS],
    /// The share of the KV cache in use.
    cache_use: u32,
}

impl Packed {
    /// Not a number stands for unknown.
    fn of(sample: EngineSample) -> Self {
        let bits = |value: Option<f32>| value.unwrap_or(f32::NAN).to_bits();
        let both = |high: u32, low: u32| u64::from(high) << 32 | u64::from(low);
        // The longest interval there is room for is over an hour.
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
        Micros(u64::from(low(numbers)))
    }

    #[inline]
    pub(super) fn unpack(&self) -> EngineSample {
        let [requests, numbers, _] = self.words;
        let value = |bits: u32| Some(f32::from_bits(bits)).filter(|value| !value.is_nan());
        EngineSample {
            waiting: value(low(requests >> 32)),
            running: value(low(requests)),
            kv_utilization: value(self.cache_use),
            in_flight: low(numbers >> 32),
            sent_at: self.sent_at(),
            interval: self.interval().to_duration(),
        }
    }
}

fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(u32::MAX)
}
