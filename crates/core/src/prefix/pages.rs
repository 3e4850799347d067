//! An array that grows and shrinks in pages of 64 entries. Entries never move, so an index into it
//! stays valid, and no request waits for the copy of a large vector while it holds the lock. A page
//! without entries is freed, so that memory follows the load down as well as up.
//!
//! Invariants: a bit of `free` is set for each entry that is not taken; `roomy` contains every page
//! with a free entry, and may contain others (a page that filled up or was freed meanwhile), which
//! `take` skips; `vacant` contains exactly the positions without a page.

/// Entries per page: one bit each.
const PAGE: usize = u64::BITS as usize;

#[derive(Debug)]
struct Page<T> {
    entries: [T; PAGE],
    /// One bit for each entry that is not taken.
    free: u64,
}

#[derive(Debug)]
pub(super) struct Pages<T> {
    /// `None` for a page that was freed.
    pages: Vec<Option<Box<Page<T>>>>,
    /// Pages with free entries, and possibly others.
    roomy: Vec<u32>,
    /// Positions without a page.
    vacant: Vec<u32>,
}

impl<T> Default for Pages<T> {
    fn default() -> Self {
        Self { pages: Vec::new(), roomy: Vec::new(), vacant: Vec::new() }
    }
}

impl<T: Default> Pages<T> {
    /// The bytes in use, without the memory that the entries own.
    pub(super) fn bytes(&self) -> usize {
        let places = self.pages.capacity() * size_of::<usize>();
        let numbers = (self.roomy.capacity() + self.vacant.capacity()) * size_of::<u32>();
        (self.pages.len() - self.vacant.len()) * size_of::<Page<T>>() + places + numbers
    }

    /// Takes a free entry, which has its default value.
    pub(super) fn take(&mut self) -> Option<u32> {
        loop {
            let place = self.roomy.last().copied().unwrap_or_else(|| self.add_page());
            let page = self.pages.get_mut(place as usize)?;
            // The page may have filled up or been freed since it was pushed.
            match page.as_mut().filter(|page| page.free != 0) {
                Some(page) => {
                    let entry = page.free.trailing_zeros();
                    page.free &= page.free - 1;
                    return place.checked_mul(u64::BITS)?.checked_add(entry);
                }
                None => drop(self.roomy.pop()),
            }
        }
    }

    /// Frees an entry, and its page when no other entry of it is taken.
    pub(super) fn give_back(&mut self, at: u32) {
        let place = at / u64::BITS;
        let Some(slot) = self.pages.get_mut(place as usize) else { return };
        let Some(page) = slot else { return };
        if page.free == 0 {
            // It was full, so `take` may have removed it from the list.
            self.roomy.push(place);
        }
        page.free |= 1 << (at % u64::BITS);
        if let Some(entry) = page.entries.get_mut(at as usize % PAGE) {
            *entry = T::default();
        }
        if page.free == u64::MAX {
            *slot = None;
            self.vacant.push(place);
        }
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        let page = self.pages.get(at as usize / PAGE)?.as_ref()?;
        page.entries.get(at as usize % PAGE)
    }

    pub(super) fn get_mut(&mut self, at: u32) -> Option<&mut T> {
        let page = self.pages.get_mut(at as usize / PAGE)?.as_mut()?;
        page.entries.get_mut(at as usize % PAGE)
    }

    fn add_page(&mut self) -> u32 {
        let place = self.vacant.pop().unwrap_or_else(|| {
            self.pages.push(None);
            u32::try_from(self.pages.len() - 1).unwrap_or(u32::MAX)
        });
        let entries = std::array::from_fn(|_| T::default());
        if let Some(slot) = self.pages.get_mut(place as usize) {
            *slot = Some(Box::new(Page { entries, free: u64::MAX }));
        }
        self.roomy.push(place);
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_pages_are_freed() {
        let mut pages = Pages::<u64>::default();
        let mut take = |count: u32| (0..count).map(|_| pages.take().unwrap()).collect::<Vec<_>>();
        let first = take(200);
        let distinct: std::collections::BTreeSet<_> = first.iter().collect();
        assert_eq!(distinct.len(), 200);
        for at in &first {
            *pages.get_mut(*at).unwrap() = u64::from(*at);
        }
        assert!(first.iter().all(|at| pages.get(*at) == Some(&u64::from(*at))));
        let full = pages.bytes();
        for at in first.iter().filter(|at| !at.is_multiple_of(64)) {
            pages.give_back(*at);
        }
        assert!(pages.bytes() >= full, "one entry of each page is taken");
        assert_eq!(first.iter().filter(|at| pages.get(**at) == Some(&0)).count(), 197);
        for at in first.iter().filter(|at| at.is_multiple_of(64)) {
            pages.give_back(*at);
        }
        assert!(pages.bytes() < full / 4, "{} of {full}", pages.bytes());
        assert!(pages.get(0).is_none() && pages.get_mut(199).is_none());
        let again: Vec<u32> = (0..200).map(|_| pages.take().unwrap()).collect();
        assert!(again.iter().all(|at| *at < 256 && pages.get(*at) == Some(&0)));
    }
}
