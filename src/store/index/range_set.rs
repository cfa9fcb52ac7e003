//! A set of allocated addresses, stored as ranges: finds the next free one quickly.

use std::{collections::BTreeMap, net::Ipv4Addr};

/// A set of addresses.
#[derive(Debug, Default)]
pub(crate) struct RangeSet(BTreeMap<u32, u32>);

impl RangeSet {
    /// The run that holds an address, by its first and last one.
    fn around(&self, address: u32) -> Option<(u32, u32)> {
        let (first, last) = self.0.range(..=address).next_back()?;
        (address <= *last).then_some((*first, *last))
    }

    /// Puts one in.
    pub(crate) fn insert(&mut self, address: Ipv4Addr) {
        let address = u32::from(address);
        if self.around(address).is_some() {
            return;
        }
        let below = address.checked_sub(1).and_then(|below| self.around(below));
        let above = address.checked_add(1).and_then(|above| self.around(above));
        if let Some((first, _)) = above {
            self.0.remove(&first);
        }
        self.0.insert(below.map_or(address, |(first, _)| first), above.map_or(address, |(_, last)| last));
    }

    /// Takes one out.
    pub(crate) fn remove(&mut self, address: Ipv4Addr) {
        let address = u32::from(address);
        let Some((first, last)) = self.around(address) else { return };
        self.0.remove(&first);
        if first < address {
            self.0.insert(first, address - 1);
        }
        if address < last {
            self.0.insert(address + 1, last);
        }
    }

    /// The first from this one on that is not in the set; `None` where there is none.
    pub(crate) fn next_free(&self, from: Ipv4Addr) -> Option<Ipv4Addr> {
        match self.around(u32::from(from)) {
            Some((_, last)) => last.checked_add(1).map(Ipv4Addr::from),
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
            let (mut runs, mut plain) = (RangeSet::default(), BTreeSet::new());
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
            let gapless = runs.0.iter().zip(runs.0.iter().skip(1)).all(|((_, last), (first, _))| last + 1 < *first);
            prop_assert!(gapless, "runs that touch are one: {:?}", runs);
        }
    }
}
