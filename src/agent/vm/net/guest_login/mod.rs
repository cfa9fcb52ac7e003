//! Logins of administrators at the guests of this node, by SSH over the private network. The guest
//! accepts a key that this node made for it; nobody else connects to the guest.
//!
//! | module | content |
//! | --- | --- |
//! | `guest_access` | what a login needs: address, key, client; or why there is none |
//! | `openssh_key` | a new key in the format of OpenSSH |
//! | `relay_key` | the key of a VM: made once, private to its SSH client |
//! | `ssh_client` | arguments of the SSH client, and what its messages mean; pure |

mod guest_access;
mod openssh_key;
pub mod relay_key;
mod ssh_client;

pub use guest_access::{GuestAccess, LoginFault, access};
pub use ssh_client::ALIVE_INTERVAL;
