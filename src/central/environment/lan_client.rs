//! The client of a request, with the TCP connection that carried the request, as observed on the
//! wire.

use meshd_types::{MacAddr, NodeId, failpoint};
use std::{
    collections::BTreeSet,
    fmt,
    net::{IpAddr, Ipv4Addr},
    sync::{Arc, Mutex, PoisonError},
};
use tokio_util::sync::CancellationToken;

/// Maximum number of nodes whose alarms one connection remembers.
const MAX_ALARMS: usize = 64;

/// The Ethernet sources of all segments of one TCP connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentSources {
    pub macs: Vec<MacAddr>,
    /// Every segment was seen, from the first one on.
    pub is_complete: bool,
    /// The address of the client is behind a router, which is the Ethernet source.
    pub is_routed: bool,
}

/// The end of a connection, and its alarm. Observer and server share it.
#[derive(Debug, Default)]
pub struct ConnectionFate {
    /// The nodes about which this connection has raised an alarm; `None` for all unknown ones
    /// together.
    alarms: Mutex<BTreeSet<Option<NodeId>>>,
    ended: CancellationToken,
}

/// A TCP connection that is observed until it is dropped.
pub trait ObservedConnection: Send + Sync {
    /// Returns the sources of all segments that have arrived.
    fn sources(&self) -> SegmentSources;

    fn fate(&self) -> &ConnectionFate;
}

/// A segment that came from another machine than its connection.
#[derive(Clone, Debug)]
pub struct ForeignSegment {
    /// The client's address.
    pub address: Ipv4Addr,
    pub source: MacAddr,
    /// The machine that has the address, or that opened the connection.
    pub expected: Option<MacAddr>,
    /// The address is behind a router.
    pub is_routed: bool,
    pub fate: Arc<ConnectionFate>,
}

/// The client of a request.
#[derive(Clone)]
pub struct LanClient {
    pub address: IpAddr,
    connection: Option<Arc<dyn ObservedConnection>>,
}

impl ConnectionFate {
    /// Returns true for the first caller: one connection raises one alarm about each known node. An
    /// alarm about one node must not hide the attack on another.
    pub fn claim_alarm(&self, node: Option<NodeId>) -> bool {
        let node = node.filter(|_| failpoint::defends("alarm-of-node"));
        let mut alarms = self.alarms.lock().unwrap_or_else(PoisonError::into_inner);
        // Beyond the bound, the rate limit of alarms is what is left.
        if alarms.len() < MAX_ALARMS { alarms.insert(node) } else { !alarms.contains(&node) }
    }

    /// Ends the connection.
    pub fn end(&self) {
        self.ended.cancel();
    }
}

impl LanClient {
    pub fn new(address: IpAddr, connection: Option<Arc<dyn ObservedConnection>>) -> Self {
        LanClient { address, connection }
    }

    /// Returns the Ethernet sources of the connection; `None` if it is not observed.
    pub(crate) fn sources(&self) -> Option<SegmentSources> {
        self.connection.as_ref().map(|connection| connection.sources())
    }

    /// Returns the Ethernet address of a client on a local segment, if all segments of its
    /// connection came from there.
    pub(crate) fn local_mac(&self) -> Option<MacAddr> {
        let SegmentSources { macs, is_complete: true, is_routed: false } = self.sources()? else {
            return None;
        };
        <[MacAddr; 1]>::try_from(macs).ok().map(|[mac]| mac)
    }

    /// Returns true if this connection has raised no alarm about the node yet.
    pub(crate) fn claim_alarm(&self, node: Option<NodeId>) -> bool {
        self.connection.as_ref().is_none_or(|connection| connection.fate().claim_alarm(node))
    }

    /// Resolves when the connection must end, because a segment came from another machine.
    pub async fn ended(&self) {
        match &self.connection {
            Some(connection) => connection.fate().ended.cancelled().await,
            None => std::future::pending().await,
        }
    }

    /// Returns true if the connection must end.
    pub fn has_ended(&self) -> bool {
        self.connection.as_ref().is_some_and(|connection| connection.fate().ended.is_cancelled())
    }

    /// Returns the IPv4 address; that of an IPv6 client is unspecified, because machines boot by
    /// IPv4.
    pub(crate) fn ipv4(&self) -> Ipv4Addr {
        match self.address {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => Ipv4Addr::UNSPECIFIED,
        }
    }
}

impl From<IpAddr> for LanClient {
    fn from(address: IpAddr) -> Self {
        LanClient { address, connection: None }
    }
}

impl From<Ipv4Addr> for LanClient {
    fn from(address: Ipv4Addr) -> Self {
        IpAddr::V4(address).into()
    }
}

impl fmt::Display for LanClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.address.fmt(f)
    }
}

impl fmt::Debug for LanClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
