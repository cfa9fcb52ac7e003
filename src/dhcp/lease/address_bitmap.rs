//! The free addresses of a range, one bit for each: a full /16 is searched in a thousand steps.

/// A set of numbers below a bound.
pub(crate) struct AddressBitmap {
    words: Vec<u64>,
    size: u32,
    count: u32,
}

impl AddressBitmap {
    /// Creates an empty set for numbers below `size`.
    pub(crate) fn new(size: u32) -> Self {
        let words = usize::try_from(size.div_ceil(64)).unwrap_or_default();
        AddressBitmap { words: vec![0; words], size, count: 0 }
    }

    /// Returns the bound.
    pub(crate) fn size(&self) -> u32 {
        self.size
    }

    fn position(number: u32) -> (usize, u64) {
        (usize::try_from(number / 64).unwrap_or(usize::MAX), 1 << (number % 64))
    }

    /// Adds or removes a number. A number beyond the bound is ignored.
    pub(crate) fn set(&mut self, number: u32, present: bool) {
        let (word, bit) = Self::position(number);
        let Some(word) = self.words.get_mut(word).filter(|_| number < self.size) else { return };
        match (*word & bit != 0, present) {
            (false, true) => self.count += 1,
            (true, false) => self.count -= 1,
            _ => return,
        }
        *word ^= bit;
    }

    /// Returns the first number that is not in the set, from `start` and then from 0.
    pub(crate) fn first_missing(&self, start: u32) -> Option<u32> {
        if self.count >= self.size {
            return None;
        }
        self.missing_in(start, self.size).or_else(|| self.missing_in(0, start))
    }

    fn missing_in(&self, from: u32, to: u32) -> Option<u32> {
        let mut number = from;
        while number < to {
            let (word, _) = Self::position(number);
            let free = !self.words.get(word)? >> (number % 64);
            if free == 0 {
                number = (number / 64 + 1) * 64;
                continue;
            }
            return Some(number + free.trailing_zeros()).filter(|number| *number < to);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn bitmap_search_equals_linear_search(
            size in 1u32..200, start in 0u32..200, present in proptest::collection::btree_set(0u32..200, 0..200),
            gone in proptest::collection::btree_set(0u32..200, 0..20),
        ) {
            let start = start % size;
            let mut bits = AddressBitmap::new(size);
            present.iter().for_each(|number| bits.set(*number, true));
            gone.iter().for_each(|number| bits.set(*number, false));
            let left: BTreeSet<u32> = present.difference(&gone).copied().collect();
            let plain = (start..size).chain(0..start).find(|number| !left.contains(number));
            prop_assert_eq!(bits.first_missing(start), plain);
        }
    }
}
