//! Skips values, and weighs them on the way.

use penstock_api::slices::{after, between};

use super::cursor::{Cursor, Parsed, Syntax};
use super::text::BodyString;
use super::weight::Weight;

impl Cursor<'_> {
    /// Consumes the value at the cursor, which starts with `kind`, and returns its weight; null
    /// weighs nothing.
    pub(super) fn weighed(&mut self, kind: u8) -> Result<Weight, Syntax> {
        match kind {
            b'"' => {
                let string = self.string()?;
                Ok(Weight::of_string(self.raw(string), self.measure(string)))
            }
            b'{' | b'[' => {
                self.skip(kind)?;
                Ok(self.weight)
            }
            _ => {
                let start = self.at;
                self.skip(kind)?;
                let mut weight = Weight::default();
                if kind != b'n' {
                    weight.add_scalar(self.at - start);
                }
                Ok(weight)
            }
        }
    }

    /// Consumes an array or object, and stores its weight in the cursor.
    #[inline(never)]
    pub(super) fn skip_nested(&mut self) -> Parsed {
        self.nested(|_, _, _| {})
    }

    /// Does the same with a list of tools. Returns whether it has a tool that the engine defines or
    /// runs: one of another type than the client's own.
    #[inline(never)]
    pub(super) fn skip_tools(&mut self) -> Result<bool, Syntax> {
        const OWN: [&[u8]; 2] = [b"\"function\"", b"\"custom\""];
        let mut refers = false;
        self.nested(|cursor, name, level| {
            if level == 2 && cursor.raw(name) == b"type" && cursor.peek() == b'"' {
                let kind = after(cursor.bytes, cursor.at);
                refers |= !OWN.iter().any(|own| kind.starts_with(own));
            }
        })?;
        Ok(refers)
    }

    /// Consumes an array or object, and stores its weight in the cursor. `note` receives each name,
    /// and how many levels of values it is in.
    #[inline(always)]
    fn nested(&mut self, mut note: impl FnMut(&mut Self, BodyString, u32)) -> Parsed {
        let (floor, start) = (self.depth, self.at);
        let mut weight = Weight::default();
        // One bit per open bracket, set for objects. The depth limit equals the number of bits.
        let mut kinds: u128 = 0;
        loop {
            match self.peek() {
                b'"' => {
                    let text = self.string()?;
                    self.add_string(&mut weight, text);
                }
                b'{' => {
                    self.open()?;
                    kinds = kinds << 1 | 1;
                    if self.peek() != b'}' {
                        let name = self.name()?;
                        self.add_string(&mut weight, name);
                        note(self, name, self.depth - floor);
                        continue;
                    }
                }
                b'[' => {
                    self.open()?;
                    kinds <<= 1;
                    if self.peek() != b']' {
                        continue;
                    }
                }
                _ => {
                    let start = self.at;
                    self.scalar()?;
                    weight.add_scalar(self.at - start);
                }
            }
            loop {
                if self.depth == floor {
                    self.weight =
                        weight.corrected(between(self.bytes, start, self.at), self.estimate);
                    return Ok(());
                }
                match (self.peek(), kinds & 1 == 1) {
                    (b',', true) => {
                        self.at += 1;
                        let name = self.name()?;
                        self.add_string(&mut weight, name);
                        note(self, name, self.depth - floor);
                        break;
                    }
                    (b',', false) => {
                        self.at += 1;
                        break;
                    }
                    (b'}', true) | (b']', false) => {
                        self.close();
                        kinds >>= 1;
                    }
                    (_, true) => return Err(Syntax::ObjectEnd),
                    (_, false) => return Err(Syntax::ArrayEnd),
                }
            }
        }
    }

    #[inline(always)]
    fn add_string(&self, weight: &mut Weight, text: BodyString) {
        weight.add_string(self.raw(text), text.ascii_length(), text.high, self.estimate);
    }

    /// Consumes a member's name and the colon after it.
    #[inline(always)]
    fn name(&mut self) -> Result<BodyString, Syntax> {
        if self.peek() != b'"' {
            return Err(Syntax::Name);
        }
        let name = self.string()?;
        if self.peek() != b':' {
            return Err(Syntax::Colon);
        }
        self.at += 1;
        Ok(name)
    }
}
