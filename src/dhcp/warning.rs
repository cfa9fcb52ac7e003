//! Output of the engine: what an operator should know.

use crate::{boot_file::NoLoader, effect::PoolUse, lease::PoolLevel, machines::RelayPort, packet::ClientMessageType};
use meshd_types::{MacAddr, VmName};
use std::{net::Ipv4Addr, sync::Arc};

/// Why a client gets less than it asked for, or soon will.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// Firmware gets an address, but no boot file.
    NoLoader(NoLoader),
    /// A relay that belongs to no segment forwarded a request.
    ForeignRelay(Ipv4Addr),
    /// Another server answers on a segment.
    OtherServer {
        segment: Arc<str>,
        /// The server identifier of the other server.
        server: Ipv4Addr,
        /// True for a proxy that serves PXE clients only.
        proxy: bool,
    },
    /// A client found its address in use by another machine.
    Declined { segment: Arc<str>, address: Ipv4Addr },
    /// The Ethernet sender of a request is not its client.
    Forged {
        /// The client in the packet.
        mac: MacAddr,
        /// The Ethernet sender.
        sender: MacAddr,
        /// The message type.
        kind: ClientMessageType,
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
    /// A pool reached a fill level.
    Pool {
        segment: Arc<str>,
        level: PoolLevel,
        /// The usage of the pool.
        usage: PoolUse,
    },
}
