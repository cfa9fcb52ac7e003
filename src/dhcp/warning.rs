//! Output of the engine: what an operator should know.

use crate::{
    boot_file::NoLoader,
    lease::{PoolLevel, PoolUse},
    nic_records::RelayPort,
    packet::ClientMessageType,
};
use meshd_types::{MacAddr, VmName};
use std::{net::Ipv4Addr, sync::Arc};

/// Why a client gets less than it asked for, or soon will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Firmware gets an address, but no boot file.
    NoLoader(NoLoader),
    /// A relay that belongs to no segment forwarded a request, or a relay selected a network that
    /// belongs to none.
    ForeignRelay {
        relay: Ipv4Addr,
        /// The network that the relay selected with option 82 or 118.
        selected: Option<Ipv4Addr>,
    },
    /// A packet gets no reply.
    Dropped {
        reason: DropReason,
        /// The client in the packet.
        mac: Option<MacAddr>,
        /// Where the packet came from.
        source: Ipv4Addr,
    },
    /// Another server answers on a segment.
    OtherServer {
        segment: Arc<str>,
        /// The server identifier of the other server.
        server: Ipv4Addr,
        /// True for a proxy that serves PXE clients only.
        proxy: bool,
    },
    /// An address is in use by a machine that did not get it from this server.
    AddressInUse {
        segment: Arc<str>,
        address: Ipv4Addr,
        /// The machine; `None` if a client declined the address.
        by: Option<MacAddr>,
    },
    /// A machine claims more addresses than a machine uses (ARP). Its claims are ignored.
    ManyAddressesClaimed { segment: Arc<str>, by: MacAddr },
    /// The Ethernet sender of a request is not its client.
    Forged {
        /// The client in the packet.
        mac: MacAddr,
        /// The Ethernet sender.
        sender: MacAddr,
        /// The message type.
        kind: ClientMessageType,
    },
    /// A machine behind a relay sends a request as a relay would.
    UnknownRelay {
        /// The client in the packet.
        mac: MacAddr,
        /// The address of the machine: giaddr, or the sender of the packet.
        sender: Ipv4Addr,
    },
    /// A relay reports another port for a NIC than the one that its machine enrolled from.
    RelayPortMismatch {
        mac: MacAddr,
        /// The known port.
        known: RelayPort,
        /// The reported port.
        seen: Option<RelayPort>,
    },
    /// The address of a VM cannot be reserved, because a configured reservation conflicts.
    NotReserved { vm: VmName, address: Ipv4Addr },
    /// The address of a machine cannot be reserved, because another reservation conflicts.
    MachineNotReserved { mac: MacAddr, address: Ipv4Addr },
    /// A pool reached a fill level.
    Pool {
        segment: Arc<str>,
        level: PoolLevel,
        /// The usage of the pool.
        usage: PoolUse,
    },
}

/// Why a packet gets no reply, where neither the mode nor another server explains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// It is no request of a client whose link is served.
    Malformed,
    /// Its sender exceeds the rate limit.
    RateLimited,
    /// Its sender is not proven to be the client: it came through a router, or from another address
    /// than it names.
    UnprovenSender,
    /// It was sent from a port that programs without privileges may use, not from that of clients
    /// or relays.
    SourcePort,
    /// A REQUEST that names no address.
    NoAddress,
    /// A RELEASE or DECLINE of an address that the machine uses, or did not receive lately.
    Unfounded,
}

impl DropReason {
    /// All reasons, in their order.
    pub const ALL: [DropReason; 6] = [
        DropReason::Malformed,
        DropReason::RateLimited,
        DropReason::UnprovenSender,
        DropReason::SourcePort,
        DropReason::NoAddress,
        DropReason::Unfounded,
    ];
}
