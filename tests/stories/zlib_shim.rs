//! penstock builds without cmake: the replacement for the zlib-ng that Pingora depends on
//! packs and unpacks as zlib does.

use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;

#[test]
fn compressed_text_decompresses_to_the_same() {
    let text = "a stone in the river, a river around the stone. ".repeat(2000);
    for level in [1, 6, 9] {
        let mut packer = ZlibEncoder::new(Vec::new(), Compression::new(level));
        packer.write_all(text.as_bytes()).unwrap();
        let packed = packer.finish().unwrap();
        assert!(packed.len() < text.len() / 10, "level {level}: {} bytes", packed.len());
        let mut unpacked = String::new();
        ZlibDecoder::new(&*packed).read_to_string(&mut unpacked).unwrap();
        assert_eq!(unpacked, text, "level {level}");
    }
}
