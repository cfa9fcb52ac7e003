//! Supervises a network that the node makes: repairs what is missing, and serves DHCP to the NICs
//! of the current VMs.

use super::{
    MissingPart, PROBE_MAC, choose_subnet,
    dhcp::{self, DhcpScope},
    drift,
    firewall::{
        masquerade,
        user::{self, CentralServices},
    },
    links, private_network, settings,
};
use crate::system::Tree;
use meshd_proto::{InterfaceName, NetworkSpec, Subnet, vm::Nic};
use meshd_types::MacAddr;
use std::{collections::BTreeMap, io, net::Ipv4Addr, time::Duration};
use tokio::{
    net::UdpSocket,
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval},
};

const INSPECT_INTERVAL: Duration = Duration::from_secs(15);

/// Starts the supervisor of the private network, if the overlay enables the network, and the repair
/// of the firewalls of users. Starts nothing for a tree of another root. `nics` are the NICs of the
/// VMs; `assigned` receives their addresses. Dropping the returned set stops the supervisor but
/// keeps the bridge.
pub fn start(
    tree: &Tree,
    central: CentralServices,
    nics: watch::Receiver<Vec<Nic>>,
    assigned: watch::Sender<BTreeMap<MacAddr, Ipv4Addr>>,
) -> JoinSet<()> {
    if !tree.is_running_system() {
        return JoinSet::new();
    }
    let started = private_network(tree).map(|spec| spawn(tree.clone(), spec, nics, assigned));
    let mut tasks = started.unwrap_or_default();
    tasks.spawn(user::repair(central));
    tasks
}

fn spawn(
    tree: Tree,
    spec: NetworkSpec,
    nics: watch::Receiver<Vec<Nic>>,
    assigned: watch::Sender<BTreeMap<MacAddr, Ipv4Addr>>,
) -> JoinSet<()> {
    let mut task = JoinSet::new();
    let supervisor = NetworkSupervisor {
        tree,
        spec,
        nics,
        assigned,
        subnet: None,
        socket: None,
        logged: Vec::new(),
    };
    task.spawn(supervisor.run());
    task
}

struct NetworkSupervisor {
    tree: Tree,
    spec: NetworkSpec,
    nics: watch::Receiver<Vec<Nic>>,
    assigned: watch::Sender<BTreeMap<MacAddr, Ipv4Addr>>,
    subnet: Option<Subnet>,
    socket: Option<UdpSocket>,
    /// Missing parts of the last inspection: only changes are logged.
    logged: Vec<MissingPart>,
}

impl NetworkSupervisor {
    async fn run(mut self) {
        let mut inspections = interval(INSPECT_INTERVAL);
        inspections.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut packet = [0; dhcp::MAX_PACKET];
        loop {
            tokio::select! {
                _ = inspections.tick() => self.inspect().await,
                changed = self.nics.changed() => match changed {
                    Ok(()) => self.assign(),
                    Err(_) => return,
                },
                length = receive(&self.socket, &mut packet) => self.reply(&packet[..length]).await,
            }
        }
    }

    async fn inspect(&mut self) {
        let Some(subnet) = choose_subnet(&self.tree, &self.spec) else {
            tracing::error!(network = %self.spec.bridge, "cannot start the network: every subnet of the pool overlaps a route");
            return;
        };
        let missing = drift::missing(&self.tree, &self.spec, subnet);
        if !missing.is_empty() && missing != self.logged {
            tracing::warn!(%subnet, missing = drift::list(&missing), "repairing the network");
        }
        for missing in &missing {
            if let Err(error) = self.repair(*missing, subnet) {
                tracing::error!(missing = missing.as_str(), %error, "cannot repair the network; retrying");
                break;
            }
        }
        if missing.contains(&MissingPart::Bridge) {
            // The socket was bound to the former bridge.
            self.socket = None;
        }
        self.logged = missing;
        self.subnet = Some(subnet);
        self.assign();
        if self.socket.is_none() {
            let bridge = &self.spec.bridge;
            self.socket = listen(bridge)
                .await
                .inspect_err(|error| tracing::error!(%error, %bridge, "cannot serve DHCP"))
                .ok();
        }
    }

    fn repair(&self, missing: MissingPart, subnet: Subnet) -> io::Result<()> {
        let NetworkSpec { bridge, mac, .. } = &self.spec;
        match missing {
            MissingPart::Bridge => links::make_bridge(bridge, *mac),
            MissingPart::Address => {
                // An existing address belongs to a former subnet.
                links::remove_addresses(bridge.as_str())?;
                links::add_address(bridge.as_str(), subnet.gateway(), subnet.bits())
            }
            MissingPart::LinkUp => links::set_up(bridge.as_str()),
            MissingPart::Forwarding => {
                std::fs::write(self.tree.path("/proc/sys/net/ipv4/ip_forward"), "1\n")
            }
            MissingPart::Masquerade => masquerade::install(&self.spec, subnet),
        }
    }

    fn assign(&mut self) {
        let Some(subnet) = self.subnet else { return };
        let nics = self.nics.borrow_and_update().clone();
        let on_bridge = nics.iter().filter(|nic| nic.bridge.as_ref() == Some(&self.spec.bridge));
        let addresses = assign_addresses(subnet, on_bridge, &self.assigned.borrow());
        self.assigned.send_if_modified(|assigned| {
            let is_changed = *assigned != addresses;
            *assigned = addresses;
            is_changed
        });
    }

    async fn reply(&self, packet: &[u8]) {
        let (Some(socket), Some(subnet)) = (&self.socket, self.subnet) else { return };
        let mut reserved = self.assigned.borrow().clone();
        reserved.insert(PROBE_MAC, subnet.gateway());
        let dns = settings::name_servers(&self.tree);
        let scope = DhcpScope { gateway: subnet.gateway(), mask: subnet.mask(), dns, reserved };
        let Some(reply) = dhcp::reply(packet, &scope) else { return };
        if let Err(error) = socket.send_to(&reply.bytes, reply.destination).await {
            tracing::warn!(%error, destination = %reply.destination, "cannot send a DHCP reply");
        }
    }
}

/// Assigns an address to each NIC of the network: the one of its specification, else the previous
/// one, else one derived from the MAC address. Addresses outside the subnet and addresses in use
/// are not assigned.
fn assign_addresses<'a>(
    subnet: Subnet,
    nics: impl Iterator<Item = &'a Nic> + Clone,
    previous: &BTreeMap<MacAddr, Ipv4Addr>,
) -> BTreeMap<MacAddr, Ipv4Addr> {
    let mut assigned = BTreeMap::new();
    let is_free = |assigned: &BTreeMap<MacAddr, Ipv4Addr>, address: Ipv4Addr| {
        subnet.is_assignable(address) && !assigned.values().any(|taken| *taken == address)
    };
    let owners: BTreeMap<Ipv4Addr, MacAddr> =
        nics.clone().filter_map(|nic| Some((*previous.get(&nic.mac)?, nic.mac))).collect();
    for nic in nics.clone() {
        let Some(address) = nic.address else { continue };
        if owners.get(&address).is_none_or(|mac| *mac == nic.mac) && is_free(&assigned, address) {
            assigned.insert(nic.mac, address);
        } else {
            tracing::error!(mac = %nic.mac, %address, %subnet, "cannot assign the address of a NIC: it is outside the subnet or in use");
        }
    }
    for nic in nics.filter(|nic| nic.address.is_none()) {
        let host_mask = !subnet.mask().to_bits();
        let hash = nic
            .mac
            .0
            .iter()
            .fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        let candidate = |n: u32| {
            Ipv4Addr::from_bits(subnet.network().to_bits() | hash.wrapping_add(n) & host_mask)
        };
        let candidates =
            previous.get(&nic.mac).copied().into_iter().chain((0..=host_mask).map(candidate));
        let address = candidates.into_iter().find(|address| is_free(&assigned, *address));
        assigned.extend(address.map(|address| (nic.mac, address)));
    }
    assigned
}

async fn listen(bridge: &InterfaceName) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, dhcp::SERVER_PORT)).await?;
    socket.bind_device(Some(bridge.as_str().as_bytes()))?;
    socket.set_broadcast(true)?;
    Ok(socket)
}

/// Cancel-safe. A socket error does not count as a packet.
async fn receive(socket: &Option<UdpSocket>, packet: &mut [u8]) -> usize {
    match socket {
        Some(socket) => socket.recv_from(packet).await.map_or(0, |(length, _)| length),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
