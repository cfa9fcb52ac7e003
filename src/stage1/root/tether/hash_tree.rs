//! The hash tree of dm-verity in memory: which bytes of a root are right. Pure and total; the
//! layout is that of `verity.rst` of the kernel's device-mapper documentation, format 1.

use crate::config::{BLOCK, VerityTree};
use meshd_types::Digest;
use sha2::{Digest as _, Sha256};

/// Size of a digest in bytes.
const DIGEST: usize = 32;
/// Digests of a hash block.
const PER_BLOCK: u64 = BLOCK / DIGEST as u64;

/// A tree that arrives block by block, from its root on.
pub struct HashTree {
    root: Digest,
    salt: Vec<u8>,
    /// Number of blocks of each level, beginning with the one below the root. Empty for one data
    /// block, whose digest is the root.
    levels: Vec<u64>,
    /// Verified blocks, in the order of the file.
    bytes: Vec<u8>,
    data_blocks: u64,
}

impl HashTree {
    /// Creates an empty tree.
    pub fn new(tree: &VerityTree) -> Self {
        let salt = tree
            .salt
            .as_bytes()
            .chunks(2)
            .filter_map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok());
        HashTree {
            root: tree.root_hash,
            salt: salt.collect(),
            levels: levels(tree.data_blocks),
            bytes: Vec::new(),
            data_blocks: tree.data_blocks,
        }
    }

    /// Size of the complete tree, in bytes.
    pub fn size(&self) -> u64 {
        self.levels.iter().sum::<u64>() * BLOCK
    }

    /// Returns true if all blocks are there.
    pub fn is_complete(&self) -> bool {
        self.bytes.len() as u64 == self.size()
    }

    /// Number of bytes that were added.
    pub fn added(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Returns the bytes from a position in the tree on.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds the next blocks. Returns false, and adds nothing, if one of them is wrong.
    pub fn add(&mut self, blocks: &[u8]) -> bool {
        let before = self.bytes.len();
        if before as u64 + blocks.len() as u64 > self.size() {
            return false;
        }
        for block in blocks.chunks(BLOCK as usize) {
            let at = self.bytes.len() as u64 / BLOCK;
            let is_right = block.len() as u64 == BLOCK
                && self.expected_of_hash_block(at) == Some(self.digest(block));
            if !is_right {
                self.bytes.truncate(before);
                return false;
            }
            self.bytes.extend_from_slice(block);
        }
        true
    }

    /// Returns true if these are the data blocks from a number on. The tree is complete.
    pub fn verifies(&self, first: u64, data: &[u8]) -> bool {
        (data.len() as u64).is_multiple_of(BLOCK)
            && data.chunks(BLOCK as usize).zip(first..).all(|(block, number)| {
                number < self.data_blocks
                    && self.expected_of_data_block(number) == Some(self.digest(block))
            })
    }

    fn digest(&self, block: &[u8]) -> Digest {
        let mut hasher = Sha256::new();
        hasher.update(&self.salt);
        hasher.update(block);
        Digest(hasher.finalize().into())
    }

    fn expected_of_data_block(&self, number: u64) -> Option<Digest> {
        self.entry(self.levels.len(), number)
    }

    /// The expected digest of a hash block, by its position in the tree.
    fn expected_of_hash_block(&self, at: u64) -> Option<Digest> {
        let mut begin = 0;
        for (level, blocks) in self.levels.iter().enumerate() {
            if at < begin + blocks {
                return self.entry(level, at - begin);
            }
            begin += blocks;
        }
        None
    }

    /// The digest of a block of a level: of the root for level 0, else an entry of the level above.
    fn entry(&self, level: usize, number: u64) -> Option<Digest> {
        let Some(above) = level.checked_sub(1) else {
            return (number == 0).then_some(self.root);
        };
        let begin = self.levels[..above].iter().sum::<u64>() * BLOCK;
        let at = usize::try_from(begin + number * DIGEST as u64).ok()?;
        let entry = self.bytes.get(at..at + DIGEST)?;
        Some(Digest(entry.try_into().ok()?))
    }
}

/// Number of blocks of each level, from that below the root to the leaves.
fn levels(data_blocks: u64) -> Vec<u64> {
    let mut levels = Vec::new();
    let mut blocks = data_blocks;
    while blocks > 1 {
        blocks = blocks.div_ceil(PER_BLOCK);
        levels.push(blocks);
    }
    levels.reverse();
    levels
}

#[cfg(test)]
pub mod sample {
    //! Roots with their trees, made without the code under test.

    use super::*;

    /// Data, then its tree; and what describes the tree.
    pub fn root(data_blocks: u64) -> (Vec<u8>, VerityTree) {
        let salt = [7u8, 9];
        let hash = |block: &[u8]| {
            let salted: Vec<u8> = salt.iter().chain(block).copied().collect();
            Digest::of(&salted)
        };
        let mut file: Vec<u8> = (0..data_blocks * BLOCK)
            .map(|at| u8::try_from((at / BLOCK * 31 + at * 7) % 251).expect("below 251"))
            .collect();
        let mut below = file.clone();
        let mut levels = Vec::new();
        while below.len() as u64 > BLOCK {
            let mut level: Vec<u8> =
                below.chunks(BLOCK as usize).flat_map(|block| hash(block).0).collect();
            level.resize(level.len().next_multiple_of(BLOCK as usize), 0);
            levels.push(level.clone());
            below = level;
        }
        let root_hash = hash(&below);
        file.extend(levels.into_iter().rev().flatten());
        let salt = "0709".to_owned();
        (file, VerityTree { root_hash, salt, hash_block: data_blocks, data_blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn complete(data_blocks: u64) -> (Vec<u8>, HashTree) {
        let (file, spec) = sample::root(data_blocks);
        let mut tree = HashTree::new(&spec);
        let begin = usize::try_from(data_blocks * BLOCK).expect("small");
        for block in file[begin..].chunks(BLOCK as usize) {
            assert!(!tree.is_complete() && tree.add(block));
        }
        assert!(tree.is_complete());
        (file, tree)
    }

    #[test]
    fn levels_are_those_of_the_kernel() {
        assert_eq!(levels(1), Vec::<u64>::new());
        assert_eq!(levels(2), [1]);
        assert_eq!(levels(128), [1]);
        assert_eq!(levels(129), [1, 2]);
        assert_eq!(levels(128 * 128 + 1), [1, 2, 129]);
    }

    #[test]
    fn right_data_is_verified_at_each_depth() {
        for data_blocks in [1, 2, 128, 129, 300] {
            let (file, tree) = complete(data_blocks);
            let end = usize::try_from(data_blocks * BLOCK).expect("small");
            assert!(tree.verifies(0, &file[..end]), "{data_blocks} blocks");
            assert!(!tree.verifies(1, &file[..end]), "one block further");
            assert!(!tree.verifies(0, &file[..end - 1]), "no whole block");
        }
    }

    #[test]
    fn wrong_hash_block_adds_nothing() {
        let (file, spec) = sample::root(300);
        let mut tree = HashTree::new(&spec);
        let mut blocks = file[usize::try_from(300 * BLOCK).expect("small")..].to_vec();
        *blocks.last_mut().expect("a tree") ^= 1;
        assert!(!tree.add(&blocks));
        assert_eq!(tree.added(), 0);
        *blocks.last_mut().expect("a tree") ^= 1;
        assert!(tree.add(&blocks));
        assert!(!tree.add(&[0; BLOCK as usize]), "beyond the tree");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn flipped_bit_of_data_or_tree_is_refused(at in 0usize..(132 * 4096 + 3 * 4096), bit in 0u8..8) {
            let (mut file, spec) = sample::root(132);
            file[at] ^= 1 << bit;
            let (data, blocks) = file.split_at(132 * 4096);
            let mut tree = HashTree::new(&spec);
            prop_assert!(!(tree.add(blocks) && tree.verifies(0, data)));
        }
    }
}
