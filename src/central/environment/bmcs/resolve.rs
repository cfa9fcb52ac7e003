//! The BMC of a machine, by its record and the rules of the site.

use super::{
    BmcError,
    passwords::{password_of, trust_of},
};
use meshd_bmc::{
    Bmc, BroadcastDomain, CommandLine, Login, Machine, has_serial_console, parse_address,
};
use meshd_config::{BmcRule, Link, Segment, Site};
use meshd_model::fleet::{ExpectedMachine, Node};
use meshd_store::Model;
use meshd_types::{
    BmcDriver, Hostlist, MacAddr, NodeId, NodePattern, PowerLadder, Timestamp, matches_glob,
};
use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

/// Cipher suites of IPMI 2.0 without integrity of messages (specification 2.0, table 22-20).
const SUITES_WITHOUT_INTEGRITY: [u8; 4] = [0, 1, 6, 15];

/// A machine that may have a BMC.
#[derive(Clone, Debug)]
pub(crate) struct BmcOwner {
    /// `None` before its first boot.
    pub(crate) node: Option<NodeId>,
    pub(crate) name: String,
    pub(crate) mac: MacAddr,
    driver: Option<BmcDriver>,
    address: Option<String>,
    leased: Option<LeasedBmc>,
}

/// A BMC that is known by its MAC address.
#[derive(Clone, Debug)]
struct LeasedBmc {
    mac: MacAddr,
    /// Address and expiry of each lease.
    leases: Vec<(Ipv4Addr, Timestamp)>,
}

impl LeasedBmc {
    fn new(model: &Model, machine: &ExpectedMachine) -> Option<Self> {
        let mac = machine.bmc_mac?;
        let leases = model.leases_of_mac(mac).filter(|lease| lease.vm.is_none());
        Some(LeasedBmc { mac, leases: leases.map(|it| (it.address, it.expires_at)).collect() })
    }

    /// Returns the address of the current lease. A client in another network of the site can take
    /// a lease for the same MAC address, so leases in several networks give none.
    fn address(
        &self,
        segments: &[Segment],
        machine: &str,
        now: Timestamp,
    ) -> Result<Ipv4Addr, BmcError> {
        let machine = machine.to_owned();
        let mac = self.mac;
        let mut current = self.leases.iter().filter(|(_, expires_at)| *expires_at > now);
        let newest = current.clone().max_by_key(|(_, expires_at)| *expires_at);
        let Some((one, _)) = newest.copied() else {
            return Err(BmcError::NoLease { machine, mac });
        };
        let is_elsewhere = |other: Ipv4Addr| {
            let mut subnets = segments.iter().filter_map(|it| it.subnet.as_ref());
            other != one && !subnets.any(|it| it.contains(one) && it.contains(other))
        };
        match current.find(|(other, _)| is_elsewhere(*other)) {
            Some((other, _)) => Err(BmcError::SeveralLeases { machine, mac, one, other: *other }),
            None => Ok(one),
        }
    }
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
            leased: record.and_then(|record| LeasedBmc::new(model, record)),
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
            leased: LeasedBmc::new(model, machine),
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

/// Returns the address of the BMC in the record of a machine, also that of a lease that has ended.
pub(crate) fn recorded_address(model: &Model, machine: &ExpectedMachine) -> Option<String> {
    let leased = || Some(model.lease_of_mac(machine.bmc_mac?)?.address.to_string());
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

/// Returns the first rule that matches a machine.
fn rule_of<'a>(site: &'a Site, owner: &BmcOwner) -> Option<&'a BmcRule> {
    site.power.rules.iter().find(|rule| owner.matches(rule))
}

/// Returns the driver for the BMC of a machine, also of a BMC without an address.
pub(crate) fn driver_of(site: &Site, owner: &BmcOwner) -> Option<BmcDriver> {
    owner.driver.or_else(|| rule_of(site, owner).map(|rule| rule.driver))
}

/// Returns the ladder of orders to the BMC of a machine, also of a BMC without an address.
pub(crate) fn ladder_of(site: &Site, owner: &BmcOwner) -> PowerLadder {
    rule_of(site, owner).map(|rule| rule.ladder).unwrap_or_default()
}

/// Finds the BMC of a machine. Driver and address of its record precede those of the first rule
/// that matches the machine.
pub(crate) fn resolve(
    site: &Site,
    owner: &BmcOwner,
    now: Timestamp,
) -> Result<ResolvedBmc, BmcError> {
    let machine = title(&owner.name, owner.node);
    let rule = rule_of(site, owner);
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
    let address = match &owner.leased {
        // Its packet goes to every segment.
        Some(_) if driver == BmcDriver::Wol => None,
        Some(bmc) => Some(bmc.address(&site.segments, &machine, now)?.to_string()),
        None => owner.address.clone().or_else(|| pattern.map(|text| fill(text, owner))),
    };
    if owner.leased.is_some() && driver == BmcDriver::Ipmi {
        // Whoever has the address by its own word could offer a suite without authentication, and
        // whoever is between could change the messages of a suite without integrity.
        match rule.and_then(|rule| rule.cipher_suite) {
            None => return Err(BmcError::NoCipherSuite { machine }),
            Some(suite) if SUITES_WITHOUT_INTEGRITY.contains(&suite) => {
                return Err(BmcError::WeakCipherSuite { machine, suite });
            }
            Some(_) => {}
        }
    }
    let address = match address {
        Some(address) => address,
        None if is_network => return Err(BmcError::NoAddress { machine, driver }),
        None => String::new(),
    };
    if is_network && parse_address(server_of(&address)).is_none() {
        return Err(BmcError::InvalidAddress { machine, address });
    }
    let key = match (NetworkKey::parse(driver, &address), &owner.leased) {
        // Its address changes, and the account that it may lock does not.
        (_, Some(bmc)) => bmc.mac.to_string(),
        // Systems and protocols of one BMC share its processor, and the account that it may lock.
        (Some(key), None) => key.server(),
        // A program may switch several machines at one address.
        (None, None) => format!("{driver} {address} {}", owner.mac),
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

/// Returns the host of an address, in one spelling.
pub(crate) fn host_of(address: &str) -> Option<String> {
    Some(one_spelling(parse_address(server_of(address))?.host))
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
        let has_host = host_of(&address).is_some_and(|host| host == key.host);
        if !has_host || is_own(machine.mac) {
            return false;
        }
        let driver = driver_of(site, &BmcOwner::of_machine(model, machine));
        let driver = driver.unwrap_or(bmc.driver);
        NetworkKey::parse(driver, &address).is_some_and(|other| key.is_shared(&other))
    };
    model.expected_machines().find(is_shared).map(ExpectedMachine::title)
}

fn broadcast_domains(site: &Site) -> Vec<BroadcastDomain> {
    let domain = |segment: &Segment| match &segment.link {
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
    fn leased_bmc_has_an_address_by_current_leases_in_one_network_only() {
        let [one, other] = [Ipv4Addr::new(10, 77, 0, 20), Ipv4Addr::new(10, 78, 0, 20)];
        let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
        let bmc = LeasedBmc { mac: MacAddr([2; 6]), leases: vec![(one, at(50)), (other, at(60))] };
        let error = bmc.address(&[], "gpu001", at(10)).unwrap_err().to_string();
        assert!(error.contains("10.77.0.20") && error.contains("10.78.0.20"), "{error}");
        assert_eq!(bmc.address(&[], "gpu001", at(55)), Ok(other));
        let error = bmc.address(&[], "gpu001", at(60)).unwrap_err();
        assert!(matches!(error, BmcError::NoLease { .. }), "{error}");
    }

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
