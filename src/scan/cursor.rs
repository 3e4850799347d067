//! A cursor over JSON bytes that validates whatever it walks over, the way `serde_json` would, and
//! keeps nothing. It never recurses and never allocates; `json` tells it what to look at.

use super::TokenEstimate;
use super::text::Text;

/// How deep values may nest, the body's object included; the same as in `serde_json`.
pub(super) const DEPTH_LIMIT: u32 = 127;

/// What the bytes at the cursor should have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Syntax {
    /// The body itself.
    #[error("a JSON object")]
    Body,
    /// Any value.
    #[error("a value")]
    Value,
    /// The name of a member.
    #[error("a quoted name")]
    Name,
    /// What separates a name from its value.
    #[error("a colon")]
    Colon,
    /// The rest of an object.
    #[error("a comma or a closing brace")]
    ObjectEnd,
    /// The rest of an array.
    #[error("a comma or a closing bracket")]
    ArrayEnd,
    /// A character a string may hold.
    #[error("a character that is not a control character, or a closing quote")]
    Character,
    /// The rest of an escape.
    #[error("an escape JSON knows")]
    Escape,
    /// The other half of a pair.
    #[error("a surrogate pair")]
    Surrogate,
    /// A digit.
    #[error("a digit")]
    Digit,
    /// Fewer open brackets.
    #[error("nesting of at most {DEPTH_LIMIT} levels")]
    Depth,
    /// Nothing more.
    #[error("the end of the body")]
    End,
}

/// A place in a body.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    /// The offset of the next byte; where an error was found, after one.
    pub(super) at: usize,
    depth: u32,
    /// Whether a string held anything but ASCII, so that the body needs its UTF-8 checked.
    pub(super) saw_non_ascii: bool,
    /// See [`Text`]: left here by the last string, for results this wide travel badly.
    pub(super) excess: usize,
    pub(super) has_non_ascii: bool,
    pub(super) estimate: TokenEstimate,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], estimate: TokenEstimate) -> Self {
        Self {
            bytes,
            at: 0,
            depth: 0,
            saw_non_ascii: false,
            excess: 0,
            has_non_ascii: false,
            estimate,
        }
    }

    /// The next byte that is not white space, not taken; zero at the end.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> u8 {
        loop {
            match self.bytes.get(self.at) {
                Some(byte) if *byte > b' ' => return *byte,
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                Some(byte) => return *byte,
                None => return 0,
            }
        }
    }

    /// Checks that nothing but white space is left.
    pub(super) fn end(&mut self) -> Result<(), Syntax> {
        self.peek();
        if self.at == self.bytes.len() { Ok(()) } else { Err(Syntax::End) }
    }

    /// Visits the members of the object at the cursor; `visit` must take the value.
    #[inline(always)]
    pub(super) fn members(
        &mut self,
        mut visit: impl FnMut(&mut Self, Text) -> Result<(), Syntax>,
    ) -> Result<(), Syntax> {
        self.open()?;
        if self.peek() != b'}' {
            loop {
                let name = self.name()?;
                visit(self, name)?;
                match self.peek() {
                    b',' => self.at += 1,
                    b'}' => break,
                    _ => return Err(Syntax::ObjectEnd),
                }
            }
        }
        self.close();
        Ok(())
    }

    /// Visits the elements of the array at the cursor; `visit` must take the value.
    #[inline(always)]
    pub(super) fn elements(
        &mut self,
        mut visit: impl FnMut(&mut Self) -> Result<(), Syntax>,
    ) -> Result<(), Syntax> {
        self.open()?;
        if self.peek() != b']' {
            loop {
                visit(self)?;
                match self.peek() {
                    b',' => self.at += 1,
                    b']' => break,
                    _ => return Err(Syntax::ArrayEnd),
                }
            }
        }
        self.close();
        Ok(())
    }

    /// Takes the value at the cursor, whatever it is.
    #[inline(always)]
    pub(super) fn skip(&mut self) -> Result<(), Syntax> {
        match self.peek() {
            b'"' => self.string().map(|_| ()),
            b'{' | b'[' => self.skip_nested(),
            _ => self.scalar(),
        }
    }

    #[inline(never)]
    fn skip_nested(&mut self) -> Result<(), Syntax> {
        let floor = self.depth;
        // One bit per open bracket, set for objects: the depth limit keeps it within the number.
        let mut kinds: u128 = 0;
        loop {
            match self.peek() {
                b'"' => _ = self.string()?,
                b'{' => {
                    self.open()?;
                    kinds = kinds << 1 | 1;
                    if self.peek() != b'}' {
                        self.name()?;
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
                _ => self.scalar()?,
            }
            loop {
                if self.depth == floor {
                    return Ok(());
                }
                match (self.peek(), kinds & 1 == 1) {
                    (b',', true) => {
                        self.at += 1;
                        self.name()?;
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

    /// Takes a member's name and the colon behind it.
    #[inline(always)]
    fn name(&mut self) -> Result<Text, Syntax> {
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

    #[inline(always)]
    fn open(&mut self) -> Result<(), Syntax> {
        if self.depth == DEPTH_LIMIT {
            return Err(Syntax::Depth);
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    #[inline(always)]
    fn close(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }
}
