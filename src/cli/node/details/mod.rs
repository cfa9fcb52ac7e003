//! Parts of `meshd node show`.
//!
//! | module | content |
//! | --- | --- |
//! | `hardware` | rows of hardware and software |
//! | `units` | the VFIO units, as a table |

mod hardware;
mod units;

pub(super) use hardware::rows;
pub(super) use units::show as units;
