//! Block hashes of text that was hashed before. A conversation is sent anew with each of its turns:
//! to hash its raw bytes and look up what they came to takes a third of the time that decoding them and
//! hashing them block by block does.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use twox_hash::{XxHash3_64, XxHash3_128};

use super::chain::fold;

/// Words of a slot.
const SLOT: usize = 48;
/// Those of them that hold hashes, and text behind the last block.
const ROOM: usize = SLOT - 5;
const BYTES_OF_WORD: usize = size_of::<u64>();
/// Words of a secret that the hash of bytes takes.
const HASH_SECRET: usize = 24;
/// Words of a secret.
pub const SECRET: usize = HASH_SECRET + 6;

/// Remembers pieces of prompts by all that came before them and their raw bytes. Shared by all threads
/// without a lock: a slot that is being written is for its readers as if it were empty.
///
/// What a piece comes to is believed without a second look, so its key must be nobody's to forge: it is
/// 128 bits, made with a secret that never leaves the process.
pub struct HashCache {
    words: Box<[AtomicU64]>,
    secret: [u64; SECRET],
    counts: Counts,
}

/// What a piece is known by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    /// Where its slot is.
    place: u64,
    check: u64,
}

/// On a cache line of their own: all threads write them, and read what lies beside.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Counts {
    hits: AtomicU64,
    misses: AtomicU64,
}

/// What a piece came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Known {
    /// How many of its bytes it stands for: what is cut off at its end belongs to the next.
    pub(super) read: usize,
    /// Whether the string ends there.
    pub(super) is_over: bool,
    /// Bytes of text behind the last full block.
    pub(super) carry: usize,
}

impl fmt::Debug for HashCache {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("HashCache").field("size", &self.size()).finish_non_exhaustive()
    }
}

impl HashCache {
    /// A cache that takes at most so many bytes; `None` where that is not even one slot, or more than
    /// there is. Memory is taken as it is used. `secret` is random.
    pub fn new(bytes: usize, secret: [u64; SECRET]) -> Option<Self> {
        let words = bytemuck::try_zeroed_slice_box(words_within(bytes)).ok()?;
        (!words.is_empty()).then(|| Self { words, secret, counts: Counts::default() })
    }

    /// Whether what pieces of so many bytes come to, cut into blocks of `block` bytes, fits a slot.
    pub fn suits(block: usize, piece: usize) -> bool {
        piece / block + block.div_ceil(BYTES_OF_WORD) <= ROOM
    }

    /// The key of a piece behind a block with the hash `last` and, after that, `carried`.
    pub(super) fn key(&self, (last, block): (u64, usize), carried: &[u8], piece: &[u8]) -> Key {
        let (bytes, salts) = self.secret.split_at(HASH_SECRET);
        let bytes = bytemuck::cast_slice(bytes);
        let [a, b, c, d, e, f] = salts.try_into().unwrap_or_default();
        // A secret of this length is never too short.
        let carried = XxHash3_64::oneshot_with_secret(bytes, carried).unwrap_or_default();
        let piece = XxHash3_128::oneshot_with_secret(bytes, piece).unwrap_or_default();
        let before = fold(fold(last ^ a, block as u64 ^ b) ^ c, carried ^ d);
        #[expect(clippy::cast_possible_truncation, reason = "the halves of the hash")]
        let (low, high) = (piece as u64, (piece >> u64::BITS) as u64);
        Key { place: fold(before ^ e, low ^ f), check: fold(before ^ f, high ^ e) }
    }

    /// Whether a cache of so many bytes would be as large as this.
    pub fn is_of_size(&self, bytes: usize) -> bool {
        self.words.len() == words_within(bytes)
    }

    /// The most memory it takes, in bytes.
    pub fn size(&self) -> usize {
        self.words.len() * BYTES_OF_WORD
    }

    /// Pieces of prompts that were known, and pieces that were not.
    pub fn counts(&self) -> (u64, u64) {
        let Counts { hits, misses } = &self.counts;
        (hits.load(Ordering::Relaxed), misses.load(Ordering::Relaxed))
    }

    /// Counts what a prompt asked for.
    pub(super) fn count(&self, (hits, misses): (u32, u32)) {
        for (counter, more) in [(&self.counts.hits, hits), (&self.counts.misses, misses)] {
            if more > 0 {
                counter.fetch_add(u64::from(more), Ordering::Relaxed);
            }
        }
    }

    /// What the piece of that key came to: its hashes are added to `hashes`, and what follows them is
    /// written to the beginning of `carry`.
    pub(super) fn get(&self, key: Key, hashes: &mut Vec<u64>, carry: &mut [u8]) -> Option<Known> {
        let slot = self.slot(key)?;
        let [stamp, place, check, form, _, rest @ ..] = slot;
        let before = stamp.load(Ordering::Acquire);
        let found =
            Key { place: place.load(Ordering::Relaxed), check: check.load(Ordering::Relaxed) };
        if !is_stable(before) || found != key {
            return None;
        }
        let form = Form::unpack(form.load(Ordering::Relaxed));
        let (blocks, behind) = rest.split_at_checked(form.blocks)?;
        let known = hashes.len();
        hashes.extend(blocks.iter().map(|hash| hash.load(Ordering::Relaxed)));
        let (words, _) = carry.as_chunks_mut();
        for (bytes, word) in words.iter_mut().zip(behind).take(form.carry_words()) {
            *bytes = word.load(Ordering::Relaxed).to_le_bytes();
        }
        // All of it was read before the stamp is looked at again.
        fence(Ordering::Acquire);
        if stamp.load(Ordering::Relaxed) != before
            || form.read == 0
            || form.carry_words() > words.len()
        {
            hashes.truncate(known);
            return None;
        }
        Some(Known { read: form.read, is_over: form.is_over == 1, carry: form.carry })
    }

    /// Notes that the piece of that key was asked for: whether it was before. Most prompts come once, and
    /// what comes once is not worth its slot.
    pub(super) fn is_sought_again(&self, key: Key) -> bool {
        self.slot(key).is_some_and(|[_, _, _, _, sought, ..]| {
            sought.load(Ordering::Relaxed) == key.check || {
                sought.store(key.check, Ordering::Relaxed);
                false
            }
        })
    }

    /// Remembers what the piece of that key came to, in the place of whatever its slot held; unless
    /// there is too much of it, or somebody else is about to.
    pub(super) fn put(
        &self,
        key: Key,
        (read, is_over): (usize, bool),
        (hashes, carry): (&[u64], &[u8]),
    ) {
        let is_over = usize::from(is_over);
        let form = Form { read, is_over, carry: carry.len(), blocks: hashes.len() };
        let Some([stamp, place, check, packed, _, rest @ ..]) = self.slot(key) else { return };
        let before = stamp.load(Ordering::Relaxed);
        let fits = form.read > 0 && form.blocks + form.carry_words() <= rest.len();
        if !fits || !is_stable(before) {
            return;
        }
        let writing = before.wrapping_add(1);
        let taken =
            stamp.compare_exchange(before, writing, Ordering::Acquire, Ordering::Relaxed).is_ok();
        if !taken {
            return;
        }
        // Nothing of it is written before it is marked as being written.
        fence(Ordering::Release);
        place.store(key.place, Ordering::Relaxed);
        check.store(key.check, Ordering::Relaxed);
        packed.store(form.pack(), Ordering::Relaxed);
        let words = carry.chunks(BYTES_OF_WORD).map(|bytes| {
            bytes.iter().rev().fold(0, |word, byte| word << u8::BITS | u64::from(*byte))
        });
        for (slot, word) in rest.iter().zip(hashes.iter().copied().chain(words)) {
            slot.store(word, Ordering::Relaxed);
        }
        stamp.store(before.wrapping_add(2), Ordering::Release);
    }

    fn slot(&self, key: Key) -> Option<&[AtomicU64; SLOT]> {
        let (slots, _) = self.words.as_chunks();
        let place = (u128::from(key.place) * slots.len() as u128) >> u64::BITS;
        slots.get(usize::try_from(place).ok()?)
    }
}

/// The words of as many slots as fit.
fn words_within(bytes: usize) -> usize {
    bytes / (SLOT * BYTES_OF_WORD) * SLOT
}

/// An odd stamp: a write has begun and not ended.
fn is_stable(stamp: u64) -> bool {
    stamp.is_multiple_of(2)
}

/// How the words of a slot are to be read, itself one of them.
#[derive(Debug, Clone, Copy)]
struct Form {
    read: usize,
    is_over: usize,
    carry: usize,
    blocks: usize,
}

impl Form {
    const BITS: u32 = 16;
    const MASK: u64 = (1 << Self::BITS) - 1;

    fn pack(self) -> u64 {
        [self.is_over, self.read, self.carry, self.blocks]
            .into_iter()
            .fold(0, |word, part| word << Self::BITS | part as u64 & Self::MASK)
    }

    fn unpack(word: u64) -> Self {
        let part = |place| (word >> (place * Self::BITS) & Self::MASK) as usize;
        Self { is_over: part(3), read: part(2), carry: part(1), blocks: part(0) }
    }

    fn carry_words(self) -> usize {
        self.carry.div_ceil(BYTES_OF_WORD)
    }
}
