//! Bodies as the encoders of real clients write them, and as no client should.

use std::io::Write;

use flate2::Compression;
use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
use proptest::prelude::*;

use super::*;

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn zlib(text: &[u8]) -> Vec<u8> {
    let mut encoder = ZlibEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn raw_deflate(text: &[u8]) -> Vec<u8> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

fn brotli(text: &[u8]) -> Vec<u8> {
    let mut encoded = Vec::new();
    let mut encoder = brotli::CompressorWriter::new(&mut encoded, 4096, 5, 22);
    encoder.write_all(text).unwrap();
    drop(encoder);
    encoded
}

/// A frame of known length.
fn zstd_whole(text: &[u8]) -> Vec<u8> {
    zstd::bulk::compress(text, 3).unwrap()
}

/// A frame without a length, in blocks of `flush` bytes.
fn zstd_streamed(text: &[u8], flush: usize) -> Vec<u8> {
    let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
    encoder.include_checksum(true).unwrap();
    for part in text.chunks(flush.max(1)) {
        encoder.write_all(part).unwrap();
        encoder.flush().unwrap();
    }
    encoder.finish().unwrap()
}

/// `text` in every coding and form.
fn forms(text: &[u8]) -> Vec<(ContentCoding, Vec<u8>)> {
    vec![
        (ContentCoding::Gzip, gzip(text)),
        (ContentCoding::Deflate, zlib(text)),
        (ContentCoding::Deflate, raw_deflate(text)),
        (ContentCoding::Brotli, brotli(text)),
        (ContentCoding::Zstd, zstd_whole(text)),
        (ContentCoding::Zstd, zstd_streamed(text, 1000)),
    ]
}

/// Decodes in steps of `most` input bytes into `room` bytes.
fn decode_by(
    coding: ContentCoding,
    body: &[u8],
    (most, room): (usize, usize),
) -> Result<Vec<u8>, DecodeError> {
    let mut decoder = ContentDecoder::new(coding);
    let (mut rest, mut out, mut output) = (body, Vec::new(), vec![0; room]);
    loop {
        let step = decoder.step(rest, most, &mut output)?;
        out.extend_from_slice(&output[..step.written]);
        rest = &rest[step.read..];
        if step.is_whole {
            assert!(rest.is_empty(), "{coding:?} ends where its bytes do");
            return Ok(out);
        }
    }
}

fn decode(coding: ContentCoding, body: &[u8]) -> Result<Vec<u8>, DecodeError> {
    decode_by(coding, body, (65_536, 65_536))
}

fn text(length: usize) -> Vec<u8> {
    let words = ["{\"role\":\"user\",", "\"content\":\"", "hello ", "world", "\"},\n"];
    words.iter().cycle().flat_map(|word| word.bytes()).take(length).collect()
}

#[test]
fn every_coding_is_decoded_in_steps_of_any_size() {
    for length in [0, 1, 100, 65_535, 65_536, 65_537, 300_000] {
        let text = text(length);
        for (coding, body) in forms(&text) {
            for steps in [(65_536, 65_536), (1000, 100_000), (100_000, 1000)] {
                let decoded = decode_by(coding, &body, steps);
                assert!(decoded.as_ref() == Ok(&text), "{coding:?}, {length}, {steps:?}");
            }
        }
    }
    for (coding, body) in forms(&text(500)) {
        assert_eq!(decode_by(coding, &body, (1, 1)), Ok(text(500)), "{coding:?} byte by byte");
    }
}

#[test]
fn members_and_frames_may_follow_each_other() {
    let two = [gzip(b"one,"), gzip(b""), gzip(b"two")].concat();
    assert_eq!(decode(ContentCoding::Gzip, &two).unwrap(), b"one,two");
    let skipped = b"\x51\x2a\x4d\x18\x03\x00\x00\x00abc";
    let two = [&skipped[..], &zstd_whole(b"one,"), skipped, &zstd_streamed(b"two", 1)].concat();
    assert_eq!(decode(ContentCoding::Zstd, &two).unwrap(), b"one,two");
    let many = gzip(b"").repeat(MAX_FRAMES + 1);
    assert_eq!(decode(ContentCoding::Gzip, &many), Err(DecodeError::TooManyFrames));
}

#[test]
fn every_cut_is_noticed() {
    let text = text(3000);
    for (coding, body) in forms(&text) {
        for end in 0..body.len() {
            let cut = decode(coding, &body[..end]);
            assert_eq!(cut, Err(DecodeError::Truncated), "{coding:?}, {end} of {}", body.len());
        }
    }
}

#[test]
fn other_bytes_after_the_end_are_refused() {
    for (coding, body) in forms(&text(3000)) {
        for more in [&b"\0"[..], b"{}", b"\x1f", b"\x28\xb5\x2f\xfc"] {
            let longer = [&body[..], more].concat();
            assert_eq!(decode(coding, &longer), Err(DecodeError::TrailingBytes), "{coding:?}");
        }
    }
}

#[test]
fn bodies_of_another_form_are_refused() {
    for coding in ContentCoding::ALL {
        let plain = decode(coding, b"{\"model\":\"m\",\"messages\":[]}");
        assert!(plain.is_err(), "{coding:?}: {plain:?}");
    }
    let old = b"\x27\xb5\x2f\xfd\x00\x00\x00\x00\x00\x00\x00\x00";
    let malformed = decode(ContentCoding::Zstd, old);
    assert_eq!(malformed, Err(DecodeError::Malformed), "the formats before version 0.8");
    let mut body = gzip(&text(3000));
    let last = body.len() - 5;
    body[last] ^= 1;
    assert_eq!(decode(ContentCoding::Gzip, &body), Err(DecodeError::Malformed), "the checksum");
}

#[test]
fn windows_are_bounded() {
    let text = text(20 << 20);
    let by_window = |log| {
        let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 1).unwrap();
        encoder.window_log(log).unwrap();
        encoder.write_all(&text).unwrap();
        encoder.finish().unwrap()
    };
    assert!(decode(ContentCoding::Zstd, &by_window(23)).unwrap() == text);
    let large = decode(ContentCoding::Zstd, &by_window(24));
    assert_eq!(large.map(|decoded| decoded.len()), Err(DecodeError::WindowTooLarge));
    // A large window of Brotli: a first byte that RFC 7932 does not have.
    let large = decode(ContentCoding::Brotli, &[0x11, 0x1e, 0x03]);
    assert_eq!(large, Err(DecodeError::Malformed));
}

proptest! {
    #[test]
    fn no_body_makes_a_decoder_panic(
        length in 0_usize..4000,
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        most in 1_usize..5000,
        room in 1_usize..5000,
    ) {
        for (coding, mut body) in forms(&text(length)) {
            for (place, byte) in &edits {
                let at = place.index(body.len());
                body[at] = *byte;
            }
            let decoded = decode_by(coding, &body, (most, room));
            if edits.is_empty() {
                prop_assert!(decoded == Ok(text(length)));
            }
        }
    }

    #[test]
    fn steps_of_any_size_decode_alike(
        body in prop::collection::vec(any::<u8>(), 0..300),
        most in 1_usize..50,
        room in 1_usize..5000,
    ) {
        for coding in ContentCoding::ALL {
            let whole = decode(coding, &body);
            let stepwise = decode_by(coding, &body, (most, room));
            prop_assert_eq!(whole.is_ok(), stepwise.is_ok());
            if whole.is_ok() {
                prop_assert_eq!(whole, stepwise);
            }
        }
    }
}
