//! Step 8, lab: a rack in a box. Real firmware, real boot chain, no special hardware.
//!
//! ```text
//! network namespace meshlab-<hash of the folder>
//!   bridge br0 ── meshd serve          the program under trial, with a site file made from the user's
//!     ├── tap1 ── QEMU node1 (BIOS)    fixed UUID, serial number and MAC, derived from its place in the rack
//!     ├── tap2 ── QEMU node2 (UEFI)
//!     └── dhcp0 ── meshlab-<hash>-dhcp a neighbour: a machine that is no node, such as the site's own DHCP server
//! ```
//! Everything that a rack leaves on disk is under one folder, `.lab/`, and everything that it runs is written down there as
//! process ID and start time, so that `lab down` ends what `lab up` started and nothing else, even after a crash.

mod accel;
mod bridge;
mod central;
mod cleanup;
mod command;
mod console;
mod emulator;
mod error;
mod extra;
mod firmware;
mod login;
mod machine;
mod namespace;
mod neighbour;
mod power;
mod process;
mod qemu;
mod qmp;
mod rack;
mod record;
mod serial;
mod site;
mod tools;
mod wait;

pub mod demo;

pub use accel::Accel;
pub use console::{Console, Left, Raw};
pub use error::LabError;
pub use extra::Extra;
pub use login::with_login;
pub use machine::{Firmware, Identity, Mix, Nic, Shape};
pub use namespace::Namespace;
pub use neighbour::Neighbour;
pub use power::{NodeStatus, Power, Status};
pub use process::ProcessId;
pub use rack::{Options, Rack, end};
pub use serial::{last_lines, plain};
pub use wait::{Interrupt, Wait};
