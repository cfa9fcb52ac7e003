//! Parts of blobs that clients have requested: a fetch that was interrupted and continued is a whole
//! fetch.

use meshd_types::Digest;
use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Mutex, PoisonError},
};

/// Maximum number of begun fetches that are remembered; the oldest one is forgotten. A forgotten
/// fetch that continues is not recorded as a stage of its boot.
const MAX_FETCHES: usize = 1024;

/// The first bytes of blobs that each client has requested without a gap.
#[derive(Default)]
pub struct FetchedRanges(Mutex<VecDeque<Prefix>>);

struct Prefix {
    client: IpAddr,
    digest: Digest,
    end: usize,
}

impl FetchedRanges {
    /// Adds the requested bytes from `first` to before `end`. Returns whether the client has now
    /// requested every byte before `end`: a part beyond a gap proves no fetch of the bytes before
    /// it.
    pub fn add(&self, client: IpAddr, digest: Digest, first: usize, end: usize) -> bool {
        let mut prefixes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match prefixes.iter_mut().find(|known| known.is_of(client, digest)) {
            Some(known) if first <= known.end => {
                known.end = known.end.max(end);
                true
            }
            None if first == 0 => {
                if prefixes.len() == MAX_FETCHES {
                    prefixes.pop_front();
                }
                prefixes.push_back(Prefix { client, digest, end });
                true
            }
            _ => false,
        }
    }

    /// Forgets a fetch that is complete: the next one begins with the first byte.
    pub fn forget(&self, client: IpAddr, digest: Digest) {
        let mut prefixes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        prefixes.retain(|known| !known.is_of(client, digest));
    }
}

impl Prefix {
    fn is_of(&self, client: IpAddr, digest: Digest) -> bool {
        self.client == client && self.digest == digest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const CLIENT: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

    #[test]
    fn continued_fetch_has_no_gap() {
        let ranges = FetchedRanges::default();
        let root = Digest::of(b"root");
        assert!(!ranges.add(CLIENT, root, 9, 10), "the last byte alone");
        assert!(ranges.add(CLIENT, root, 0, 4));
        assert!(!ranges.add(CLIENT, root, 5, 10), "one byte is missing");
        assert!(!ranges.add(CLIENT, Digest::of(b"other"), 4, 10), "another blob");
        assert!(!ranges.add(OTHER, root, 4, 10), "another client");
        assert!(ranges.add(CLIENT, root, 2, 10), "it overlaps");
        ranges.forget(CLIENT, root);
        assert!(!ranges.add(CLIENT, root, 9, 10), "the next boot");
    }

    #[test]
    fn number_of_remembered_fetches_is_bounded() {
        let ranges = FetchedRanges::default();
        for number in 0..=MAX_FETCHES {
            assert!(ranges.add(CLIENT, Digest::of(&number.to_be_bytes()), 0, 1));
        }
        assert_eq!(ranges.0.lock().expect("no panic").len(), MAX_FETCHES);
        assert!(!ranges.add(CLIENT, Digest::of(&0usize.to_be_bytes()), 1, 2), "forgotten");
    }
}
