//! Bytes as lower-case hexadecimal digits, without the cost of the formatter.

/// Writes two digits for each byte to the front of `out`, as far as there is space.
pub fn write(bytes: &[u8], out: &mut [u8]) {
    for (byte, pair) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
        *pair = [digit(byte >> 4), digit(byte & 15)];
    }
}

fn digit(half: u8) -> u8 {
    if half < 10 { b'0' + half } else { b'a' + half - 10 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_formatter() {
        for byte in 0..=u8::MAX {
            let mut out = [0; 2];
            write(&[byte], &mut out);
            assert_eq!(out, *format!("{byte:02x}").as_bytes());
        }
        let mut short = [b'.'; 3];
        write(&[0xab, 0xcd], &mut short);
        assert_eq!(&short, b"ab.", "half a byte is not written");
    }
}
