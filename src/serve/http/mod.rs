//! The boot plane over HTTP: scripts, images and overlays for machines that have no credentials yet.
//!
//! | route | answer |
//! | --- | --- |
//! | `GET /boot.ipxe` | the entry script, the same for every machine |
//! | `GET /boot/script?mac=..` | what this machine boots, or why not; always a script, always status 200 |
//! | `GET /blob/<digest>/<part>` | kernel, initramfs, packages, modloop: from memory, with ranges, never changing |
//! | `GET /overlay/<capability>/<file>` | an overlay, once |
//! | `GET /loader/<file>` | iPXE for UEFI HTTP boot |
//! | `GET /healthz` | `ok` |
//!
//! Nothing else is reachable here, nothing is redirected, and no header that a client could invent (`X-Forwarded-For`) is read:
//! a machine is the address that its connection comes from. Logs name routes and never paths, which hold capabilities.

mod blob;
mod body;
mod exercise;
mod outlet;
mod plane;
mod routes;
mod server;
mod twins;
#[cfg(test)]
mod tests;

pub use exercise::exercise;
pub use plane::{BootPlane, Transfer};
pub use server::{Limits, run};
