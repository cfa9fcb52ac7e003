//! The record outside of meshd: what was acknowledged, and what was asked for without an answer.

use super::{
    Dice,
    client::{Admin, Boot},
};
use meshd_types::{MacAddr, NodeId};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// An order that is given again and again.
#[derive(Clone, Debug)]
struct Ordered<T> {
    acknowledged: Option<T>,
    /// Asked for after that; any of them may have been done.
    unanswered: Vec<T>,
}

impl<T: PartialEq + Clone> Ordered<T> {
    fn ask(&mut self, what: T) {
        self.unanswered.push(what);
    }

    fn acknowledge(&mut self, what: T) {
        self.unanswered.clear();
        self.acknowledged = Some(what);
    }

    fn allows(&self, found: Option<&T>) -> bool {
        self.acknowledged.as_ref() == found
            || found.is_some_and(|found| self.unanswered.contains(found))
    }
}

impl<T> Default for Ordered<T> {
    fn default() -> Self {
        Ordered { acknowledged: None, unanswered: Vec::new() }
    }
}

#[derive(Default)]
struct Known {
    leases: BTreeMap<Ipv4Addr, MacAddr>,
    addresses: BTreeMap<MacAddr, Ipv4Addr>,
    nodes: BTreeSet<NodeId>,
    approved: BTreeSet<NodeId>,
    values: BTreeMap<NodeId, Ordered<u64>>,
    profiles: BTreeMap<NodeId, Ordered<String>>,
    used: Vec<Boot>,
    serials: BTreeSet<String>,
    /// Everything that was ever read of the record of events.
    events: Vec<Value>,
    faults: Vec<String>,
    granted: u64,
    orders: u64,
    refused: u64,
    checks: u64,
}

/// What the outside knows.
#[derive(Default)]
pub struct Record(Mutex<Known>);

impl Record {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn fault(&self, what: String) {
        self.known().faults.push(what);
    }

    pub fn leased(&self, address: Ipv4Addr, mac: MacAddr) {
        let mut known = self.known();
        known.granted += 1;
        if let Some(other) = known.leases.insert(address, mac).filter(|other| *other != mac) {
            known.faults.push(format!("{address} was leased to {other}, and then to {mac}"));
        }
        if let Some(other) = known.addresses.insert(mac, address).filter(|other| *other != address)
        {
            known.faults.push(format!("{mac} had {other}, and was then given {address}"));
        }
    }

    pub fn address_of(&self, mac: MacAddr) -> Option<Ipv4Addr> {
        self.known().addresses.get(&mac).copied()
    }

    pub fn seen(&self, id: NodeId) {
        self.known().nodes.insert(id);
    }

    pub fn approved(&self, id: NodeId) {
        self.known().approved.insert(id);
    }

    pub fn is_approved(&self, id: NodeId) -> bool {
        self.known().approved.contains(&id)
    }

    pub fn some_node(&self, dice: &mut Dice) -> Option<NodeId> {
        let known = self.known();
        let at = dice.below(known.approved.len().max(1) as u64);
        known.approved.iter().nth(usize::try_from(at).unwrap()).copied()
    }

    pub fn will_set(&self, id: NodeId, value: u64) {
        self.known().values.entry(id).or_default().ask(value);
    }

    pub fn set(&self, id: NodeId, value: u64) {
        let mut known = self.known();
        known.orders += 1;
        known.values.entry(id).or_default().acknowledge(value);
    }

    pub fn will_assign(&self, id: NodeId, profile: &str) {
        self.known().profiles.entry(id).or_default().ask(profile.to_owned());
    }

    pub fn assigned(&self, id: NodeId, profile: &str) {
        let mut known = self.known();
        known.orders += 1;
        known.profiles.entry(id).or_default().acknowledge(profile.to_owned());
    }

    pub fn enrolled(&self, boot: &Boot, serial: String) {
        let mut known = self.known();
        known.serials.insert(serial);
        known.used.push(boot.clone());
    }

    pub fn refused(&self) {
        self.known().refused += 1;
    }

    pub fn used_token(&self, dice: &mut Dice) -> Option<Boot> {
        let known = self.known();
        let at = dice.below(known.used.len().max(1) as u64);
        known.used.get(usize::try_from(at).unwrap()).cloned()
    }

    pub fn words(&self) -> String {
        let known = self.known();
        format!(
            "{} addresses granted to {} machines, {} orders, {} certificates, {} thefts refused, {} events; {} checks",
            known.granted,
            known.addresses.len(),
            known.orders,
            known.serials.len(),
            known.refused,
            known.events.len(),
            known.checks
        )
    }

    /// Each part of the load has done something.
    pub fn is_under_way(&self) -> Result<(), String> {
        let known = self.known();
        let is_begun = known.granted > 0 && known.orders > 0 && !known.serials.is_empty();
        drop(known);
        if is_begun { Ok(()) } else { Err(self.words()) }
    }

    /// A harness that does nothing proves nothing.
    pub fn is_busy(&self, kills: u64) -> bool {
        let known = self.known();
        let least = kills / 10;
        let done = [known.granted, known.orders, known.checks];
        done.iter().all(|count| *count >= least) && known.serials.len() as u64 >= kills / 100
    }

    /// Compares everything that was acknowledged before this call with what meshd says now. A meshd
    /// that ends meanwhile is asked again in its next life.
    pub fn check(&self, admin: &Admin) {
        self.no_fault();
        let done = [self.check_nodes(admin), self.check_events(admin)];
        self.known().checks += u64::from(done.iter().all(Result::is_ok));
        self.no_fault();
    }

    fn no_fault(&self) {
        let known = self.known();
        assert!(known.faults.is_empty(), "{}", known.faults.join("\n"));
    }

    fn check_nodes(&self, admin: &Admin) -> std::io::Result<()> {
        let nodes: Vec<NodeId> = self.known().approved.iter().copied().collect();
        for id in nodes {
            let before = {
                let known = self.known();
                (
                    known.values.get(&id).cloned().unwrap_or_default(),
                    known.profiles.get(&id).cloned().unwrap_or_default(),
                )
            };
            let node = admin.json(&format!("/v1/nodes/{id}"))?;
            let value = node["vars"]["mpi_slots"].as_u64();
            let profile = Some(&node["profile"]).filter(|_| node["assigned"] == true);
            let profile = profile.and_then(Value::as_str).map(str::to_owned);
            let mut known = self.known();
            // Orders go on: what is asked for while we look is as good as what was before.
            let later = known.values.get(&id).cloned().unwrap_or_default();
            if !before.0.allows(value.as_ref())
                && !later.allows(value.as_ref())
                && value < before.0.acknowledged
            {
                known.faults.push(format!("{id} has n = {value:?}; {:?}", before.0));
            }
            let later = known.profiles.get(&id).cloned().unwrap_or_default();
            if !before.1.allows(profile.as_ref()) && !later.allows(profile.as_ref()) {
                known
                    .faults
                    .push(format!("{id} has profile {profile:?}; {:?} {later:?}", before.1));
            }
            if node["phase"] == "discovered" || node["phase"] == "rejected" {
                known.faults.push(format!("{id} was approved, and is {}", node["phase"]));
            }
        }
        Ok(())
    }

    /// Events that were read once stay what they are, have no gap, and name each acknowledged
    /// certificate once.
    fn check_events(&self, admin: &Admin) -> std::io::Result<()> {
        let (count, serials) = {
            let known = self.known();
            (known.events.len(), known.serials.clone())
        };
        // Some of those that are known, and all that are new.
        let from = count.saturating_sub(500);
        let after = if from == 0 { String::new() } else { format!("&after={}", from - 1) };
        let text = admin.get(&format!("/v1/events?limit=10000{after}"))?;
        let read = text
            .lines()
            .filter(|line| !line.is_empty())
            .map(|line| serde_json::from_str(line).expect("JSON"));
        let read: Vec<Value> = read.collect();
        let there = from + read.len();
        let mut known = self.known();
        for (at, event) in (from..).zip(read) {
            match known.events.get(at) {
                Some(before) if *before != event => {
                    let what = format!("event {at} was {before}, and is {event}");
                    known.faults.push(what);
                }
                Some(_) => {}
                None if event["seq"] == at => known.events.push(event),
                None => {
                    let what = format!("event {at} is missing before {event}");
                    known.faults.push(what);
                }
            }
        }
        if there < count {
            known.faults.push(format!("there were {count} events, and are {there}"));
        }
        let mut told: BTreeMap<&str, u32> = BTreeMap::new();
        for event in known.events.iter().filter(|event| event["kind"] == "certificate_issued") {
            let serial = event["detail"].as_str().and_then(|detail| detail.strip_prefix("serial "));
            *told.entry(serial.unwrap_or_default()).or_default() += 1;
        }
        let odd = serials.iter().find(|serial| told.get(serial.as_str()) != Some(&1)).cloned();
        if let Some(serial) = odd {
            known
                .faults
                .push(format!("the certificate {serial} was handed out and is not on record once"));
        }
        Ok(())
    }
}
