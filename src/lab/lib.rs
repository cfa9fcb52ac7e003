//! Lab: a test rack on one host, with real firmware and the real boot chain in QEMU.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `error` | errors of the lab, with hints |
//! | `host` | programs and processes of the host on which the lab runs |
//! | `login` | an overlay that lets root log in without a password on a single trial node |
//! | `machine` | hardware identity of a node: UUID, serial number and MAC, derived from its position |
//! | `network` | the rack's network |
//! | `qemu` | QEMU as the hardware of a node |
//! | `rack` | a rack, created completely or not at all, and removed when dropped |
//! | `site` | the rack's site file: the user's, with paths, interface and policy replaced |
//! | `tools` | finds the external programs and files that the lab needs |
//! | `demo` | `make demo`: boots a BIOS and a UEFI machine, then moves one to another profile |
//!
//! ```text
//! network namespace meshlab-<hash of the folder>
//!   bridge br0 ── meshd serve          the meshd under test, with a site file made from the user's
//!     ├── tap1 ── QEMU node1 (BIOS)    fixed UUID, serial number and MAC, derived from its position in the rack
//!     ├── tap2 ── QEMU node2 (UEFI)
//!     └── dhcp0 ── meshlab-<hash>-dhcp a neighbour: a machine that is not a node, such as another DHCP server
//! ```
//! All files of a rack are in `.lab/`. `.lab/rack.json` records the rack's processes by ID and
//! start time. `lab down` therefore ends exactly the processes that `lab up` started, even after a
//! crash.

mod error;
mod host;
mod login;
mod machine;
mod network;
mod qemu;
mod rack;
mod site;
mod tools;

pub mod demo;

pub use error::LabError;
pub use host::process::ProcessId;
pub use host::wait::{Interrupt, Wait};
pub use login::with_login;
pub use machine::{Firmware, Identity, Mix, Nic, Shape};
pub use network::namespace::Namespace;
pub use qemu::accel::Accel;
pub use qemu::console::{Console, ConsoleEnd, RawTerminal};
pub use qemu::serial::{last_lines, plain};
pub use qemu::vfio_trial_hardware::Extra;
pub use rack::neighbour::Neighbour;
pub use rack::power::{NodeStatus, Power, Status};
pub use rack::{Options, Rack, end};
