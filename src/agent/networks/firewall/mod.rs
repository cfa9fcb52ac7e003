//! Firewalls of a node, as nftables tables set by netlink: small images have no `nft`.
//!
//! | module | content |
//! | --- | --- |
//! | [`guest`] | filters what a guest may send and reach |
//! | [`user`] | filters what programs of VMs and tasks may send |
//! | [`masquerade`] | outgoing packets of guests have the address of the node |
//! | `nftables` | netlink messages of nftables |

pub mod guest;
pub mod masquerade;
mod nftables;
pub mod user;
