//! Reads a root whose bytes are on servers: hash tree in memory, chunks verified before they are
//! used. Time, requests and waiting are the caller's.

use super::{
    chunk_cache::{CHUNK, ChunkCache, Readahead},
    failover::{Failover, LONGEST_DELAY, NextServer},
    hash_tree::HashTree,
};
use crate::config::{BLOCK, RootImage};
use std::{fmt::Display, time::Duration};

/// Size of one request for the tree, in bytes: what a slow server sends in time.
const TREE_PIECE: u64 = CHUNK;
/// Time of one request after which another server is asked next.
const SLOW: Duration = Duration::from_secs(2);
const WRONG: &str = "its bytes are not those of the root";

/// What the reader needs from outside.
pub trait Servers {
    type Error: Display;

    /// Fetches so many bytes from a position on.
    fn fetch(&mut self, server: usize, from: u64, length: u64) -> Result<Vec<u8>, Self::Error>;
    /// Time since any origin.
    fn now(&self) -> Duration;
    fn pause(&mut self, delay: Duration);
    /// How long a read waits while no server answers.
    fn patience(&self) -> Duration;
    /// A server did not answer, or sent wrong bytes; another is asked after a delay.
    fn failed(&mut self, server: usize, cause: &str, delay: Duration);
    /// A server answers after others failed.
    fn recovered(&mut self, server: usize);
}

/// Bytes of the root cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    #[error("bytes {from} to {end} of the root are outside of it")]
    Outside { from: u64, end: u64 },
    #[error(
        "no server has the right bytes from {from} on: the root was changed on its way or in the store"
    )]
    AllWrong { from: u64 },
    #[error("no server answered for {} s: {cause}", patience.as_secs())]
    NoServer { patience: Duration, cause: String },
}

/// A root on servers.
pub struct RootReader<S> {
    servers: S,
    failover: Failover,
    cache: ChunkCache,
    readahead: Readahead,
    tree: HashTree,
    /// Position of the tree. It has no superblock: nothing could verify one.
    tree_begin: u64,
    /// End of the data.
    data_end: u64,
    size: u64,
}

impl<S: Servers> RootReader<S> {
    /// Fetches and verifies the hash tree.
    pub fn open(image: &RootImage, servers: S) -> Result<Self, ReadError> {
        let mut reader = RootReader {
            servers,
            failover: Failover::new(image.urls.len()),
            cache: ChunkCache::default(),
            readahead: Readahead::default(),
            tree: HashTree::new(&image.verity),
            tree_begin: image.verity.hash_block * BLOCK,
            data_end: image.verity.data_blocks * BLOCK,
            size: image.size,
        };
        reader.load_tree()?;
        Ok(reader)
    }

    /// Reads bytes, all of which lie in the root.
    pub fn read(&mut self, from: u64, length: u32) -> Result<Vec<u8>, ReadError> {
        let outside = ReadError::Outside { from, end: from.saturating_add(length.into()) };
        let end = from.checked_add(length.into()).filter(|end| *end <= self.size);
        let end = end.ok_or(outside)?;
        let mut bytes = Vec::with_capacity(length as usize);
        let mut at = from;
        while at < end {
            let before = bytes.len();
            if at < self.data_end {
                let chunk = at / CHUNK;
                let begin = index(at - chunk * CHUNK);
                let whole = self.chunk(chunk)?;
                let count = index(end - at).min(whole.len() - begin);
                bytes.extend_from_slice(&whole[begin..begin + count]);
            } else {
                self.after_data(at, end, &mut bytes);
            }
            at += (bytes.len() - before) as u64;
        }
        Ok(bytes)
    }

    /// Appends bytes of the tree, or zeros where the file has neither data nor tree: nothing reads
    /// them, and nothing could verify them.
    fn after_data(&self, at: u64, end: u64, bytes: &mut Vec<u8>) {
        let Some(at_tree) = at.checked_sub(self.tree_begin) else {
            let next = self.tree_begin.min(end);
            bytes.resize(bytes.len() + index(next - at), 0);
            return;
        };
        let count = index(end - at);
        let rest = self.tree.bytes().get(index(at_tree)..).unwrap_or_default();
        bytes.extend_from_slice(&rest[..rest.len().min(count)]);
        bytes.resize(bytes.len() + count.saturating_sub(rest.len()), 0);
    }

    /// Returns a verified chunk.
    fn chunk(&mut self, number: u64) -> Result<&[u8], ReadError> {
        if !self.cache.contains(number) {
            let chunks = self.data_end.div_ceil(CHUNK);
            let count = self.readahead.plan(number, chunks);
            let bytes = match self.read_ahead(number, count) {
                Some(bytes) => bytes,
                None => self.fetch_chunk(number)?,
            };
            // The first one is used last: the others must not displace it.
            for (chunk, number) in bytes.chunks(index(CHUNK)).zip(number..).skip(1) {
                self.cache.add(number, chunk.to_vec());
            }
            self.cache.add(number, bytes[..bytes.len().min(index(CHUNK))].to_vec());
        }
        Ok(self.cache.get(number).unwrap_or_default())
    }

    /// Fetches several chunks, from the current server and in one try: one that was not asked for
    /// may be wrong, and a slow network may not carry all of them in time.
    fn read_ahead(&mut self, first: u64, count: u64) -> Option<Vec<u8>> {
        if count < 2 {
            return None;
        }
        let from = first * CHUNK;
        let end = self.data_end.min(from + count * CHUNK);
        let server = self.failover.current();
        let begin = self.servers.now();
        let fetched = self.servers.fetch(server, from, end - from);
        if self.servers.now().saturating_sub(begin) > SLOW {
            self.failover.leave_slow_server();
        }
        match fetched {
            Ok(bytes) => self.tree.verifies(from / BLOCK, &bytes).then_some(bytes),
            Err(error) => {
                self.servers.failed(server, &error.to_string(), Duration::ZERO);
                None
            }
        }
    }

    fn fetch_chunk(&mut self, number: u64) -> Result<Vec<u8>, ReadError> {
        let from = number * CHUNK;
        let end = self.data_end.min(from + CHUNK);
        let is_right = |tree: &mut HashTree, bytes: &[u8]| tree.verifies(from / BLOCK, bytes);
        self.fetch(from, end - from, is_right)
    }

    fn load_tree(&mut self) -> Result<(), ReadError> {
        while !self.tree.is_complete() {
            let from = self.tree_begin + self.tree.added();
            let length = (self.tree.size() - self.tree.added()).min(TREE_PIECE);
            self.fetch(from, length, HashTree::add)?;
        }
        Ok(())
    }

    /// Fetches bytes from the first server that has the right ones.
    fn fetch(
        &mut self,
        from: u64,
        length: u64,
        is_right: impl Fn(&mut HashTree, &[u8]) -> bool,
    ) -> Result<Vec<u8>, ReadError> {
        let end = from.saturating_add(length);
        if end > self.size {
            return Err(ReadError::Outside { from, end });
        }
        let patience = self.servers.patience();
        let mut read = self.failover.begin(self.servers.now(), patience);
        let mut has_failed = false;
        loop {
            let server = self.failover.current();
            let begin = self.servers.now();
            let fetched = self.servers.fetch(server, from, length);
            let (next, cause) = match fetched {
                Ok(bytes) if is_right(&mut self.tree, &bytes) => {
                    if has_failed {
                        self.servers.recovered(server);
                    }
                    if self.servers.now().saturating_sub(begin) > SLOW {
                        self.failover.leave_slow_server();
                    }
                    return Ok(bytes);
                }
                Ok(_) => (self.failover.record_wrong(&mut read), WRONG.to_owned()),
                Err(error) => {
                    let now = self.servers.now();
                    (self.failover.record_failure(&mut read, now), error.to_string())
                }
            };
            has_failed = true;
            match next {
                NextServer::After(delay) => {
                    // Of a long wait, the beginning is reported.
                    if delay < LONGEST_DELAY {
                        self.servers.failed(server, &cause, delay);
                    }
                    self.servers.pause(delay);
                }
                NextServer::AllWrong => {
                    self.servers.failed(server, &cause, Duration::ZERO);
                    return Err(ReadError::AllWrong { from });
                }
                NextServer::GaveUp => return Err(ReadError::NoServer { patience, cause }),
            }
        }
    }
}

/// A position in memory. All are bounded by what was fetched.
fn index(at: u64) -> usize {
    usize::try_from(at).unwrap_or(usize::MAX)
}

#[cfg(test)]
#[path = "root_reader_tests.rs"]
pub mod tests;
