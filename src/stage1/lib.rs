//! Stage 1: the first program of a node whose image is of kind `root`. The kernel starts it as
//! `rdinit=/meshd/stage1` from the overlay initrd; it ends by starting `/sbin/init` of the root.
//!
//! | module | content |
//! | --- | --- |
//! | `boot` | the duties of stage 1, in their order |
//! | `clock` | steps the clock; waits |
//! | `config` | `/meshd/stage1.json`: bounded, and validated completely before its first use |
//! | `console` | messages on the console and in the kernel's log |
//! | `error` | why a boot fails |
//! | `fuzz_invariants` | what must hold for any input of the parsers; used by the fuzz target |
//! | `fetch` | HTTP: fetches the root with resume, and reports a failure |
//! | `modules` | loads kernel modules for the devices of this machine |
//! | `network` | the boot NIC: search, lease, addresses, and what the network of the OS needs |
//! | `overlay` | unpacks the overlay, and checks its manifest |
//! | `root` | the root file system: memory or servers, dm-verity, overlayfs, switch |
//!
//! Parsers and decisions are pure; system calls are thin. The only unsafe code is
//! `root/ioctl.rs`.

pub mod boot;
mod clock;
pub mod config;
mod console;
pub mod error;
pub mod fetch;
mod fuzz_invariants;
pub mod modules;
pub mod network;
pub mod overlay;
mod root;

pub use root::{ROOT_PROGRAM_PROCESS, become_root_program};

#[doc(hidden)]
pub use fuzz_invariants::check_invariants;
