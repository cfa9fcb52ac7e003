//! DHCP: assigns addresses and boot files. The crate `meshd-dhcp` implements the protocol; this
//! folder connects it to sockets and to the central node.
//!
//! | module | content |
//! | --- | --- |
//! | `site_init_search` | finds other DHCP servers before meshd runs |
//! | `socket` | opens the ports of each interface, sends and receives |
//! | `driver` | the task: packets to the engine, warnings to the log, periodic work |
//! | `addresses_in_use` | finds addresses that machines use without a lease |
//! | `neighbour_table` | reads the kernel's neighbour table |
//! | `reply_after_commit` | stores changes together, then sends their replies |
//! | `running_commit` | a commit of leases, and the replies that wait for it |
//! | `convert` | converts between types of the engine and types of site.toml, model and central node |
//! | `warnings` | texts, events and alarms for warnings of the engine |
//! | `telemetry` | metrics |

mod addresses_in_use;
mod convert;
mod driver;
mod neighbour_table;
mod reply_after_commit;
mod running_commit;
mod socket;
mod site_init_search;
mod telemetry;
mod warnings;

pub use driver::run;
pub use site_init_search::find_servers;
pub use socket::{Bound, bind};
