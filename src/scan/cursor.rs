//! A cursor over JSON bytes that validates whatever it walks over, the way `serde_json` would, and
//! keeps nothing. It never recurses and never allocates; `json` tells it what to look at.

use super::TokenEstimate;

/// How deep values may nest, the body's object included; the same as in `serde_json`.
pub(super) const DEPTH_LIMIT: u32 = 128;

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

/// What the names of an object's members stand for.
pub(super) struct Members<'a, T, F> {
    /// Names most objects have, each with its closing quote and colon, and what they stand for.
    likely: &'a [(&'a [u8], T)],
    /// What any name stands for, decoded.
    of: F,
}

impl<'a, T, F: Fn(&[u8]) -> T> Members<'a, T, F> {
    /// What `of` makes of the names.
    #[inline(always)]
    pub(super) fn named(of: F) -> Self {
        Self { likely: &[], of }
    }

    /// The same, with names that are found faster.
    #[inline(always)]
    pub(super) fn with_likely(likely: &'a [(&'a [u8], T)], of: F) -> Self {
        Self { likely, of }
    }
}

/// A place in a body.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    /// The offset of the next byte; where an error was found, after one.
    pub(super) at: usize,
    depth: u32,
    /// The bits of all strings: with the highest one of a byte set, UTF-8 needs a check.
    pub(super) all_high: u64,
    /// See [`Text`]: left here by the last string, for results this wide travel badly.
    pub(super) excess: usize,
    pub(super) high: u64,
    pub(super) estimate: TokenEstimate,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], estimate: TokenEstimate) -> Self {
        Self { bytes, at: 0, depth: 0, all_high: 0, excess: 0, high: 0, estimate }
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

    /// Visits the members of the object at the cursor. `visit` is given what `members` makes of the
    /// name and the first byte of the value, which it must take.
    #[inline(always)]
    pub(super) fn members<T: Copy>(
        &mut self,
        members: Members<'_, T, impl Fn(&[u8]) -> T>,
        visit: impl FnMut(&mut Self, T, u8) -> Result<(), Syntax>,
    ) -> Result<(), Syntax> {
        self.open()?;
        if self.peek() == b'}' {
            self.close();
            return Ok(());
        }
        self.rest_of_members(false, members, visit)
    }

    /// The same for an object that is open already, and holds a member before the cursor if
    /// `has_member`, or else one behind it.
    #[inline(always)]
    pub(super) fn rest_of_members<T: Copy>(
        &mut self,
        mut has_member: bool,
        members: Members<'_, T, impl Fn(&[u8]) -> T>,
        mut visit: impl FnMut(&mut Self, T, u8) -> Result<(), Syntax>,
    ) -> Result<(), Syntax> {
        loop {
            if has_member {
                match self.peek() {
                    b',' => self.at += 1,
                    b'}' => break,
                    _ => return Err(Syntax::ObjectEnd),
                }
            }
            has_member = true;
            let member = self.member(&members)?;
            let kind = self.peek();
            visit(self, member, kind)?;
        }
        self.close();
        Ok(())
    }

    /// Takes a member's name and colon. Where a string ends is a number all that follows waits for;
    /// a likely name that matches is a branch the processor predicts: it goes on without waiting.
    #[inline(always)]
    fn member<T: Copy>(
        &mut self,
        members: &Members<'_, T, impl Fn(&[u8]) -> T>,
    ) -> Result<T, Syntax> {
        if self.peek() != b'"' {
            return Err(Syntax::Name);
        }
        let rest = self.bytes.get(self.at + 1..).unwrap_or_default();
        for (name, member) in members.likely {
            if rest.starts_with(name) {
                self.at += 1 + name.len();
                return Ok(*member);
            }
        }
        let name = self.string()?;
        if self.peek() != b':' {
            return Err(Syntax::Colon);
        }
        self.at += 1;
        Ok(self.decoded(name, &members.of))
    }

    /// Visits the elements of the array at the cursor. `visit` is given the first byte of the value,
    /// which it must take.
    #[inline(always)]
    pub(super) fn elements(
        &mut self,
        mut visit: impl FnMut(&mut Self, u8) -> Result<(), Syntax>,
    ) -> Result<(), Syntax> {
        self.open()?;
        if self.peek() != b']' {
            loop {
                let kind = self.peek();
                visit(self, kind)?;
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

    /// Takes the value at the cursor, which starts with `kind`.
    #[inline(always)]
    pub(super) fn skip(&mut self, kind: u8) -> Result<(), Syntax> {
        match kind {
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
    fn name(&mut self) -> Result<(), Syntax> {
        if self.peek() != b'"' {
            return Err(Syntax::Name);
        }
        self.string()?;
        if self.peek() != b':' {
            return Err(Syntax::Colon);
        }
        self.at += 1;
        Ok(())
    }

    /// Takes an opening bracket or brace.
    #[inline(always)]
    pub(super) fn open(&mut self) -> Result<(), Syntax> {
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
