//! A value for each address: an array for the range, and a map for the few addresses outside of it.

use std::{collections::BTreeMap, net::Ipv4Addr};

/// Values of the addresses of a range, and of some other addresses.
pub(crate) struct AddressMap<T> {
    first: u32,
    range: Vec<Option<T>>,
    outside_range: BTreeMap<Ipv4Addr, T>,
}

impl<T: Copy> AddressMap<T> {
    /// Creates an empty map for the range from `first` to `last`.
    pub(crate) fn new(first: Ipv4Addr, last: Ipv4Addr) -> Self {
        let size = u32::from(last).saturating_sub(u32::from(first)).saturating_add(1);
        let range = vec![None; usize::try_from(size).unwrap_or_default()];
        AddressMap { first: u32::from(first), range, outside_range: BTreeMap::new() }
    }

    /// Returns the index of an address in the range.
    pub(crate) fn offset(&self, address: Ipv4Addr) -> Option<u32> {
        let offset = u32::from(address).checked_sub(self.first)?;
        (usize::try_from(offset).ok()? < self.range.len()).then_some(offset)
    }

    /// Returns the address at an index of the range.
    pub(crate) fn address(&self, offset: u32) -> Ipv4Addr {
        Ipv4Addr::from(self.first.saturating_add(offset))
    }

    /// Returns the value of an address.
    pub(crate) fn get(&self, address: Ipv4Addr) -> Option<T> {
        match self.index(address) {
            Some(index) => *self.range.get(index)?,
            None => self.outside_range.get(&address).copied(),
        }
    }

    /// Sets or removes the value of an address. Returns the old value.
    pub(crate) fn replace(&mut self, address: Ipv4Addr, value: Option<T>) -> Option<T> {
        match (self.index(address), value) {
            (Some(index), value) => std::mem::replace(self.range.get_mut(index)?, value),
            (None, Some(value)) => self.outside_range.insert(address, value),
            (None, None) => self.outside_range.remove(&address),
        }
    }

    /// Returns the values of the range, in order.
    pub(crate) fn of_range(&self) -> impl Iterator<Item = (Ipv4Addr, T)> {
        let addresses = (self.first..=u32::MAX).map(Ipv4Addr::from);
        addresses.zip(&self.range).filter_map(|(address, value)| Some((address, (*value)?)))
    }

    /// Changes all values.
    pub(crate) fn change_all(&mut self, change: impl FnMut(&mut T)) {
        self.range.iter_mut().flatten().chain(self.outside_range.values_mut()).for_each(change);
    }

    fn index(&self, address: Ipv4Addr) -> Option<usize> {
        usize::try_from(self.offset(address)?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_map_separates_range_from_other_addresses() {
        let address = |last| Ipv4Addr::new(255, 255, 255, last);
        let mut slots = AddressMap::new(address(250), address(255));
        for (last, value) in [(255, 1), (250, 2), (9, 3)] {
            assert_eq!(slots.replace(address(last), Some(value)), None);
            assert_eq!(slots.get(address(last)), Some(value));
        }
        assert_eq!(slots.of_range().collect::<Vec<_>>(), [(address(250), 2), (address(255), 1)]);
        assert_eq!(
            (slots.offset(address(251)), slots.offset(address(9)), slots.address(1)),
            (Some(1), None, address(251))
        );
        assert_eq!((slots.replace(address(9), None), slots.get(address(9))), (Some(3), None));
    }
}
