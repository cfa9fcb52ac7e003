//! Firewall of users: what programs of VMs, tasks and containers may send from this node. Two
//! nftables tables; their output chains match the user of a socket:
//!
//! - `meshd-vm-users`: programs of VMs have no network.
//! - `meshd-task-users`: tasks reach no DHCP, boot or agent service. Their packets have the address
//!   and the MAC address of their node, so that a central node cannot tell them from the node
//!   itself. Containers with a network of their own are masqueraded as the node, so a forward chain
//!   denies them the same.
//!
//! Each table is installed before the first program of its users starts, and again before each
//! later one. Root is not filtered.

use super::nftables::{
    CREATE, FAMILY, FORWARD_HOOK, INET, INPUT_NAME, IPV4_FAMILY, NEW_CHAIN, OUTPUT_HOOK,
    OUTPUT_NAME, PRIORITY, PROTOCOL, SOCKET_USER, TCP, UDP, append_rule, attribute, commit,
    expr::{Base, bytes, drop, known_connection, meta, meta_at_least, meta_in, not_meta},
    fingerprints, interface, nested, replace_table, text,
};
use crate::system::{self, Tree, user_ids};
use meshd_proto::{AgentConfig, BootPart, task::MIN_UID};
use meshd_types::{Digest, failpoint};
use std::{
    io,
    net::Ipv4Addr,
    path::Path,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    task::spawn_blocking,
    time::{self, MissedTickBehavior},
};

/// Destination ports of UDP that no task may use: DHCP and DHCPv6 in both directions, TFTP, proxy
/// DHCP.
const BOOT_PORTS: [u16; 6] = [67, 68, 69, 546, 547, 4011];
/// Interval of repairs on a running node.
const REPAIR_INTERVAL: Duration = Duration::from_secs(15);

/// The boot and agent services of the central node.
#[derive(Clone, Copy, Debug)]
pub struct CentralServices {
    pub address: Ipv4Addr,
    /// TCP ports of the boot HTTP server and the agent API.
    pub ports: [u16; 2],
}

impl CentralServices {
    pub fn new(config: &AgentConfig, boot: &BootPart) -> Self {
        CentralServices { address: config.central, ports: [boot.http_port, config.port] }
    }
}

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
        let is_vm =
            meta_in(SOCKET_USER, &user_ids::VMS.start.to_ne_bytes(), &user_ids::MASK.to_ne_bytes());
        let rules = if failpoint::defends("vm-user-network") {
            vec![[is_vm, drop()].concat()]
        } else {
            Vec::new()
        };
        UserFirewall { table: "meshd-vm-users", output: rules, forward: Vec::new() }
    }

    /// Users other than those of the system reach no DHCP and TFTP server of any network, and no
    /// boot or agent service of the central node.
    pub fn of_tasks(central: CentralServices) -> Self {
        let is_task = || meta_at_least(SOCKET_USER, MIN_UID);
        let mut output = Vec::new();
        let mut forward = Vec::new();
        if failpoint::defends("task-network") {
            output
                .extend(BOOT_PORTS.iter().map(|port| [is_task(), to_port(*port), drop()].concat()));
            let uplink = interface(&uplink(central.address));
            // With br_netfilter, frames between a guest and the network of its bridge pass here
            // too: both names are that of the bridge.
            let is_routed = || not_meta(INPUT_NAME, &uplink);
            let to_uplink = || [is_routed(), meta(OUTPUT_NAME, &uplink)].concat();
            forward.extend(
                BOOT_PORTS.iter().map(|port| [to_uplink(), to_port(*port), drop()].concat()),
            );
            for (to_services, verdict) in services(central) {
                output.push([is_task(), to_services.clone(), verdict.clone()].concat());
                // A container may answer the central node.
                forward.push([is_routed(), to_services, known_connection(false), verdict].concat());
            }
        }
        UserFirewall { table: "meshd-task-users", output, forward }
    }

    /// The firewalls of a node with this central node.
    pub fn all(central: CentralServices) -> [Self; 2] {
        [UserFirewall::of_vms(), UserFirewall::of_tasks(central)]
    }

    /// Installs the firewall unless it is current.
    pub fn ensure(&self) -> Result<(), String> {
        let _changing = lock_tables();
        self.replace_if_changed()
    }

    fn replace_if_changed(&self) -> Result<(), String> {
        let installed = self
            .is_current()
            .and_then(|is_current| if is_current { Ok(()) } else { self.install() });
        installed.map_err(|error| {
            format!(
                "cannot install the firewall {}: {error}; the kernel needs nf_tables",
                self.table
            )
        })
    }

    /// Returns whether the table matches what [`UserFirewall::ensure`] writes.
    fn is_current(&self) -> io::Result<bool> {
        let found = fingerprints(INET, self.table, None)?;
        let expected = self.fingerprint();
        Ok(found.len() == self.output.len() + self.forward.len()
            && found.iter().all(|found| *found == expected))
    }

    fn install(&self) -> io::Result<()> {
        let mut batch = replace_table(INET, self.table).to_vec();
        let fingerprint = self.fingerprint();
        for (chain, hook, rules) in
            [("output", OUTPUT_HOOK, &self.output), ("forward", FORWARD_HOOK, &self.forward)]
        {
            if rules.is_empty() {
                continue;
            }
            let hook =
                [attribute(1, &hook.to_be_bytes()), attribute(2, &PRIORITY.to_be_bytes())].concat();
            let head =
                [attribute(1, &text(self.table)), attribute(3, &text(chain)), nested(4, &hook)];
            batch.push((
                INET,
                NEW_CHAIN,
                CREATE,
                [head.concat(), attribute(7, &text("filter"))].concat(),
            ));
            batch.extend(
                rules.iter().map(|rule| append_rule(INET, self.table, chain, rule, &fingerprint)),
            );
        }
        commit(&batch)
    }

    fn fingerprint(&self) -> Vec<u8> {
        text(&Digest::of(&[self.output.concat(), self.forward.concat()].concat()).to_string())
    }
}

/// Held while tables are compared and replaced, so that a check at the start of the agent waits for
/// the first installation.
static TABLES: Mutex<()> = Mutex::new(());

fn lock_tables() -> MutexGuard<'static, ()> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Installs both firewalls unless they are current.
fn ensure_all(central: CentralServices) -> Result<(), String> {
    let _changing = lock_tables();
    UserFirewall::all(central).iter().try_for_each(UserFirewall::replace_if_changed)
}

/// Returns the names of firewalls that are missing or changed.
pub fn missing(central: CentralServices) -> io::Result<Vec<&'static str>> {
    let _unchanged = lock_tables();
    let mut missing = Vec::new();
    for firewall in UserFirewall::all(central) {
        if !firewall.is_current()? {
            missing.push(firewall.table);
        }
    }
    Ok(missing)
}

/// Matches a packet of UDP to a port.
fn to_port(port: u16) -> Vec<u8> {
    to_port_of(UDP, port)
}

fn to_port_of(protocol: u8, port: u16) -> Vec<u8> {
    [meta(PROTOCOL, &[protocol]), bytes(Base::Transport, 2, &port.to_be_bytes())].concat()
}

/// Returns what happens to packets to the central node, as match and verdict.
fn services(central: CentralServices) -> Vec<(Vec<u8>, Vec<u8>)> {
    let to_central =
        [meta(FAMILY, &IPV4_FAMILY), bytes(Base::Network, 16, &central.address.octets())].concat();
    central
        .ports
        .map(|port| ([to_central.clone(), to_port_of(TCP, port)].concat(), drop()))
        .to_vec()
}

/// Returns the interface of the route to the central node; empty if there is none.
fn uplink(central: Ipv4Addr) -> String {
    let routes = system::routes(&Tree::new(Path::new("/"))).into_iter();
    let matching = routes.filter(|route| central & route.mask == route.destination & route.mask);
    matching.max_by_key(|route| route.mask).map(|route| route.interface).unwrap_or_default()
}

/// Installs both firewalls and repairs them.
pub async fn repair(central: CentralServices) {
    let mut repairs = time::interval(REPAIR_INTERVAL);
    repairs.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut logged = None;
    loop {
        repairs.tick().await;
        let error = spawn_blocking(move || ensure_all(central))
            .await
            .map_err(|error| error.to_string())
            .and_then(|result| result)
            .err();
        if let Some(error) = error.as_ref().filter(|_| error != logged) {
            tracing::error!(error, "VMs and tasks are refused; retrying");
        }
        logged = error;
    }
}

#[cfg(test)]
#[path = "user_tests.rs"]
mod tests;
