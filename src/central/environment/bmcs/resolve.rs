//! The BMC of a machine, by its record and the rules of the site.

use super::{
    BmcError,
    passwords::{password_of, trust_of},
};
use meshd_bmc::{
    Bmc, BroadcastDomain, CommandLine, Login, Machine, has_serial_console, parse_address,
};
use meshd_config::{BmcRule, Link, Site};
use meshd_model::fleet::{ExpectedMachine, Node};
use meshd_store::Model;
use meshd_types::{BmcDriver, Hostlist, MacAddr, NodeId, NodePattern, PowerLadder, matches_glob};
use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

/// A machine that may have a BMC.
#[derive(Clone, Debug)]
pub(crate) struct BmcOwner {
    /// `None` before its first boot.
    pub(crate) node: Option<NodeId>,
    pub(crate) name: String,
    pub(crate) mac: MacAddr,
    driver: Option<BmcDriver>,
    address: Option<String>,
    /// MAC address of the BMC, and the address of its lease.
    leased: Option<(MacAddr, Option<Ipv4Addr>)>,
}

impl BmcOwner {
    /// A node, with the BMC of its record of an expected machine.
    pub(crate) fn of_node(model: &Model, node: &Node) -> Self {
        let record = node.seen_nics().find_map(|mac| {
            model.expected_machine(*mac).filter(|it| {
                it.bmc_driver.is_some() || it.bmc_address.is_some() || it.bmc_mac.is_some()
            })
        });
        BmcOwner {
            node: Some(node.id),
            name: node.name.clone(),
            mac: node.mac,
            driver: record.and_then(|record| record.bmc_driver),
            address: record.and_then(|record| record.bmc_address.clone()),
            leased: record.and_then(|record| leased(model, record)),
        }
    }

    /// A machine that has not booted.
    pub(crate) fn of_machine(model: &Model, machine: &ExpectedMachine) -> Self {
        BmcOwner {
            node: None,
            name: machine.title(),
            mac: machine.mac,
            driver: machine.bmc_driver,
            address: machine.bmc_address.clone(),
            leased: leased(model, machine),
        }
    }

    /// Whether a rule is for this machine.
    fn matches(&self, rule: &BmcRule) -> bool {
        let is_named = rule.nodes.is_empty() || rule.nodes.iter().any(|names| self.is_in(names));
        is_named && self.driver.is_none_or(|driver| driver == rule.driver)
    }

    fn is_in(&self, names: &Hostlist) -> bool {
        let id = self.node.map(|node| node.to_string());
        names.patterns().iter().any(|pattern| match pattern {
            NodePattern::Glob(glob) => matches_glob(glob, &self.name),
            NodePattern::Word(word) | NodePattern::Name(word) => {
                *word == self.name || id.as_ref() == Some(word)
            }
        })
    }
}

/// Returns the MAC address of a machine's BMC, and the address of its lease. A lease that has ended
/// has the address until another client needs it.
fn leased(model: &Model, machine: &ExpectedMachine) -> Option<(MacAddr, Option<Ipv4Addr>)> {
    let mac = machine.bmc_mac?;
    Some((mac, model.lease_of_mac(mac).map(|lease| lease.address)))
}

/// Returns the address of the BMC in the record of a machine.
pub(crate) fn recorded_address(model: &Model, machine: &ExpectedMachine) -> Option<String> {
    let leased = || Some(leased(model, machine)?.1?.to_string());
    machine.bmc_address.clone().or_else(leased)
}

/// The BMC of a machine, without its password.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedBmc {
    /// Identifies the server: requests with the same key are sent one after another.
    pub(crate) key: String,
    pub(crate) driver: BmcDriver,
    pub(crate) address: String,
    machine: Machine,
    rule: Option<BmcRule>,
    broadcast_domains: Vec<BroadcastDomain>,
}

impl ResolvedBmc {
    pub(crate) fn title(&self) -> String {
        title(&self.machine.name, self.machine.node)
    }

    /// Returns the ladder of orders to the BMC.
    pub(crate) fn ladder(&self) -> PowerLadder {
        self.rule.as_ref().map(|rule| rule.ladder).unwrap_or_default()
    }

    /// Whether meshd records the serial console of the machine while it boots.
    pub(crate) fn records_console(&self) -> bool {
        let is_wanted = self.rule.as_ref().is_some_and(|rule| rule.records_console);
        is_wanted && has_serial_console(self.driver)
    }

    /// Returns the BMC with its password.
    pub(crate) async fn with_password(&self, timeout: Duration) -> Result<Bmc, BmcError> {
        let this = self.clone();
        let read = tokio::task::spawn_blocking(move || this.complete(timeout));
        // The only other end is a panic, which the task has logged.
        read.await.unwrap_or_else(|_| Err(BmcError::Unknown { machine: self.machine.name.clone() }))
    }

    /// Checks that the password can be read. Blocks.
    pub(crate) fn check_password(&self) -> Result<(), BmcError> {
        let Some(rule) = &self.rule else { return Ok(()) };
        password_of(rule).and_then(|_| trust_of(rule)).map(drop)
    }

    fn complete(self, timeout: Duration) -> Result<Bmc, BmcError> {
        let rule = self.rule.as_ref();
        let password = rule.map_or(Ok(None), password_of)?;
        let user = rule.and_then(|rule| rule.login.as_ref()).map(|login| login.user.clone());
        let command = rule.and_then(|rule| rule.command.clone());
        Ok(Bmc {
            driver: self.driver,
            address: self.address,
            login: user.zip(password).map(|(user, password)| Login { user, password }),
            machine: self.machine,
            command: command.map(|line| CommandLine { program: line.program, args: line.args }),
            trust: rule.map(trust_of).transpose()?.flatten(),
            cipher_suite: rule.and_then(|rule| rule.cipher_suite),
            broadcast_domains: self.broadcast_domains,
            timeout,
        })
    }
}

fn title(name: &str, node: Option<NodeId>) -> String {
    node.map_or_else(|| name.to_owned(), |node| format!("{name} ({node})"))
}

/// Finds the BMC of a machine. Driver and address of its record precede those of the first rule
/// that matches the machine.
pub(crate) fn resolve(site: &Site, owner: &BmcOwner) -> Result<ResolvedBmc, BmcError> {
    let machine = title(&owner.name, owner.node);
    let rule = site.power.rules.iter().find(|rule| owner.matches(rule));
    let Some(driver) = owner.driver.or(rule.map(|rule| rule.driver)) else {
        return Err(BmcError::Unknown { machine });
    };
    let missing = match driver {
        BmcDriver::Redfish | BmcDriver::Ipmi => "user and password",
        BmcDriver::Command => "program",
        BmcDriver::Wol => "",
    };
    if rule.is_none() && !missing.is_empty() {
        return Err(BmcError::NoRule { machine, driver, missing });
    }
    let pattern = rule.and_then(|rule| rule.address.as_ref());
    let is_network = matches!(driver, BmcDriver::Redfish | BmcDriver::Ipmi);
    let address = match owner.leased {
        Some((mac, None)) if is_network => return Err(BmcError::NoLease { machine, mac }),
        // Whoever has the address by its own word could offer a suite without authentication.
        Some(_) if driver == BmcDriver::Ipmi && rule.is_none_or(|it| it.cipher_suite.is_none()) => {
            return Err(BmcError::NoCipherSuite { machine });
        }
        Some((_, address)) => address.map(|address| address.to_string()),
        None => owner.address.clone().or_else(|| pattern.map(|text| fill(text, owner))),
    };
    let address = match address {
        Some(address) => address,
        None if is_network => return Err(BmcError::NoAddress { machine, driver }),
        None => String::new(),
    };
    if is_network && parse_address(server_of(&address)).is_none() {
        return Err(BmcError::InvalidAddress { machine, address });
    }
    let key = match (NetworkKey::parse(driver, &address), owner.leased) {
        // Its address changes, and the account that it may lock does not.
        (Some(_), Some((mac, _))) => mac.to_string(),
        // Systems and protocols of one BMC share its processor, and the account that it may lock.
        (Some(key), None) => key.server(),
        // A program may switch several machines at one address.
        (None, _) => format!("{driver} {address} {}", owner.mac),
    };
    Ok(ResolvedBmc {
        key,
        driver,
        address,
        machine: Machine { node: owner.node, name: owner.name.clone(), mac: owner.mac },
        rule: rule.cloned(),
        broadcast_domains: broadcast_domains(site),
    })
}

/// Returns host and port of an address, which may be a URL of a Redfish system.
fn server_of(address: &str) -> &str {
    let rest = address.strip_prefix("https://").unwrap_or(address);
    rest.split('/').next().unwrap_or(rest)
}

/// Replaces the placeholders of an address.
fn fill(pattern: &str, owner: &BmcOwner) -> String {
    let id = owner.node.map(|node| node.to_string()).unwrap_or_default();
    pattern
        .replace("{name}", &owner.name)
        .replace("{id}", &id)
        .replace("{mac}", &owner.mac.to_string().replace(':', "-"))
}

/// Host, port and path of a BMC on the network, in one spelling. IPMI and Redfish of one BMC have
/// the same host, so a default port is none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NetworkKey {
    host: String,
    port: Option<u16>,
    /// Path of a system; empty for the only one of the BMC.
    path: String,
}

impl NetworkKey {
    pub(crate) fn parse(driver: BmcDriver, address: &str) -> Option<Self> {
        let server = parse_address(server_of(address))?;
        let default = match driver {
            BmcDriver::Redfish => 443,
            BmcDriver::Ipmi => 623,
            BmcDriver::Wol | BmcDriver::Command => return None,
        };
        let host = one_spelling(server.host);
        let port = server.port.filter(|port| *port != default);
        let rest = address.strip_prefix("https://").unwrap_or(address);
        let path = rest.split_once('/').map_or("", |(_, path)| path.trim_end_matches('/'));
        Some(NetworkKey { host, port, path: path.to_owned() })
    }

    /// Returns host and port as text.
    pub(crate) fn server(&self) -> String {
        format!("{} {}", self.host, self.port.unwrap_or_default())
    }

    /// Whether both may be the BMC of one machine. A BMC with several systems has a path for each.
    pub(crate) fn is_shared(&self, other: &Self) -> bool {
        let is_one_system =
            self.path == other.path || self.path.is_empty() || other.path.is_empty();
        self.host == other.host && self.port == other.port && is_one_system
    }
}

/// Returns the one spelling of a host name or an address.
fn one_spelling(mut host: String) -> String {
    host.make_ascii_lowercase();
    match host.parse::<IpAddr>() {
        Ok(address) => address.to_string(),
        Err(_) => host,
    }
}

/// Returns another machine on record with the same BMC.
pub(crate) fn shared_with(model: &Model, site: &Site, bmc: &ResolvedBmc) -> Option<String> {
    let key = NetworkKey::parse(bmc.driver, &bmc.address)?;
    let own = bmc.machine.node.and_then(|id| model.node(id));
    let is_own = |mac: MacAddr| {
        mac == bmc.machine.mac || own.is_some_and(|node| node.seen_nics().any(|nic| *nic == mac))
    };
    let is_shared = |machine: &&ExpectedMachine| {
        let Some(address) = recorded_address(model, machine) else { return false };
        // Few machines have the host. The driver of one may be that of a rule.
        let server = parse_address(server_of(&address));
        let has_host = server.is_some_and(|server| one_spelling(server.host) == key.host);
        if !has_host || is_own(machine.mac) {
            return false;
        }
        let of_rule =
            || resolve(site, &BmcOwner::of_machine(model, machine)).ok().map(|it| it.driver);
        let driver = machine.bmc_driver.or_else(of_rule).unwrap_or(bmc.driver);
        NetworkKey::parse(driver, &address).is_some_and(|other| key.is_shared(&other))
    };
    model.expected_machines().find(is_shared).map(ExpectedMachine::title)
}

fn broadcast_domains(site: &Site) -> Vec<BroadcastDomain> {
    let domain = |segment: &meshd_config::Segment| match &segment.link {
        Link::Interface(name) => {
            Some(BroadcastDomain { interface: Some(name.clone()), broadcast: Ipv4Addr::BROADCAST })
        }
        Link::Relay(_) => {
            let broadcast = segment.subnet.as_ref()?.broadcast();
            Some(BroadcastDomain { interface: None, broadcast })
        }
    };
    site.segments.iter().filter_map(domain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bmc_has_one_key_in_every_spelling() {
        let key = |driver, address| NetworkKey::parse(driver, address).unwrap();
        let ipmi = BmcDriver::Ipmi;
        let redfish = BmcDriver::Redfish;
        for (driver, address) in [
            (ipmi, "BMC-1"),
            (ipmi, "bmc-1:623"),
            (redfish, "bmc-1:443"),
            (redfish, "https://bmc-1/redfish/v1/Systems/1"),
        ] {
            assert!(key(ipmi, "bmc-1").is_shared(&key(driver, address)), "{address}");
        }
        assert!(key(ipmi, "fd00:0::7").is_shared(&key(redfish, "[fd00::7]:443")));
        for (one, other) in [
            ("bmc-1", "bmc-2"),
            ("bmc-1:6230", "bmc-1:6231"),
            ("bmc-1/redfish/v1/Systems/1", "bmc-1/redfish/v1/Systems/2"),
        ] {
            assert!(!key(redfish, one).is_shared(&key(redfish, other)), "{one} {other}");
        }
    }
}
