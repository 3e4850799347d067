//! Whatever a fuzzer ever found worth keeping is tried again with every change: the corpora of the
//! fuzz targets in `fuzz/`, through the same functions, without a fuzzer.

use std::path::Path;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use crate::support::is_long;

#[path = "../../fuzz/targets.rs"]
mod targets;

/// Mutations of each file of a corpus: always the same ones.
fn mutations() -> usize {
    if is_long() { 100_000 } else { 300 }
}

/// Feeds every file of a corpus to its target, every beginning of it, and what becomes of it by
/// small changes and by joining it with others.
fn replay(name: &str, target: fn(&[u8])) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut files: Vec<_> =
        std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let corpus: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).unwrap()).collect();
    assert!(corpus.len() >= 9, "only {} files in {}", corpus.len(), folder.display());
    let mut rng = SmallRng::seed_from_u64(11);
    for bytes in &corpus {
        target(bytes);
        for end in (0..bytes.len()).step_by(1 + bytes.len() / 64) {
            target(&bytes[..end]);
        }
        for _ in 0..mutations() {
            let mutated = mutate(bytes, &corpus, &mut rng);
            let outcome = std::panic::catch_unwind(|| target(&mutated));
            assert!(outcome.is_ok(), "{name} fails on {}", mutated.escape_ascii());
        }
    }
}

fn mutate(bytes: &[u8], corpus: &[Vec<u8>], rng: &mut SmallRng) -> Vec<u8> {
    const LIKELY: &[u8] = b"{}[]:,\"\\-._ \t\r\n\0\x7f\x80\xc3\xff09ax";
    let mut mutated = bytes.to_vec();
    for _ in 0..rng.random_range(1..4) {
        let place = rng.random_range(0..=mutated.len());
        let byte = LIKELY[rng.random_range(0..LIKELY.len())];
        match rng.random_range(0..6) {
            0 => mutated.insert(place, byte),
            1 => mutated.truncate(place),
            2 if place < mutated.len() => _ = mutated.remove(place),
            3 if place < mutated.len() => mutated[place] = byte,
            4 if place < mutated.len() => mutated[place] ^= 1 << rng.random_range(0..8),
            _ => {
                let other = &corpus[rng.random_range(0..corpus.len())];
                let from = rng.random_range(0..=other.len());
                let to = rng.random_range(from..=other.len());
                mutated.splice(place..place, other[from..to].iter().copied());
            }
        }
    }
    mutated
}

#[test]
fn json_bodies() {
    replay("scan_json", targets::scan_json);
}

#[test]
fn forms() {
    replay("scan_form", targets::scan_form);
}

#[test]
fn configurations() {
    replay("load_config", targets::load_config);
}

#[test]
fn streams() {
    replay("watch_stream", targets::watch_stream);
}

#[test]
fn heads() {
    replay("read_head", targets::read_head);
}

#[test]
fn response_heads() {
    replay("response_head", targets::response_head);
}

#[test]
fn chunked_bodies() {
    replay("chunk_decoder", targets::chunk_decoder);
}

#[test]
fn proxy_headers() {
    replay("proxy_header", targets::proxy_header);
}

#[test]
fn metrics_pages() {
    replay("metrics_page", targets::metrics_page);
}

#[test]
fn http2_frames() {
    replay("frame_watcher", targets::frame_watcher);
}

#[test]
fn converted_requests() {
    replay("convert_request", targets::convert_request);
}

#[test]
fn converted_streams() {
    replay("convert_stream", targets::convert_stream);
}
