//! The boot LAN according to this host's kernel, and to the frames of its connections.

use super::{
    arp_claimants::probe,
    connection_witness::ConnectionWitness,
    interfaces::{Interface, InterfaceTable},
    kernel_tables::KernelTables,
    neighbour_pins::NeighbourPins,
    segment_table::{Expected, foreign},
    tcp_segment::Ends,
};
use meshd_central::{
    ConnectionFate, ForeignSegment, Lan, Neighbour, ObservedConnection, SegmentSources,
};
use meshd_config::{Segment, Site};
use meshd_types::{MacAddr, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    io,
    net::{Ipv4Addr, SocketAddrV4},
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::mpsc;

/// Maximum number of foreign segments that wait for their alarm. Further ones are counted.
const MAX_FOREIGN: usize = 1024;

/// Interval between reports of foreign datagrams of one machine with one address.
const DATAGRAM_INTERVAL: Duration = Duration::from_secs(10);

/// Looks up addresses and observes connections on the interfaces on which machines boot.
pub struct SystemLan {
    addresses: Arc<Addresses>,
    witnesses: OnceLock<BTreeMap<String, Arc<ConnectionWitness>>>,
    /// Why connections are not observed.
    fault: Mutex<Option<String>>,
    report: mpsc::Sender<ForeignSegment>,
    foreign: tokio::sync::Mutex<mpsc::Receiver<ForeignSegment>>,
    /// Foreign datagrams that were reported, with the time.
    datagrams: Mutex<BTreeMap<(Ipv4Addr, MacAddr), Instant>>,
}

/// The addresses of this host, and of machines that are bound to theirs.
struct Addresses {
    interfaces: Vec<String>,
    /// Segments behind relays whose Ethernet addresses are known.
    relayed: Vec<Segment>,
    table: InterfaceTable,
    kernel: KernelTables,
    pins: NeighbourPins,
}

/// Interface whose network contains an address.
struct OnLink {
    name: String,
    interface: Interface,
    /// This host's address in the network.
    own: Ipv4Addr,
}

/// A connection of a client on the boot LAN.
struct WitnessedConnection {
    witness: Arc<ConnectionWitness>,
    ends: Ends,
    is_routed: bool,
    fate: Arc<ConnectionFate>,
}

impl SystemLan {
    /// Creates the boot LAN of a site.
    pub fn new(site: &Site) -> Self {
        let segments = &site.segments;
        let addresses = Addresses {
            interfaces: segments
                .iter()
                .filter_map(|segment| segment.interface().map(str::to_owned))
                .collect(),
            relayed: segments
                .iter()
                .filter(|segment| !segment.relay_macs.is_empty())
                .cloned()
                .collect(),
            table: InterfaceTable::default(),
            kernel: KernelTables::default(),
            pins: NeighbourPins::default(),
        };
        let (report, foreign) = mpsc::channel(MAX_FOREIGN);
        SystemLan {
            addresses: Arc::new(addresses),
            witnesses: OnceLock::new(),
            fault: Mutex::default(),
            report,
            foreign: tokio::sync::Mutex::new(foreign),
            datagrams: Mutex::default(),
        }
    }

    /// Reports a foreign datagram, at most one of a machine and address in [`DATAGRAM_INTERVAL`].
    fn report_datagram(&self, segment: ForeignSegment) {
        let mut reported = self.datagrams.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        reported.retain(|_, at| now - *at < DATAGRAM_INTERVAL);
        let key = (segment.address, segment.source);
        // A full channel drops the report; the next datagram repeats it.
        if reported.len() < MAX_FOREIGN
            && !reported.contains_key(&key)
            && self.report.try_send(segment).is_ok()
        {
            reported.insert(key, now);
        }
    }

    /// Opens the witness of each Ethernet interface.
    fn open_witnesses(
        &self,
        ports: &[u16],
    ) -> io::Result<BTreeMap<String, Arc<ConnectionWitness>>> {
        let mut witnesses = BTreeMap::new();
        for name in &self.addresses.interfaces {
            let addresses = Arc::clone(&self.addresses);
            let report = self.report.clone();
            let expected = move |address| addresses.expected(address);
            let report = move |segment| {
                if let Err(unreported) = report.try_send(segment) {
                    metrics::counter!("meshd_lan_foreign_segments_dropped_total").increment(1);
                    unreported.into_inner().fate.end();
                }
            };
            if let Some(witness) = ConnectionWitness::open(name, ports, expected, report)? {
                witnesses.insert(name.clone(), witness);
            }
        }
        Ok(witnesses)
    }
}

impl Addresses {
    /// Returns the interface whose network contains an address. A wrong result would admit a
    /// foreign machine or lock a node out, so address changes take effect at once.
    fn on_link(&self, address: Ipv4Addr) -> std::io::Result<Option<OnLink>> {
        let table = self.table.read()?;
        for name in &self.interfaces {
            let Some(interface) = table.get(name) else { continue };
            let is_on = |(own, mask): &&(Ipv4Addr, Ipv4Addr)| *own & *mask == address & *mask;
            if let Some((own, _)) = interface.addresses.iter().find(is_on) {
                return Ok(Some(OnLink {
                    name: name.clone(),
                    interface: interface.clone(),
                    own: *own,
                }));
            }
        }
        Ok(None)
    }

    fn look_up(&self, address: Ipv4Addr) -> io::Result<Neighbour> {
        let Some(OnLink { interface, own, .. }) = self.on_link(address)? else {
            return Ok(Neighbour::Routed);
        };
        if own == address || !interface.is_ethernet {
            return Ok(Neighbour::Routed);
        }
        Ok(self
            .kernel
            .neighbour(interface.index, address)?
            .map_or(Neighbour::Unknown, Neighbour::Machine))
    }

    /// Returns the index of the Ethernet interface with the network of a machine.
    fn machine_interface(&self, address: Ipv4Addr) -> Option<u32> {
        let OnLink { interface, .. } = self.on_link(address).ok()??;
        let is_own = interface.addresses.iter().any(|(own, _)| *own == address);
        (!is_own && interface.is_ethernet).then_some(interface.index)
    }

    /// Returns the Ethernet sources from which segments of an address may come.
    fn expected(&self, address: Ipv4Addr) -> Expected {
        if let Some(mac) = self.pins.mac(address) {
            return Expected::Machine(Some(mac));
        }
        // An unknown address is checked as a local one.
        if !self.on_link(address).is_ok_and(|found| found.is_none()) {
            return Expected::Machine(None);
        }
        let is_on = |segment: &&Segment| {
            segment.subnet.as_ref().is_some_and(|subnet| subnet.is_on_network(address))
        };
        let relay =
            self.relayed.iter().find(is_on).filter(|_| failpoint::defends("router-neighbour"));
        Expected::Routers(relay.map(|segment| segment.relay_macs.clone()).unwrap_or_default())
    }

    /// Removes the entries of the neighbour table that an earlier run left behind.
    fn remove_stale_pins(&self) -> io::Result<()> {
        let table = self.table.read()?;
        for index in self
            .interfaces
            .iter()
            .filter_map(|name| table.get(name))
            .map(|interface| interface.index)
        {
            for address in self.kernel.pinned(index)? {
                self.kernel.unpin(index, address)?;
            }
        }
        Ok(())
    }
}

impl Lan for SystemLan {
    fn neighbour(&self, address: Ipv4Addr) -> Neighbour {
        self.addresses.look_up(address).unwrap_or_else(|error| {
            tracing::error!(%address, %error, "cannot read the kernel's neighbour table");
            Neighbour::Unknown
        })
    }

    fn router_to(&self, address: Ipv4Addr) -> Option<MacAddr> {
        let kernel = &self.addresses.kernel;
        let hop = kernel.route(address);
        let router = hop.and_then(|hop| {
            hop.map_or(Ok(None), |(index, router)| kernel.neighbour(index, router))
        });
        router.unwrap_or_else(|error| {
            tracing::error!(%address, %error, "cannot read the kernel's routes");
            None
        })
    }

    fn default_router(&self) -> Option<Ipv4Addr> {
        // An address of documentation (RFC 5737) is on no network, so the kernel names the default
        // route.
        let hop = self.addresses.kernel.route(Ipv4Addr::new(192, 0, 2, 1));
        hop.ok().flatten().map(|(_, router)| router)
    }

    fn holders(
        &self,
        address: Ipv4Addr,
    ) -> Pin<Box<dyn Future<Output = BTreeSet<MacAddr>> + Send + '_>> {
        Box::pin(async move {
            let Ok(Some(OnLink { name, own, .. })) = self.addresses.on_link(address) else {
                return BTreeSet::new();
            };
            probe(&name, own, address).await.unwrap_or_else(|error| {
                tracing::error!(%address, %error, "cannot ask the boot LAN who has an address");
                BTreeSet::new()
            })
        })
    }

    fn open(&self, ports: &[u16]) -> io::Result<()> {
        if let Err(error) = self.addresses.remove_stale_pins() {
            tracing::warn!(%error, "cannot remove entries of the neighbour table that an earlier run left behind");
        }
        let witnesses = self.open_witnesses(ports).inspect_err(|error| {
            *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
        })?;
        // Opened once; a second call changes nothing.
        let _ = self.witnesses.set(witnesses);
        Ok(())
    }

    fn run(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let witnesses = self.witnesses.get().into_iter().flat_map(BTreeMap::values);
        let running: Vec<_> = witnesses.map(|witness| Arc::clone(witness).run()).collect();
        Box::pin(async move {
            futures_util::future::join_all(running).await;
            std::future::pending().await
        })
    }

    fn observe(
        &self,
        interface: &str,
        client: SocketAddrV4,
        server: SocketAddrV4,
    ) -> Option<Arc<dyn ObservedConnection>> {
        let table = self.addresses.table.read().ok()?;
        let is_client =
            |interface: &Interface| interface.addresses.iter().any(|(own, _)| own == client.ip());
        // Frames from this host to itself pass no wire.
        if table.values().any(is_client) {
            return None;
        }
        // Two interfaces may have one address: only the interface of the listener says where frames
        // arrive.
        let witness = Arc::clone(self.witnesses.get()?.get(interface)?);
        let ends = Ends { client, server };
        let is_routed = matches!(self.addresses.expected(*client.ip()), Expected::Routers(_));
        let fate = witness.accept(ends);
        Some(Arc::new(WitnessedConnection { witness, ends, is_routed, fate }))
    }

    fn admits_datagram(
        &self,
        address: Ipv4Addr,
        source: MacAddr,
        earlier: Option<MacAddr>,
    ) -> bool {
        let found = foreign(
            earlier.as_slice(),
            address,
            source,
            self.addresses.expected(address),
            &Arc::default(),
        );
        found.map(|segment| self.report_datagram(segment)).is_none()
    }

    fn foreign_segment(&self) -> Pin<Box<dyn Future<Output = ForeignSegment> + Send + '_>> {
        Box::pin(async {
            match self.foreign.lock().await.recv().await {
                Some(segment) => segment,
                None => std::future::pending().await,
            }
        })
    }

    fn pin(&self, address: Ipv4Addr, mac: MacAddr) {
        let Addresses { pins, kernel, .. } = &*self.addresses;
        if let Some(index) = self.addresses.machine_interface(address)
            && pins.get(address, Some(index)) != Some((mac, true))
        {
            pins.set(kernel, index, address, mac);
        }
    }

    fn pinned(&self, address: Ipv4Addr) -> Option<(MacAddr, bool)> {
        self.addresses.pins.get(address, self.addresses.machine_interface(address))
    }

    fn retain_pins(&self, is_used: &dyn Fn(Ipv4Addr, MacAddr) -> bool) {
        let Addresses { pins, kernel, .. } = &*self.addresses;
        pins.retain(kernel, is_used, |address| self.addresses.machine_interface(address));
    }

    fn faults(&self) -> Vec<String> {
        let unobserved = self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let unobserved = unobserved.map(|error| format!("connections are not observed: {error}"));
        let unbound = self
            .addresses
            .pins
            .fault()
            .map(|error| format!("addresses are not bound to their NICs: {error}"));
        unobserved.into_iter().chain(unbound).collect()
    }
}

impl ObservedConnection for WitnessedConnection {
    fn sources(&self) -> SegmentSources {
        let (macs, is_complete) = self.witness.sources(&self.ends);
        SegmentSources { macs, is_complete, is_routed: self.is_routed }
    }

    fn fate(&self) -> &ConnectionFate {
        &self.fate
    }
}

impl Drop for WitnessedConnection {
    fn drop(&mut self) {
        self.witness.close(self.ends);
    }
}
