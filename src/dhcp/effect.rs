//! Output of the engine: replies, changes to store, and the status of segments. Pure.

use crate::{
    config::DhcpMode,
    lease::PoolUse,
    nic_records::RelayPort,
    packet::{BmcClaim, ClientKind, Destination},
    warning::Warning,
};
use meshd_types::{ClientArch, MacAddr, SystemUuid, Timestamp};
use std::net::Ipv4Addr;

/// One output of the engine. The user executes outputs in order.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    /// Send a packet.
    Reply(Reply),
    /// Store a change. Replies after it wait until it is stored, and are discarded if that fails;
    /// a reply before it, such as an offer, is sent at once.
    Store(Change),
    /// Inform the operator.
    Warn(Warning),
}

/// A packet to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// The DHCP packet.
    pub packet: Vec<u8>,
    pub to: Destination,
    /// Where the request came from, for a reply in a frame: ARP resolves no address that nobody
    /// answers for. `None` for a broadcast.
    pub last_hop: Option<LastHop>,
    /// The interface of the request, as an index into [`crate::Setup::interfaces`].
    pub interface_index: usize,
    /// The server's port of the request.
    pub local_port: u16,
    /// The kind of the reply, for counters.
    pub kind: ReplyKind,
}

/// The Ethernet neighbour that delivered a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastHop {
    /// The client itself, from the address that its reply goes to.
    Client(MacAddr),
    /// A relay or router.
    Router(MacAddr),
}

/// The kind of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplyKind {
    Offer,
    Ack,
    Nak,
}

/// A change to store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A DHCP exchange of a client, with its lease.
    Exchange(ClientExchange),
    /// A lease of a VM's NIC, or of a client behind a router: it is no sign of a boot.
    LeaseGranted(Lease),
    /// A lease that ends or is removed.
    LeaseChanged(LeaseChange),
}

/// A DHCP exchange of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientExchange {
    pub mac: MacAddr,
    /// Firmware, iPXE or operating system.
    pub client: ClientKind,
    /// Option 97, if valid.
    pub uuid: Option<SystemUuid>,
    /// Option 93.
    pub arch: Option<ClientArch>,
    /// The packet of the client is a DISCOVER.
    pub is_discover: bool,
    /// Seconds since the client began to ask, by its own count.
    pub secs: u16,
    /// The client's address; `None` in the offer or acknowledgement of a proxy.
    pub address: Option<Ipv4Addr>,
    /// The lease that this exchange created or renewed.
    pub lease: Option<Lease>,
    /// The exchange began with a DISCOVER, so the client was ready to take another address.
    pub discovered: bool,
    /// Where the relay says that the client is plugged in.
    pub relay_port: Option<RelayPort>,
    /// A relay forwarded the request.
    pub is_relayed: bool,
    /// What a BMC says of itself.
    pub bmc: Option<BmcClaim>,
}

/// A lease. Leases are by MAC address, because firmware, iPXE and operating system send different
/// client identifiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    pub mac: MacAddr,
    /// The address; no two leases share one.
    pub address: Ipv4Addr,
    /// End of the lease. The client keeps the address afterwards until another client needs it.
    pub expires_at: Timestamp,
    /// The VM of the NIC.
    pub vm: Option<SystemUuid>,
}

/// A change of a stored lease. It applies only while the stored lease has the owner of `before` and
/// does not end earlier, so that it cannot undo a newer change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseChange {
    /// The old lease.
    pub before: Lease,
    /// The new lease; `None` removes it.
    pub after: Option<Lease>,
}

/// The status of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentStatus {
    /// The interface, or `relay-<address>`.
    pub name: String,
    /// The role of this server.
    pub mode: DhcpMode,
    /// Usage of its pool; all zero without a pool.
    pub pool: PoolUse,
    /// Other DHCP and PXE servers on the segment, newest last.
    pub other_servers: Vec<OtherServer>,
}

/// A server that does not belong to the user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherServer {
    /// Server identifier (option 54).
    pub address: Ipv4Addr,
    /// True for a proxy that serves PXE clients only.
    pub proxy: bool,
    /// When it was last heard.
    pub last: Timestamp,
}
