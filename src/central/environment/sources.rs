//! Traits for time, randomness and layer 2 of the boot LAN.

use meshd_types::{MacAddr, Timestamp};
use std::{
    collections::BTreeSet,
    future::Future,
    net::Ipv4Addr,
    pin::Pin,
    sync::OnceLock,
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

    /// Returns the Ethernet address of the router that packets to an address behind one go to; `None` if the kernel knows none.
    fn router_to(&self, address: Ipv4Addr) -> Option<MacAddr>;

    /// Sends ARP probes for less than a second and returns every Ethernet address that answers.
    fn holders(&self, address: Ipv4Addr) -> Pin<Box<dyn Future<Output = BTreeSet<MacAddr>> + Send + '_>>;
}

/// A LAN with all addresses behind a router, so layer 2 is unknown. For programs without a boot LAN.
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
