//! Stage 1: the first program of a node. The overlay brings it. It ends by starting `/sbin/init`.
//!
//! - Of a root image, the kernel starts it as `rdinit=/meshd/stage1` from the overlay initrd.
//! - Of an Alpine image, Alpine's initramfs starts it as `/sbin/mesh-init`, after it has unpacked the
//!   overlay and installed packages.
//!
//! | module | content |
//! | --- | --- |
//! | `alpine` | what mesh-init reads and writes on an Alpine node |
//! | `boot` | the duties of a boot, in their order |
//! | `clock` | steps the clock; waits |
//! | `config` | `/meshd/stage1.json`: bounded, and validated completely before its first use |
//! | `console` | messages on the console and in the kernel's log |
//! | `fuzz_invariants` | what must hold for any input of the parsers; used by the fuzz target |
//! | `fetch` | HTTP: fetches files with resume, and reports a failure |
//! | `modules` | loads kernel modules for the devices of this machine |
//! | `network` | the boot NIC: search, lease, addresses, and what the network of the OS needs |
//! | `overlay` | unpacks the overlay, and checks its manifest |
//! | `root` | the root file system: memory or servers, dm-verity, overlayfs, switch |
//!
//! Parsers and decisions are pure; system calls are thin. The only unsafe code is
//! `root/ioctl.rs`.

pub mod alpine;
pub mod boot;
mod clock;
pub mod config;
mod console;
pub mod fetch;
mod fuzz_invariants;
pub mod modules;
pub mod network;
pub mod overlay;
mod root;

pub use root::{ROOT_PROGRAM_PROCESS, become_root_program};

#[doc(hidden)]
pub use fuzz_invariants::check_invariants;
