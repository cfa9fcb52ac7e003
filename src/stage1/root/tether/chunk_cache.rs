//! Chunks of the root that were fetched and verified last, and how many to fetch at a time. Pure.

use std::collections::VecDeque;

/// Size of a chunk in bytes, a power of two: the default block of squashfs.
pub const CHUNK: u64 = 128 * 1024;
/// Maximum number of chunks in memory: 8 MiB. The kernel keeps what it has read; these are the
/// neighbours of what it asked for.
pub const MAX_CHUNKS: usize = 64;
/// Maximum number of chunks of one request to a server: 1 MiB.
pub const MAX_READAHEAD: u64 = 8;

/// The chunks that were used last.
#[derive(Default)]
pub struct ChunkCache {
    /// The one that was used last is at the end.
    chunks: VecDeque<(u64, Vec<u8>)>,
}

impl ChunkCache {
    /// Returns a chunk, which is now the one that was used last.
    pub fn get(&mut self, number: u64) -> Option<&[u8]> {
        let at = self.chunks.iter().position(|(other, _)| *other == number)?;
        let chunk = self.chunks.remove(at)?;
        self.chunks.push_back(chunk);
        self.chunks.back().map(|(_, bytes)| bytes.as_slice())
    }

    pub fn contains(&self, number: u64) -> bool {
        self.chunks.iter().any(|(other, _)| *other == number)
    }

    /// Adds a chunk. The one that was not used for the longest time makes place.
    pub fn add(&mut self, number: u64, bytes: Vec<u8>) {
        self.chunks.retain(|(other, _)| *other != number);
        while self.chunks.len() >= MAX_CHUNKS {
            self.chunks.pop_front();
        }
        self.chunks.push_back((number, bytes));
    }
}

/// How many chunks the next request fetches: twice as many while a file is read from its beginning
/// to its end, and one after a jump.
#[derive(Default)]
pub struct Readahead {
    /// The chunk after those of the last request.
    next: u64,
    count: u64,
}

impl Readahead {
    /// Plans a request that begins at a missing chunk of a root with so many chunks. Returns the
    /// number of chunks, at least 1.
    pub fn plan(&mut self, chunk: u64, chunks: u64) -> u64 {
        let is_sequential = self.count > 0 && chunk == self.next;
        let wanted = if is_sequential { self.count * 2 } else { 1 };
        self.count = wanted.min(MAX_READAHEAD).min(chunks.saturating_sub(chunk)).max(1);
        self.next = chunk + self.count;
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn chunk_that_was_not_used_makes_place() {
        let mut cache = ChunkCache::default();
        for number in 0..MAX_CHUNKS as u64 {
            cache.add(number, vec![1]);
        }
        assert!(cache.get(0).is_some(), "used again");
        cache.add(1000, vec![2]);
        assert!(cache.contains(0) && !cache.contains(1));
        assert_eq!(cache.get(1000), Some([2].as_slice()));
    }

    #[test]
    fn readahead_doubles_in_sequence_and_ends_after_a_jump() {
        let mut readahead = Readahead::default();
        let plan: Vec<u64> =
            [0, 1, 3, 7, 15, 23, 5, 6].map(|chunk| readahead.plan(chunk, 30)).into();
        assert_eq!(plan, [1, 2, 4, 8, 8, 7, 1, 2]);
    }

    proptest! {
        #[test]
        fn cache_is_bounded(numbers in proptest::collection::vec(0u64..200, 0..300)) {
            let mut cache = ChunkCache::default();
            for number in numbers {
                cache.add(number, Vec::new());
                prop_assert!(cache.contains(number) && cache.chunks.len() <= MAX_CHUNKS);
            }
        }

        #[test]
        fn readahead_stays_in_the_root(starts in proptest::collection::vec(0u64..50, 1..50)) {
            let mut readahead = Readahead::default();
            for chunk in starts {
                let count = readahead.plan(chunk, 50);
                prop_assert!((1..=MAX_READAHEAD).contains(&count) && chunk + count <= 50);
            }
        }
    }
}
