//! Packets: parsing requests, building replies, and where replies are sent.
//!
//! | module | content |
//! | --- | --- |
//! | `bmc_class` | management controllers, by option 60 |
//! | `client_class` | firmware or iPXE, by options 60 and 77 |
//! | `options` | raw options of a packet |
//! | `option_list` | the options of a reply, in their order |
//! | `link` | the link layer of a client: hardware type and client address |
//! | `relay_agent_information` | option 82 of relays |
//! | `request` | a request of a client as typed values |
//! | `reply` | builds OFFER, ACK and NAK |
//! | `reply_destination` | sender of a request, receiver of a reply |
//! | `server_message` | packets of other DHCP servers |
//! | `other_server_probe` | packets that make other DHCP servers answer |
//! | `udp_frame` | builds an Ethernet frame for a client without an address |

mod bmc_class;
mod udp_frame;
mod server_message;
mod client_class;
mod link;
mod option_list;
mod options;
mod other_server_probe;
mod relay_agent_information;
mod reply;
mod request;
mod reply_destination;

pub use bmc_class::BmcClaim;
pub use client_class::{ClientKind, VendorClass};
pub use link::ClientLink;
pub(crate) use options::Options;
pub use other_server_probe::probe_packets;
pub(crate) use other_server_probe::{is_probe, probe_mac};
pub(crate) use reply::{ReplyBuilder, ReplyContent};
pub use reply_destination::{CLIENT_PORT, Destination, Origin, PROXY_PORT, SERVER_PORT};
pub(crate) use request::ClientMessage;
pub use request::ClientMessageType;
pub use server_message::ServerMessage;
pub use udp_frame::udp_frame;
