//! Firewall of users: what programs of VMs, tasks and containers may send from this node. Two nftables tables; their output chains match the
//! user of a socket:
//!
//! - `meshd-vm-users`: programs of VMs have no network.
//! - `meshd-task-users`: tasks reach no DHCP, boot or agent service. Their packets have the address and the MAC address of their node, so
//!   that a central node cannot tell them from the node itself. Containers with a network of their own are masqueraded as the node, so a
//!   forward chain denies them the same.
//!
//! Each table is installed before the first program of its users starts, and again before each later one. Root is not filtered.

use super::netlink::{
    CREATE, FAMILY, FORWARD_HOOK, INET, INPUT_NAME, IPV4_FAMILY, NEW_CHAIN, OUTPUT_HOOK, OUTPUT_NAME, PRIORITY,
    PROTOCOL, SOCKET_USER, TCP, UDP, append_rule, attribute, commit,
    expr::{Base, accept, bytes, drop, known_connection, meta, meta_at_least, meta_in, not_meta},
    fingerprints, interface, nested, replace_table, text,
};
use crate::system::{self, Tree, user_ids};
use meshd_proto::task::MIN_UID;
use meshd_types::{Digest, failpoint};
use std::{io, net::Ipv4Addr, path::Path, time::Duration};
use tokio::{
    task::spawn_blocking,
    time::{self, MissedTickBehavior},
};

/// Destination ports of UDP that no task may use: DHCP and DHCPv6 in both directions, TFTP, proxy DHCP.
const BOOT_PORTS: [u16; 6] = [67, 68, 69, 546, 547, 4011];
const DNS: [u8; 2] = [0, 53];
/// Interval of repairs on a running node.
const REPAIR_INTERVAL: Duration = Duration::from_secs(15);

/// The firewall of one kind of users.
#[derive(Clone, Debug)]
pub struct UserFirewall {
    table: &'static str,
    output: Vec<Vec<u8>>,
    /// What the node forwards; no chain if empty.
    forward: Vec<Vec<u8>>,
}

impl UserFirewall {
    /// Programs of VMs have no network.
    pub fn of_vms() -> Self {
        let is_vm = meta_in(SOCKET_USER, &user_ids::VMS.start.to_ne_bytes(), &user_ids::MASK.to_ne_bytes());
        let rules = if failpoint::defends("vm-user-network") { vec![[is_vm, drop()].concat()] } else { Vec::new() };
        UserFirewall { table: "meshd-vm-users", output: rules, forward: Vec::new() }
    }

    /// Users other than those of the system reach no boot service of any network, and of the central node only DNS: meshd does not serve
    /// it.
    pub fn of_tasks(central: Ipv4Addr) -> Self {
        let is_task = || meta_at_least(SOCKET_USER, MIN_UID);
        let to_central = || [meta(FAMILY, &IPV4_FAMILY), bytes(Base::Network, 16, &central.octets())].concat();
        let dns = |protocol: u8| [meta(PROTOCOL, &[protocol]), bytes(Base::Transport, 2, &DNS)].concat();
        let (mut output, mut forward) = (Vec::new(), Vec::new());
        if failpoint::defends("task-network") {
            output.extend(BOOT_PORTS.iter().map(|port| [is_task(), to_port(*port), drop()].concat()));
            output.extend([UDP, TCP].map(|protocol| [is_task(), to_central(), dns(protocol), accept()].concat()));
            output.push([is_task(), to_central(), drop()].concat());
            let uplink = interface(&uplink(central));
            // With br_netfilter, frames between a guest and the network of its bridge pass here too: both names are that of the bridge.
            let is_routed = || not_meta(INPUT_NAME, &uplink);
            let to_uplink = || [is_routed(), meta(OUTPUT_NAME, &uplink)].concat();
            forward.extend(BOOT_PORTS.iter().map(|port| [to_uplink(), to_port(*port), drop()].concat()));
            forward.extend([UDP, TCP].map(|protocol| [is_routed(), to_central(), dns(protocol), accept()].concat()));
            // A container may answer the central node.
            forward.push([is_routed(), to_central(), known_connection(false), drop()].concat());
        }
        UserFirewall { table: "meshd-task-users", output, forward }
    }

    /// The firewalls of a node with this central node.
    pub fn all(central: Ipv4Addr) -> [Self; 2] {
        [UserFirewall::of_vms(), UserFirewall::of_tasks(central)]
    }

    pub fn name(&self) -> &'static str {
        self.table
    }

    /// Installs the firewall unless it is current.
    pub fn ensure(&self) -> Result<(), String> {
        let installed = self.is_current().and_then(|is_current| if is_current { Ok(()) } else { self.install() });
        installed
            .map_err(|error| format!("cannot install the firewall {}: {error}; the kernel needs nf_tables", self.table))
    }

    /// Returns whether the table matches what [`UserFirewall::ensure`] writes.
    pub fn is_current(&self) -> io::Result<bool> {
        let (found, expected) = (fingerprints(INET, self.table, None)?, self.fingerprint());
        Ok(found.len() == self.output.len() + self.forward.len() && found.iter().all(|found| *found == expected))
    }

    fn install(&self) -> io::Result<()> {
        let mut batch = replace_table(INET, self.table).to_vec();
        let fingerprint = self.fingerprint();
        for (chain, hook, rules) in [("output", OUTPUT_HOOK, &self.output), ("forward", FORWARD_HOOK, &self.forward)] {
            if rules.is_empty() {
                continue;
            }
            let hook = [attribute(1, &hook.to_be_bytes()), attribute(2, &PRIORITY.to_be_bytes())].concat();
            let head = [attribute(1, &text(self.table)), attribute(3, &text(chain)), nested(4, &hook)];
            batch.push((INET, NEW_CHAIN, CREATE, [head.concat(), attribute(7, &text("filter"))].concat()));
            batch.extend(rules.iter().map(|rule| append_rule(INET, self.table, chain, rule, &fingerprint)));
        }
        commit(&batch)
    }

    fn fingerprint(&self) -> Vec<u8> {
        text(&Digest::of(&[self.output.concat(), self.forward.concat()].concat()).to_string())
    }
}

/// Matches a packet of UDP to a port.
fn to_port(port: u16) -> Vec<u8> {
    [meta(PROTOCOL, &[UDP]), bytes(Base::Transport, 2, &port.to_be_bytes())].concat()
}

/// Returns the interface of the route to the central node; empty if there is none.
fn uplink(central: Ipv4Addr) -> String {
    let routes = system::routes(&Tree::new(Path::new("/"))).into_iter();
    let matching = routes.filter(|route| central & route.mask == route.destination & route.mask);
    matching.max_by_key(|route| route.mask).map(|route| route.interface).unwrap_or_default()
}

/// Installs both firewalls and repairs them.
pub async fn repair(central: Ipv4Addr) {
    let mut repairs = time::interval(REPAIR_INTERVAL);
    repairs.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut logged = None;
    loop {
        repairs.tick().await;
        let all = move || UserFirewall::all(central).iter().try_for_each(UserFirewall::ensure);
        let error = spawn_blocking(all).await.map_err(|error| error.to_string()).and_then(|result| result).err();
        if let Some(error) = error.as_ref().filter(|_| error != logged) {
            tracing::error!(error, "VMs and tasks are refused; retrying");
        }
        logged = error;
    }
}

#[cfg(test)]
#[path = "user_firewall_tests.rs"]
mod tests;
