//! A set of allocated addresses, stored as ranges: finds the next free one quickly.

use rangemap::RangeInclusiveSet;
use std::net::Ipv4Addr;

#[derive(Debug, Default)]
pub(crate) struct RangeSet(RangeInclusiveSet<u32>);

impl RangeSet {
    pub(crate) fn insert(&mut self, address: Ipv4Addr) {
        let address = u32::from(address);
        self.0.insert(address..=address);
    }

    pub(crate) fn remove(&mut self, address: Ipv4Addr) {
        let address = u32::from(address);
        self.0.remove(address..=address);
    }

    /// The first address, from `from` on, that is not in the set.
    pub(crate) fn next_free(&self, from: Ipv4Addr) -> Option<Ipv4Addr> {
        match self.0.get(&u32::from(from)) {
            Some(taken) => taken.end().checked_add(1).map(Ipv4Addr::from),
            None => Some(from),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn range_set_equals_a_plain_set(
            steps in proptest::collection::vec((any::<bool>(), 0u32..40), 0..120), top in any::<bool>(), from in 0u32..40,
        ) {
            let base = if top { u32::MAX - 39 } else { 0 };
            let mut runs = RangeSet::default();
            let mut plain = BTreeSet::new();
            for (put, number) in steps {
                let address = Ipv4Addr::from(base + number);
                if put {
                    runs.insert(address);
                    plain.insert(base + number);
                } else {
                    runs.remove(address);
                    plain.remove(&(base + number));
                }
            }
            let free = (base + from..=u32::MAX).find(|number| !plain.contains(number)).map(Ipv4Addr::from);
            prop_assert_eq!(runs.next_free(Ipv4Addr::from(base + from)), free);
        }
    }
}
