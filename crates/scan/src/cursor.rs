//! A cursor over JSON bytes. It validates everything it reads by the rules of `serde_json`, and
//! stores no values. It never recurses on nested values and never allocates; `json` decides which
//! members to read.

use penstock_api::slices::after;

use super::TokenEstimate;
use super::weight::Weight;

/// The maximum nesting depth, counting the body's object; equal to that of `serde_json`.
pub(super) const MAX_DEPTH: u32 = 128;

/// The syntax expected at the cursor.
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
    /// The separator between a name and its value.
    #[error("a colon")]
    Colon,
    /// The continuation or the end of an object.
    #[error("a comma or a closing brace")]
    ObjectEnd,
    /// The continuation or the end of an array.
    #[error("a comma or a closing bracket")]
    ArrayEnd,
    /// A character that a string may contain.
    #[error("a character that is not a control character, or a closing quote")]
    Character,
    /// A valid escape sequence.
    #[error("an escape JSON knows")]
    Escape,
    /// The second half of a surrogate pair.
    #[error("a surrogate pair")]
    Surrogate,
    /// A digit.
    #[error("a digit")]
    Digit,
    /// Nesting within the depth limit.
    #[error("nesting of at most {MAX_DEPTH} levels")]
    Depth,
    /// The end of the body.
    #[error("the end of the body")]
    End,
}

/// The end of a step: the value was parsed, or something else was expected.
pub(crate) type Parsed = Result<(), Syntax>;

/// Maps the names of an object's members to values of `T`.
pub(super) struct Members<'a, T, F> {
    /// Frequent names, each with its closing quote and colon, and their values.
    likely: &'a [(&'a [u8], T)],
    /// Maps any decoded name.
    of: F,
}

impl<'a, T, F: Fn(&[u8]) -> T> Members<'a, T, F> {
    /// Maps every name with `of`.
    #[inline(always)]
    pub(super) fn named(of: F) -> Self {
        Self { likely: &[], of }
    }

    /// Maps every name with `of`, with a fast path for the `likely` ones.
    #[inline(always)]
    pub(super) fn with_likely(likely: &'a [(&'a [u8], T)], of: F) -> Self {
        Self { likely, of }
    }
}

/// A position in a body.
pub(super) struct Cursor<'a> {
    pub(super) bytes: &'a [u8],
    /// The offset of the next byte; after an error, the offset of the error.
    pub(super) at: usize,
    pub(super) depth: u32,
    /// All strings combined by bitwise or: if the highest bit of a byte is set, UTF-8 must be
    /// validated.
    pub(super) all_high: u64,
    /// Facts about the last string, as in [`BodyString`]. Stored here because a result this wide
    /// would be returned through memory.
    pub(super) excess: usize,
    pub(super) high: u64,
    /// The weight of the last array or object that was skipped.
    pub(super) weight: Weight,
    pub(super) estimate: TokenEstimate,
    /// True for a response: a string may have one half of a surrogate pair alone, and a number may
    /// be one of Python's, such as `NaN`.
    pub(super) is_lenient: bool,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(bytes: &'a [u8], estimate: TokenEstimate) -> Self {
        let weight = Weight::default();
        let is_lenient = false;
        Self {
            bytes,
            at: 0,
            depth: 0,
            all_high: 0,
            excess: 0,
            high: 0,
            weight,
            estimate,
            is_lenient,
        }
    }

    /// A cursor for a response, or for a part of one. Some engines split a pair of surrogates
    /// between two events, and some write logarithms of zero as Python does.
    pub(super) fn of_response(bytes: &'a [u8]) -> Self {
        Self { is_lenient: true, ..Self::new(bytes, TokenEstimate::Chars) }
    }

    /// Skips white space and returns the next byte without consuming it; zero at the end.
    #[inline(always)]
    pub(super) fn peek(&mut self) -> u8 {
        loop {
            match self.bytes.get(self.at) {
                Some(byte) if *byte > b' ' => return *byte,
                Some(b' ' | b'\n' | b'\r' | b'\t') => self.at += 1,
                // A control character starts no value, so the callers refuse it.
                Some(byte) => return *byte,
                // Zero starts no value, so a truncated body needs no case in the callers.
                None => return 0,
            }
        }
    }

    /// Checks that only white space remains.
    pub(super) fn end(&mut self) -> Parsed {
        self.peek();
        if self.at == self.bytes.len() { Ok(()) } else { Err(Syntax::End) }
    }

    /// Visits the members of the object at the cursor. `visit` receives the mapped name and the
    /// first byte of the value, and must consume the value.
    #[inline(always)]
    pub(super) fn members<T: Copy>(
        &mut self,
        members: Members<'_, T, impl Fn(&[u8]) -> T>,
        visit: impl FnMut(&mut Self, T, u8) -> Parsed,
    ) -> Parsed {
        self.open()?;
        if self.peek() == b'}' {
            self.close();
            return Ok(());
        }
        self.rest_of_members(false, members, visit)
    }

    /// Visits the remaining members of an object that is already open. If `has_member` is true, the
    /// cursor is after a member; otherwise it is before the first one.
    #[inline(always)]
    pub(super) fn rest_of_members<T: Copy>(
        &mut self,
        mut has_member: bool,
        members: Members<'_, T, impl Fn(&[u8]) -> T>,
        mut visit: impl FnMut(&mut Self, T, u8) -> Parsed,
    ) -> Parsed {
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

    /// Consumes a member's name and colon. Everything after a string depends on the computed offset
    /// of its end. A match with a likely name is a branch that the processor predicts, so execution
    /// continues without waiting for that offset.
    #[inline(always)]
    fn member<T: Copy>(
        &mut self,
        members: &Members<'_, T, impl Fn(&[u8]) -> T>,
    ) -> Result<T, Syntax> {
        if self.peek() != b'"' {
            return Err(Syntax::Name);
        }
        let rest = after(self.bytes, self.at + 1);
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

    /// Visits the elements of the array at the cursor. `visit` receives the first byte of the value
    /// and must consume the value.
    #[inline(always)]
    pub(super) fn elements(&mut self, mut visit: impl FnMut(&mut Self, u8) -> Parsed) -> Parsed {
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

    /// Consumes the value at the cursor, which starts with `kind`.
    #[inline(always)]
    pub(super) fn skip(&mut self, kind: u8) -> Parsed {
        match kind {
            b'"' => self.string().map(|_| ()),
            b'{' | b'[' => self.skip_nested(),
            _ => self.scalar(),
        }
    }

    /// Consumes an opening bracket or brace.
    #[inline(always)]
    pub(super) fn open(&mut self) -> Parsed {
        if self.depth == MAX_DEPTH {
            return Err(Syntax::Depth);
        }
        self.depth += 1;
        self.at += 1;
        Ok(())
    }

    /// Consumes a closing bracket or brace.
    #[inline(always)]
    pub(super) fn close(&mut self) {
        self.depth -= 1;
        self.at += 1;
    }
}
