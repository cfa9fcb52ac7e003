//! The overlay of a node: the same archive for root images and Alpine. Alpine's initramfs unpacks it
//! itself.
//!
//! | module | content |
//! | --- | --- |
//! | `member` | what an archive member may be: pure |
//! | `unpack` | writes members into the new root and never outside of it |
//! | `manifest` | checks the public files against `/etc/meshd/manifest.sha256` |
//! | `boot_part` | the part of the overlay for one boot; checks that the overlay belongs to it |
//! | `accounts` | nobody logs in as root by password |

mod member;
mod unpack;
mod manifest;
mod boot_part;
mod accounts;

pub use accounts::{AccountError, lock_root};
pub use boot_part::{BootPartError, read_boot_part, require_boot_part};
pub use manifest::{ManifestError, check_manifest};
pub use member::{Member, MemberError};
pub use unpack::{UnpackError, unpack};
