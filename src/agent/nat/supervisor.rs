//! Supervises the private network: repairs what is missing, and serves DHCP to the NICs of the current VMs.

use super::{
    BRIDGE, BRIDGE_MAC, Missing, PROBE, Settings, Subnet,
    dhcp::{self, Pool},
    drift::{self, ObservedNetwork},
    masquerade, settings,
};
use crate::system::Tree;
use meshd_proto::vm::Nic;
use meshd_types::MacAddr;
use std::{collections::BTreeMap, io, net::Ipv4Addr, path::PathBuf, process::Stdio, time::Duration};
use tokio::{
    net::UdpSocket,
    process::Command,
    sync::watch,
    task::JoinSet,
    time::{MissedTickBehavior, interval, timeout},
};

/// Paths of `ip` (iproute2 or busybox).
const IP: [&str; 4] = ["/sbin/ip", "/usr/sbin/ip", "/bin/ip", "/usr/bin/ip"];
/// Interval of inspections.
const LOOK: Duration = Duration::from_secs(15);
/// Timeout of `ip`.
const PATIENCE: Duration = Duration::from_secs(10);
/// Server port.
pub(super) const PORT: u16 = 67;

/// The private network of this node. It stays when this is dropped.
#[derive(Debug)]
pub struct NatService {
    _task: JoinSet<()>,
}

impl NatService {
    /// Starts the supervisor if the overlay enables the network. `cards` are the NICs of the VMs; `given` receives their addresses.
    pub fn start(
        tree: &Tree,
        cards: watch::Receiver<Vec<Nic>>,
        given: watch::Sender<BTreeMap<MacAddr, Ipv4Addr>>,
    ) -> Self {
        let mut task = JoinSet::new();
        let ip = IP.iter().map(|place| tree.path(place)).find(|place| place.is_file());
        match (settings(tree), ip) {
            (Some(settings), Some(ip)) => {
                task.spawn(NatSupervisor::new(tree.clone(), settings, ip, cards, given).run());
            }
            (Some(_), None) => tracing::error!("there is no `ip` on this node: no private network"),
            (None, _) => {}
        }
        NatService { _task: task }
    }
}

struct NatSupervisor {
    tree: Tree,
    settings: Settings,
    ip: PathBuf,
    cards: watch::Receiver<Vec<Nic>>,
    /// Assigned addresses.
    given: watch::Sender<BTreeMap<MacAddr, Ipv4Addr>>,
    subnet: Option<Subnet>,
    socket: Option<UdpSocket>,
    /// Deviations that were already logged.
    told: Vec<Missing>,
}

impl NatSupervisor {
    fn new(
        tree: Tree,
        settings: Settings,
        ip: PathBuf,
        cards: watch::Receiver<Vec<Nic>>,
        given: watch::Sender<BTreeMap<MacAddr, Ipv4Addr>>,
    ) -> Self {
        NatSupervisor { tree, settings, ip, cards, given, subnet: None, socket: None, told: Vec::new() }
    }

    async fn run(mut self) {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut packet = [0; dhcp::MAX_PACKET];
        loop {
            tokio::select! {
                _ = looks.tick() => self.look().await,
                changed = self.cards.changed() => match changed {
                    Ok(()) => self.reserve(),
                    Err(_) => return,
                },
                length = receive(&self.socket, &mut packet) => self.answer(&packet[..length]).await,
            }
        }
    }

    async fn look(&mut self) {
        let Some(subnet) = drift::choose(&self.tree, &self.settings) else {
            tracing::error!(settings = ?self.settings, "every subnet of the pool overlaps a route: no private network");
            return;
        };
        let missing = ObservedNetwork::look(&self.tree, subnet).missing();
        if !missing.is_empty() && missing != self.told {
            let words: Vec<&str> = missing.iter().map(|missing| missing.as_str()).collect();
            tracing::warn!(%subnet, missing = words.join(", "), "the private network is mended");
        }
        for missing in &missing {
            if let Err(error) = self.mend(*missing, subnet).await {
                tracing::error!(missing = missing.as_str(), %error, "it cannot be mended; tried again soon");
                break;
            }
        }
        if missing.contains(&Missing::Bridge) {
            // The socket was bound to the former bridge.
            self.socket = None;
        }
        self.told = missing;
        self.subnet = Some(subnet);
        self.reserve();
        if self.socket.is_none() {
            self.socket = listen().await.inspect_err(|error| tracing::error!(%error, "no DHCP on {BRIDGE}")).ok();
        }
    }

    async fn mend(&self, missing: Missing, subnet: Subnet) -> io::Result<()> {
        match missing {
            Missing::Bridge => {
                self.ip(&["link", "add", BRIDGE, "type", "bridge"]).await?;
                self.ip(&["link", "set", "dev", BRIDGE, "address", &BRIDGE_MAC.to_string()]).await
            }
            Missing::Address => {
                // An existing address belongs to a former subnet.
                self.ip(&["addr", "flush", "dev", BRIDGE]).await?;
                let address = format!("{}/{}", subnet.gateway(), subnet.bits());
                self.ip(&["addr", "add", &address, "dev", BRIDGE]).await
            }
            Missing::Up => self.ip(&["link", "set", BRIDGE, "up"]).await,
            Missing::Forwarding => std::fs::write(self.tree.path("/proc/sys/net/ipv4/ip_forward"), "1\n"),
            Missing::Masquerade => masquerade::masquerade(subnet.net(), subnet.bits(), BRIDGE),
        }
    }

    async fn ip(&self, args: &[&str]) -> io::Result<()> {
        let mut command = Command::new(&self.ip);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let ended = timeout(PATIENCE, command.output()).await.map_err(|_| io::ErrorKind::TimedOut)??;
        let said = || String::from_utf8_lossy(&ended.stderr).trim().to_owned();
        if ended.status.success() {
            Ok(())
        } else {
            Err(io::Error::other(format!("ip {}: {}", args.join(" "), said())))
        }
    }

    fn reserve(&mut self) {
        let Some(subnet) = self.subnet else { return };
        let cards = self.cards.borrow_and_update().clone();
        let now = reserve(subnet, &cards, &self.given.borrow());
        self.given.send_if_modified(|given| {
            let is_new = *given != now;
            *given = now;
            is_new
        });
    }

    async fn answer(&self, packet: &[u8]) {
        let (Some(socket), Some(subnet)) = (&self.socket, self.subnet) else { return };
        let mut reserved = self.given.borrow().clone();
        reserved.insert(PROBE, subnet.gateway());
        let dns = name_servers(&self.tree.read("/etc/resolv.conf").unwrap_or_default());
        let given = Pool { gateway: subnet.gateway(), mask: subnet.mask(), dns, reserved };
        let Some(answer) = dhcp::answer(packet, &given) else { return };
        if let Err(error) = socket.send_to(&answer.bytes, answer.to).await {
            tracing::warn!(%error, to = %answer.to, "an answer of DHCP did not leave");
        }
    }
}

/// Assigns an address to each NIC on the bridge: the one of its specification, else the former one, else one derived from the MAC address.
/// Addresses outside of the subnet and addresses in use are not assigned.
fn reserve(subnet: Subnet, cards: &[Nic], before: &BTreeMap<MacAddr, Ipv4Addr>) -> BTreeMap<MacAddr, Ipv4Addr> {
    let ours = || cards.iter().filter(|card| card.bridge.as_ref().is_some_and(|bridge| bridge.as_str() == BRIDGE));
    let mut given: BTreeMap<MacAddr, Ipv4Addr> = BTreeMap::new();
    let free = |given: &BTreeMap<MacAddr, Ipv4Addr>, address: Ipv4Addr| {
        subnet.is_free(address) && !given.values().any(|taken| *taken == address)
    };
    let kept: BTreeMap<Ipv4Addr, MacAddr> =
        ours().filter_map(|card| Some((*before.get(&card.mac)?, card.mac))).collect();
    for card in ours() {
        let own = |address: &Ipv4Addr| kept.get(address).is_none_or(|mac| *mac == card.mac);
        match card.address {
            Some(address) if own(&address) && free(&given, address) => drop(given.insert(card.mac, address)),
            Some(address) => tracing::error!(mac = %card.mac, %address, %subnet, "not an address that is free here"),
            None => {}
        }
    }
    for card in ours().filter(|card| card.address.is_none()) {
        let size = !subnet.mask().to_bits();
        let first = card.mac.0.iter().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(*byte)));
        let place = |n: u32| Ipv4Addr::from_bits(subnet.net().to_bits() | first.wrapping_add(n) & size);
        let had = before.get(&card.mac).copied();
        let address = had.into_iter().chain((0..=size).map(place)).find(|address| free(&given, *address));
        given.extend(address.map(|address| (card.mac, address)));
    }
    given
}

/// `nameserver 10.77.0.1`.
pub(super) fn name_servers(text: &str) -> Vec<Ipv4Addr> {
    text.lines().filter_map(|line| line.trim().strip_prefix("nameserver")?.trim().parse().ok()).collect()
}

async fn listen() -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT)).await?;
    socket.bind_device(Some(BRIDGE.as_bytes()))?;
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
