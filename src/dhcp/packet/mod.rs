//! Packets: parsing requests, building replies, and where replies are sent.
//!
//! | module | content |
//! | --- | --- |
//! | `options` | raw options of a packet, option 82 of relays |
//! | `request` | a request of a client as typed values |
//! | `reply` | builds OFFER, ACK and NAK |
//! | `route` | sender of a request, receiver of a reply |
//! | `foreign_server` | packets of other DHCP servers |
//! | `probe` | packets that make other DHCP servers answer |
//! | `ethernet_frame` | a reply as an Ethernet frame |

mod ethernet_frame;
mod foreign_server;
mod options;
mod probe;
mod reply;
mod request;
mod route;

pub use ethernet_frame::udp_frame;
pub use foreign_server::ServerMessage;
pub(crate) use options::Options;
pub(crate) use probe::probe_mac;
pub use probe::probe_packets;
pub(crate) use reply::{ReplyBuilder, ReplyContent};
pub use request::RequestKind;
pub(crate) use request::{Request, Vendor};
pub use route::{CLIENT_PORT, Destination, Origin, PROXY_PORT, SERVER_PORT};
