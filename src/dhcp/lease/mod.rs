//! Leases of one segment.
//!
//! | module | content |
//! | --- | --- |
//! | here | the client state of a DHCPREQUEST |
//! | `table` | the lease table: lease, release, decline |
//! | `table::address_choice` | the address that a client is offered |
//! | `binding` | the holder of one address: offer or lease, and its end |
//! | `reservations` | addresses that belong to one NIC or machine |
//! | `declined` | addresses that a client declined (DHCPDECLINE), held for a while |
//! | `neighbours` | machines that are seen with addresses of the range |
//! | `pool_level` | the fill level of a pool, for warnings |
//! | `address_map`, `address_bitmap` | values and free addresses of a range |

mod address_bitmap;
mod address_map;
mod declined;
mod binding;
mod neighbours;
mod pool_level;
mod reservations;
mod table;

pub use binding::OFFER_HOLD;
pub use declined::{DECLINE_WINDOW, DECLINED_HOLD};
pub use pool_level::{PoolLevel, PoolUse};
pub(crate) use reservations::Client;
pub(crate) use table::LeaseTable;

/// The client state of a DHCPREQUEST (RFC 2131, 4.3.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseRequest {
    /// The client accepts an offer, or restarts with its previous address.
    SelectingOrInitReboot,
    /// The client uses the address.
    RenewingOrRebinding,
}
