//! Reads numbers and literals, strictly by the JSON grammar.

use penstock_api::slices::after;

use super::cursor::{Cursor, Parsed, Syntax};

/// The number of decimal digits that always fit 64 bits.
const EXACT_DIGITS: usize = 19;

impl Cursor<'_> {
    /// Consumes the number or literal at the cursor.
    #[inline]
    pub(super) fn scalar(&mut self) -> Parsed {
        match self.bytes.get(self.at) {
            Some(b't') => self.literal(b"true"),
            Some(b'f') => self.literal(b"false"),
            Some(b'n') => self.literal(b"null"),
            Some(b'N' | b'I') if self.is_lenient => self.no_number(),
            Some(b'-') if self.is_lenient && self.bytes.get(self.at + 1) == Some(&b'I') => {
                self.at += 1;
                self.no_number()
            }
            Some(b'-' | b'0'..=b'9') => self.number().map(|_| ()),
            _ => Err(Syntax::Value),
        }
    }

    /// Consumes one of Python's numbers that JSON does not have.
    #[cold]
    fn no_number(&mut self) -> Parsed {
        self.literal(b"NaN").or_else(|_| self.literal(b"Infinity"))
    }

    #[inline]
    fn literal(&mut self, literal: &[u8]) -> Parsed {
        let rest = after(self.bytes, self.at);
        if !rest.starts_with(literal) {
            return Err(Syntax::Value);
        }
        self.at += literal.len();
        Ok(())
    }

    /// Consumes the number at the cursor. Returns its saturated value if it is a non-negative
    /// integer.
    pub(super) fn number(&mut self) -> Result<Option<u32>, Syntax> {
        let mut is_whole = true;
        if self.byte() == b'-' {
            is_whole = false;
            self.at += 1;
        }
        let starts_with_zero = self.byte() == b'0';
        let first = self.at;
        let value = self.digits()?;
        // RFC 8259 §6 forbids leading zeros.
        if starts_with_zero && self.at > first + 1 {
            return Err(Syntax::Value);
        }
        if self.byte() == b'.' {
            is_whole = false;
            self.at += 1;
            self.digits()?;
        }
        if self.byte() | 0x20 == b'e' {
            is_whole = false;
            self.at += 1;
            if matches!(self.byte(), b'+' | b'-') {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(is_whole.then_some(value))
    }

    /// Consumes at least one digit. Returns the saturated value.
    #[inline(always)]
    fn digits(&mut self) -> Result<u32, Syntax> {
        let mut at = self.at;
        let mut value = 0_u64;
        while let Some(byte @ b'0'..=b'9') = self.bytes.get(at) {
            value = value.wrapping_mul(10).wrapping_add(u64::from(byte & 0xf));
            at += 1;
        }
        let count = at - self.at;
        if count == 0 {
            return Err(Syntax::Digit);
        }
        self.at = at;
        // Up to this length the value did not wrap. A longer number has no leading zeros, so it
        // exceeds `u32::MAX`.
        let value = if count <= EXACT_DIGITS { value } else { u64::MAX };
        Ok(u32::try_from(value).unwrap_or(u32::MAX))
    }

    #[inline(always)]
    fn byte(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }
}
