//! A root whose blocks stay on servers (ADR 58): a process answers the reads of a block device of
//! the kernel (NBD) with ranges that it fetches by HTTP and verifies.
//!
//! | module | content |
//! | --- | --- |
//! | `nbd` | requests and replies of the kernel: pure |
//! | `hash_tree` | the tree of dm-verity in memory: pure |
//! | `chunk_cache` | verified chunks, and how many to fetch at a time: pure |
//! | `failover` | which server is asked next, and when a read fails: pure |
//! | `root_reader` | reads verified bytes; requests and time are the caller's |
//! | `nbd_server` | answers the kernel |
//! | `nbd_device` | makes the block device |
//! | `process` | starts the process, and is it |

mod nbd;
mod hash_tree;
mod chunk_cache;
mod failover;
mod root_reader;
mod nbd_server;
mod nbd_device;
mod process;

use chunk_cache::{CHUNK, MAX_CHUNKS, MAX_READAHEAD};

pub use nbd::{REQUEST, parse_request};
pub use nbd_device::family_id;
pub use process::{Tether, TetherError, serve, start};

/// Memory for a root of a size in bytes: its hash tree, chunks, one request, and the program.
pub fn memory(root_size: u64) -> u64 {
    const PROGRAM: u64 = 8 * 1024 * 1024;
    root_size / 100 + (MAX_CHUNKS as u64 + 2 * MAX_READAHEAD) * CHUNK + PROGRAM
}
