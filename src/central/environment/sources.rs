//! Traits for time, randomness and layer 2 of the boot LAN.

use super::lan_client::{ForeignSegment, ObservedConnection};
use meshd_types::{MacAddr, Timestamp};
use std::{
    collections::BTreeSet,
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    pin::Pin,
    sync::{Arc, OnceLock},
    time::{Duration, Instant, SystemTime},
};

/// Time, as an argument.
pub trait Clock: Send + Sync {
    /// Wall-clock time: for what is stored and shown.
    fn now(&self) -> Timestamp;
    /// Monotonic time: for deadlines and limits.
    fn monotonic(&self) -> Duration;
}

/// Randomness, as an argument.
pub trait Entropy: Send + Sync {
    /// Fills the buffer with cryptographically secure random bytes.
    fn fill(&self, bytes: &mut [u8]);
}

/// The state of an IPv4 address on layer 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Neighbour {
    /// Packets to it are sent to this Ethernet address.
    Machine(MacAddr),
    /// It is on no local segment, but behind a router or relay.
    Routed,
    /// It is on a local segment, and no machine answers for it.
    Unknown,
}

/// Layer 2 of the boot LAN, as an argument.
pub trait Lan: Send + Sync {
    /// Returns the holder of an address from the neighbour table, without network traffic.
    fn neighbour(&self, address: Ipv4Addr) -> Neighbour;

    /// Returns the Ethernet address of the router that packets to an address behind one go to;
    /// `None` if the kernel knows none.
    fn router_to(&self, address: Ipv4Addr) -> Option<MacAddr>;

    /// Returns the router of this host's default route; `None` if there is none.
    fn default_router(&self) -> Option<Ipv4Addr> {
        None
    }

    /// Sends ARP probes for less than a second and returns every Ethernet address that answers.
    fn holders(
        &self,
        address: Ipv4Addr,
    ) -> Pin<Box<dyn Future<Output = BTreeSet<MacAddr>> + Send + '_>>;

    /// Begins to observe the TCP connections to these ports of this host. Call it before the ports
    /// are open.
    ///
    /// # Errors
    /// The kernel refuses it: connections are then checked by the neighbour table alone.
    fn open(&self, ports: &[u16]) -> io::Result<()> {
        let _ = ports;
        Ok(())
    }

    /// Runs the observation, for ever.
    fn run(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    /// Observes a connection until the result is dropped. `interface` is that of the listener that
    /// accepted it. `None` if the interface is not observed.
    fn observe(
        &self,
        interface: &str,
        client: SocketAddrV4,
        server: SocketAddrV4,
    ) -> Option<Arc<dyn ObservedConnection>> {
        let _ = (interface, client, server);
        None
    }

    /// Returns true if a datagram of an address may come from this Ethernet source. `earlier` sent
    /// the datagrams before it. Reports others as foreign segments.
    fn admits_datagram(
        &self,
        address: Ipv4Addr,
        source: MacAddr,
        earlier: Option<MacAddr>,
    ) -> bool {
        let _ = (address, source, earlier);
        true
    }

    /// Returns the next segment that came from another machine than its connection.
    fn foreign_segment(&self) -> Pin<Box<dyn Future<Output = ForeignSegment> + Send + '_>> {
        Box::pin(std::future::pending())
    }

    /// Binds a local address to the machine that boots or has its link from there: packets go to
    /// its NIC, whatever ARP says, and segments from another one are foreign. An address of another
    /// network or of this host is not bound.
    fn pin(&self, address: Ipv4Addr, mac: MacAddr) {
        let _ = (address, mac);
    }

    /// Returns the NIC to which an address is bound, and whether the kernel enforces it.
    fn pinned(&self, address: Ipv4Addr) -> Option<(MacAddr, bool)> {
        let _ = address;
        None
    }

    /// Removes the bindings that are not in use any more, and renews the others.
    fn retain_pins(&self, is_used: &dyn Fn(Ipv4Addr, MacAddr) -> bool) {
        let _ = is_used;
    }

    /// Returns the reasons why connections are not fully checked.
    fn faults(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A LAN with all addresses behind a router, so layer 2 is unknown. For programs without a boot
/// LAN.
pub struct NoLan;

impl Lan for NoLan {
    fn neighbour(&self, _: Ipv4Addr) -> Neighbour {
        Neighbour::Routed
    }

    fn router_to(&self, _: Ipv4Addr) -> Option<MacAddr> {
        None
    }

    fn holders(&self, _: Ipv4Addr) -> Pin<Box<dyn Future<Output = BTreeSet<MacAddr>> + Send + '_>> {
        Box::pin(std::future::ready(BTreeSet::new()))
    }
}

/// The machine's clocks.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
    }

    fn monotonic(&self) -> Duration {
        static START: OnceLock<Instant> = OnceLock::new();
        START.get_or_init(Instant::now).elapsed()
    }
}

/// The kernel's random numbers.
pub struct SystemEntropy;

impl Entropy for SystemEntropy {
    fn fill(&self, bytes: &mut [u8]) {
        getrandom::fill(bytes).expect("getrandom(2) works on every Linux that meshd runs on");
    }
}
