//! Columns of numbers that grow page by page: no room is left over, nothing is ever moved, and no
//! request waits for a long copy.

/// Entries of a page.
pub(super) const PAGE: usize = 256;

/// A column.
#[derive(Debug)]
pub(super) struct Pages<T>(Vec<Box<[T; PAGE]>>);

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Copy> Pages<T> {
    /// How many entries there are.
    pub(super) fn len(&self) -> usize {
        self.0.len() * PAGE
    }

    /// Bytes taken.
    pub(super) fn bytes(&self) -> usize {
        self.0.len() * size_of::<[T; PAGE]>() + self.0.capacity() * size_of::<usize>()
    }

    /// Adds a page of equal entries.
    pub(super) fn grow(&mut self, entry: T) {
        self.0.push(Box::new([entry; PAGE]));
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
