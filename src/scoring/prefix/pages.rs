//! A column of entries that grows page by page: nothing is ever moved, and no request waits for a long
//! copy.

/// Entries of a page.
const PAGE: usize = 64;

/// A column.
#[derive(Debug)]
pub(super) struct Pages<T>(Vec<Box<[T; PAGE]>>);

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Default> Pages<T> {
    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.0.len() * PAGE
    }

    /// Bytes taken, without what entries own elsewhere.
    pub(super) fn bytes(&self) -> usize {
        self.0.len() * size_of::<[T; PAGE]>() + self.0.capacity() * size_of::<usize>()
    }

    /// Adds a page of empty entries.
    pub(super) fn grow(&mut self) {
        self.0.push(Box::new(std::array::from_fn(|_| T::default())));
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        let at = at as usize;
        self.0.get(at / PAGE)?.get(at % PAGE)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        let at = at as usize;
        self.0.get_mut(at / PAGE)?.get_mut(at % PAGE)
    }
}
