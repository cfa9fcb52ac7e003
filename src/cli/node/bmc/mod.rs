//! Commands that ask the BMCs of nodes.
//!
//! | module | content |
//! | --- | --- |
//! | `power` | `meshd node power/boot-device/identify`: orders to the BMCs of nodes |
//! | `reports` | `meshd node sensors/sel/firmware/console`: what the BMCs of nodes report |

pub(crate) mod power;
pub(crate) mod reports;
