//! Firewall of users: what programs of VMs and tasks may send from this node. Two nftables tables with an output chain each, which match the
//! user of a socket:
//!
//! - `meshd-vm-users`: programs of VMs have no network.
//! - `meshd-task-users`: tasks reach no DHCP, boot or agent service. Their packets have the address and the MAC address of their node, so
//!   that a central node cannot tell them from the node itself.
//!
//! Each table is installed before the first program of its users starts, and again before each later one. Root is not filtered.

use super::netlink::{
    CREATE, FAMILY, INET, IPV4_FAMILY, NEW_CHAIN, OUTPUT_HOOK, PRIORITY, PROTOCOL, SOCKET_USER, TCP, UDP, append_rule,
    attribute, commit,
    expr::{Base, accept, bytes, drop, meta, meta_at_least, meta_in},
    fingerprints, nested, replace_table, text,
};
use crate::system::user_ids;
use meshd_proto::task::MIN_UID;
use meshd_types::{Digest, failpoint};
use std::{io, net::Ipv4Addr, time::Duration};
use tokio::{
    task::spawn_blocking,
    time::{MissedTickBehavior, interval},
};

const CHAIN: &str = "output";
/// Destination ports of UDP that no task may use: DHCP and DHCPv6 in both directions, TFTP, proxy DHCP.
const BOOT_PORTS: [u16; 6] = [67, 68, 69, 546, 547, 4011];
const DNS: [u8; 2] = [0, 53];
/// Interval of repairs on a running node.
const REPAIR_INTERVAL: Duration = Duration::from_secs(15);

/// The firewall of one kind of users.
#[derive(Clone, Debug)]
pub struct UserFirewall {
    table: &'static str,
    rules: Vec<Vec<u8>>,
}

impl UserFirewall {
    /// Programs of VMs have no network.
    pub fn of_vms() -> Self {
        let is_vm = meta_in(SOCKET_USER, &user_ids::VMS.start.to_ne_bytes(), &user_ids::MASK.to_ne_bytes());
        let rules = if failpoint::defends("vm-user-network") { vec![[is_vm, drop()].concat()] } else { Vec::new() };
        UserFirewall { table: "meshd-vm-users", rules }
    }

    /// Users other than those of the system reach no boot service of any network, and of the central node only DNS: meshd does not serve
    /// it.
    pub fn of_tasks(central: Ipv4Addr) -> Self {
        let is_task = || meta_at_least(SOCKET_USER, MIN_UID);
        let to_port = |port: u16| [meta(PROTOCOL, &[UDP]), bytes(Base::Transport, 2, &port.to_be_bytes())].concat();
        let to_central = || [meta(FAMILY, &IPV4_FAMILY), bytes(Base::Network, 16, &central.octets())].concat();
        let dns = |protocol: u8| [meta(PROTOCOL, &[protocol]), bytes(Base::Transport, 2, &DNS)].concat();
        let mut rules = Vec::new();
        if failpoint::defends("task-network") {
            rules.extend(BOOT_PORTS.iter().map(|port| [is_task(), to_port(*port), drop()].concat()));
            rules.extend([UDP, TCP].map(|protocol| [is_task(), to_central(), dns(protocol), accept()].concat()));
            rules.push([is_task(), to_central(), drop()].concat());
        }
        UserFirewall { table: "meshd-task-users", rules }
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
        let (found, expected) = (fingerprints(INET, self.table, Some(CHAIN))?, self.fingerprint());
        Ok(found.len() == self.rules.len() && found.iter().all(|found| *found == expected))
    }

    fn install(&self) -> io::Result<()> {
        let hook = [attribute(1, &OUTPUT_HOOK.to_be_bytes()), attribute(2, &PRIORITY.to_be_bytes())].concat();
        let chain = [
            attribute(1, &text(self.table)),
            attribute(3, &text(CHAIN)),
            nested(4, &hook),
            attribute(7, &text("filter")),
        ];
        let mut batch = replace_table(INET, self.table).to_vec();
        batch.push((INET, NEW_CHAIN, CREATE, chain.concat()));
        let fingerprint = self.fingerprint();
        batch.extend(self.rules.iter().map(|rule| append_rule(INET, self.table, CHAIN, rule, &fingerprint)));
        commit(&batch)
    }

    fn fingerprint(&self) -> Vec<u8> {
        text(&Digest::of(&self.rules.concat()).to_string())
    }
}

/// Installs both firewalls and repairs them.
pub async fn repair(central: Ipv4Addr) {
    let mut repairs = interval(REPAIR_INTERVAL);
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
