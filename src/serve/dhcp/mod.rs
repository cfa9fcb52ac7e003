//! DHCP: a machine asks for an address and is told what to boot.
//!
//! In the order in which a packet passes:
//!
//! | file | what it does |
//! | --- | --- |
//! | `options`, `request` | read it; `firmware` has what firmware is there and where it departs from the RFCs |
//! | `engine` | refuses forged senders, holds back floods (`flood`) and finds the segment (`served`) |
//! | `turn` | decides, with `leases` and `reserved` for the address and `bootfile` for the program |
//! | `reply`, `route` | write the answer, and where it goes |
//! | `note`, `level` | what an operator should know: a pool that fills up, another server |
//!
//! All of that is pure. `probe` asks who else serves a network (`survey` does so before meshd runs) and `frame` makes Ethernet frames, pure as well. `socket` and `frames`
//! open ports, `run` drives, `figures` counts.

mod bits;
mod bootfile;
mod discoveries;
mod engine;
mod exercise;
mod figures;
mod firmware;
mod flood;
mod frame;
mod frames;
mod holds;
mod leases;
mod level;
mod machines;
mod note;
mod options;
mod probe;
mod reply;
mod request;
mod reserved;
mod resting;
mod route;
mod run;
mod served;
mod slots;
mod socket;
mod survey;
mod exchange;

#[cfg(test)]
mod tests;

pub use bootfile::{BootFile, NoLoader, Sources};
pub use engine::{Counters, Effect, Engine, Interface, Reply, ReplyKind, Setup};
pub use exercise::exercise;
pub use firmware::{QUIRKS, Quirk, loader_names};
pub use flood::MAX_PER_SECOND;
pub use holds::OFFER_HOLD;
pub use leases::{DECLINE_WINDOW, DECLINED_HOLD};
pub use level::Level;
pub use machines::{Attachment, Machines, NoMachines};
pub use note::Note;
pub use request::Kind;
pub use route::{CLIENT_PORT, Destination, Origin, PROXY_PORT, SERVER_PORT};
pub use run::run;
pub use socket::{Bound, bind};
pub use survey::find_servers;
