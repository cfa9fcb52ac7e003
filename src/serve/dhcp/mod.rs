//! DHCP: leases addresses and boot files. The crate `meshd-dhcp` holds the protocol; this folder connects it to sockets and to the central
//! node.
//!
//! | module | content |
//! | --- | --- |
//! | `survey` | finds other DHCP servers before meshd runs |
//! | `socket` | opens the ports of each interface, sends and receives |
//! | `frame_socket` | sends Ethernet frames to clients without an address |
//! | `driver` | the task: packets to the engine, effects to sockets, store and log |
//! | `machines` | what the engine asks about nodes |
//! | `convert` | between types of the engine and of site.toml, model and central node |
//! | `warnings` | texts, events and alarms for warnings of the engine |
//! | `telemetry` | metrics |

mod convert;
mod driver;
mod frame_socket;
mod machines;
mod socket;
mod survey;
mod telemetry;
mod warnings;

pub use driver::run;
pub use socket::{Bound, bind};
pub use survey::find_servers;
