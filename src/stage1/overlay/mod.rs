//! The overlay of a node, unpacked into the new root: the same archive that Alpine nodes get.
//!
//! | module | content |
//! | --- | --- |
//! | `member` | what an archive member may be: pure |
//! | `unpack` | writes members into the new root and never outside of it |
//! | `manifest` | checks the public files against `/etc/meshd/manifest.sha256` |
//! | `boot_part` | checks that the overlay belongs to this boot |
//! | `accounts` | nobody logs in as root by password |

mod member;
mod unpack;
mod manifest;
mod boot_part;
mod accounts;

pub use accounts::{AccountError, lock_root};
pub use boot_part::{BootPartError, require_boot_part};
pub use manifest::{ManifestError, check_manifest};
pub use member::{Member, MemberError};
pub use unpack::{UnpackError, unpack};
