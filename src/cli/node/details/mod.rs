//! Parts of `meshd node show`.
//!
//! | module | content |
//! | --- | --- |
//! | `boot` | how the node carried out its last warm reboot |
//! | `hardware` | rows of hardware and software |
//! | `units` | the VFIO units, as a table |

mod boot;
mod hardware;
mod units;

pub(super) use boot::warm_result;
pub(super) use hardware::rows;
pub(super) use units::show as units;
