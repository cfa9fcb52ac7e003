//! Expected machines: import, removal, reads.

use super::{NodeOps, operations::BATCH};
use crate::{
    enrolment::expected::adopt_expected,
    environment::{
        bmcs::{BmcOwner, NetworkKey, driver_of, recorded_address},
        site_snapshot::SiteSnapshot,
    },
};
use meshd_config::suggest;
use meshd_model::fleet::{
    AuditContext, Event, EventKind, ExpectedMachine, LocatedMachine, MAX_EXPECTED_MACHINES,
    MachineRow, Node, Phase, Principal, RowFault, parse_rows,
};
use meshd_store::{Model, StoreError, Tx};
use meshd_types::{MacAddr, ProfileName, Timestamp};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
};

/// How rows are imported.
#[derive(Clone, Copy, Debug, Default)]
pub struct ImportOptions {
    /// The machines are approved when they appear.
    pub approve: bool,
    /// Only checks the rows.
    pub dry_run: bool,
}

/// The result of an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportReport {
    pub added: usize,
    pub changed: usize,
    pub unchanged: usize,
    /// Empty, or the list is not imported as a whole. Faults of the check change nothing; after a
    /// later fault, the numbers are those of the machines that are stored.
    pub faults: Vec<RowFault>,
}

impl ImportReport {
    fn add(&mut self, other: ImportReport) {
        self.added += other.added;
        self.changed += other.changed;
        self.unchanged += other.unchanged;
        self.faults.extend(other.faults);
    }
}

impl NodeOps {
    /// Returns the expected machines, by MAC address, also those that have appeared.
    pub fn expected_machines(&self) -> Vec<ExpectedMachine> {
        self.env.store.read(|model| model.expected_machines().cloned().collect())
    }

    /// Imports machines: none of the rows if one has a fault. The rows are stored in batches of
    /// [`BATCH`]. If another order takes a name or an address meanwhile, the batches before it stay,
    /// and the report names the fault. A repeated import completes the list.
    pub async fn import_machines(
        self: &Arc<Self>,
        rows: &[MachineRow],
        options: ImportOptions,
        audit: &AuditContext,
    ) -> Result<ImportReport, StoreError> {
        let now = self.env.now();
        let snapshot = self.env.snapshot();
        let (mut machines, mut faults) = parse_rows(rows, now);
        for (_, machine) in &mut machines {
            machine.approved = options.approve;
        }
        let checked = self.env.store.read(|model| {
            faults.extend(Conflicts::new(model, &snapshot, &machines).faults());
            count_changes(model, &machines)
        });
        if !faults.is_empty() {
            faults.sort();
            return Ok(ImportReport { faults, ..ImportReport::default() });
        }
        if options.dry_run {
            return Ok(checked);
        }
        let mut report = ImportReport::default();
        let mut admitted = false;
        for batch in machines.chunks(BATCH) {
            let stored = self.env.store.commit(|tx| {
                // Another order may have taken a name or an address since the check.
                let faults = Conflicts::new(tx.before(), &snapshot, &machines).faults_of(batch);
                if !faults.is_empty() {
                    return Ok(ImportReport { faults, ..ImportReport::default() });
                }
                let counts = count_changes(tx.before(), batch);
                admitted |= self.store_batch(tx, batch, audit, now);
                Ok::<_, StoreError>(counts)
            });
            report.add(stored.await?);
            if !report.faults.is_empty() {
                break;
            }
        }
        if admitted {
            self.enrolment.notify_decision();
        }
        if report.added + report.changed > 0 {
            self.generations.scan_all();
        }
        Ok(report)
    }

    /// Stores a batch in a transaction. Returns true if a waiting machine is approved.
    fn store_batch(
        &self,
        tx: &mut Tx<'_>,
        batch: &[LocatedMachine],
        audit: &AuditContext,
        now: Timestamp,
    ) -> bool {
        let mut changed = Vec::new();
        let mut admitted = false;
        for (_, machine) in batch {
            let before = tx.expected_machine(machine.mac).cloned();
            let machine = merged(machine, before.as_ref());
            if before.as_ref() == Some(&machine) {
                continue;
            }
            changed.push(machine.title());
            let mac = machine.mac;
            tx.put_expected_machine(machine);
            // The machine may wait for approval already.
            let known = tx.before().node_of_mac(mac).map(|node| node.id);
            if let Some(mut node) = known.and_then(|id| tx.node(id).cloned()) {
                let waits = node.phase == Phase::Discovered;
                let as_caller = |_: Principal| audit.clone();
                adopt_expected(tx, &mut node, mac, &as_caller, now);
                admitted |= waits && node.phase != Phase::Discovered;
                tx.put_node(node);
            }
        }
        if let [first, rest @ ..] = changed.as_slice() {
            let last = rest.last().map(|last| format!(" to {last}")).unwrap_or_default();
            let detail = format!("{}: {first}{last}", machines_text(changed.len()));
            tx.event(Event::new(now, audit, EventKind::MachinesExpected, detail));
        }
        admitted
    }

    /// Removes expected machines, in one transaction for each [`BATCH`]. Their addresses are free
    /// again. Returns the removed records.
    pub async fn remove_expected(
        &self,
        macs: &BTreeSet<MacAddr>,
        audit: &AuditContext,
    ) -> Result<Vec<ExpectedMachine>, StoreError> {
        let now = self.env.now();
        let mut removed = Vec::new();
        let macs: Vec<MacAddr> = macs.iter().copied().collect();
        for batch in macs.chunks(BATCH) {
            let stored = self.env.store.commit(|tx| {
                let found: Vec<ExpectedMachine> =
                    batch.iter().filter_map(|mac| tx.expected_machine(*mac).cloned()).collect();
                found.iter().for_each(|machine| tx.remove_expected_machine(machine.mac));
                if let Some(first) = found.first() {
                    let detail = format!("{}, first {}", machines_text(found.len()), first.title());
                    tx.event(Event::new(now, audit, EventKind::ExpectedRemoved, detail));
                }
                Ok::<_, StoreError>(found)
            });
            removed.extend(stored.await?);
        }
        Ok(removed)
    }
}

fn machines_text(count: usize) -> String {
    if count == 1 { "1 machine".to_owned() } else { format!("{count} machines") }
}

/// Returns the imported record with what the stored one knows. The import decides about the
/// approval: one without it withdraws that of a machine that has not appeared.
fn merged(machine: &ExpectedMachine, before: Option<&ExpectedMachine>) -> ExpectedMachine {
    let Some(before) = before else { return machine.clone() };
    ExpectedMachine { created_at: before.created_at, node: before.node, ..machine.clone() }
}

fn count_changes(model: &Model, machines: &[LocatedMachine]) -> ImportReport {
    let mut report = ImportReport::default();
    for (_, machine) in machines {
        let before = model.expected_machine(machine.mac);
        match before {
            None => report.added += 1,
            Some(before) if *before == merged(machine, Some(before)) => report.unchanged += 1,
            Some(_) => report.changed += 1,
        }
    }
    report
}

/// Finds conflicts of imported machines with the records and the site.
struct Conflicts<'a> {
    model: &'a Model,
    snapshot: &'a SiteSnapshot,
    machines: &'a [LocatedMachine],
    /// The machines of the import: one may take over what another one gives up.
    imported: BTreeMap<MacAddr, &'a ExpectedMachine>,
    node_names: BTreeMap<&'a str, &'a Node>,
    /// Machines on record by the MAC address of their BMC.
    bmc_macs: BTreeMap<MacAddr, &'a ExpectedMachine>,
}

impl<'a> Conflicts<'a> {
    fn new(model: &'a Model, snapshot: &'a SiteSnapshot, machines: &'a [LocatedMachine]) -> Self {
        let imported = machines.iter().map(|(_, machine)| (machine.mac, machine)).collect();
        let nodes = model.nodes().filter(|node| node.phase != Phase::Removed);
        let node_names = nodes.map(|node| (node.name.as_str(), node)).collect();
        let expected = model.expected_machines();
        let bmc_macs = expected.filter_map(|machine| Some((machine.bmc_mac?, machine))).collect();
        Conflicts { model, snapshot, machines, imported, node_names, bmc_macs }
    }

    fn faults(&self) -> Vec<RowFault> {
        let mut faults = self.faults_of(self.machines);
        let added = self.imported.keys().filter(|mac| self.model.expected_machine(**mac).is_none());
        let total = self.model.expected_count() + added.count();
        if total > MAX_EXPECTED_MACHINES {
            let hint = format!(
                "at most {MAX_EXPECTED_MACHINES}; remove some with `meshd node remove --expected`"
            );
            faults.push(RowFault::new(
                0,
                "mac",
                format!("{total} expected machines are too many"),
                hint,
            ));
        }
        faults
    }

    fn faults_of(&self, machines: &[LocatedMachine]) -> Vec<RowFault> {
        let mut faults = Vec::new();
        for (line, machine) in machines {
            let mut add = |column: &str, found: Option<(String, String)>| {
                faults.extend(
                    found.map(|(message, hint)| RowFault::new(*line, column, message, hint)),
                );
            };
            add("mac", self.boot_nic(machine.mac));
            add("bmc_mac", machine.bmc_mac.and_then(|mac| self.bmc_mac(machine.mac, mac)));
            add("name", machine.name.as_ref().and_then(|name| self.name(machine.mac, name)));
            add("address", machine.address.and_then(|address| self.address(machine.mac, address)));
            add("profile", machine.profile.as_ref().and_then(|profile| self.profile(profile)));
        }
        faults.extend(self.shared_bmcs());
        faults
    }

    /// Returns a fault for each machine with the BMC of another one: an order to one would switch
    /// the other.
    fn shared_bmcs(&self) -> Vec<RowFault> {
        let site = &self.snapshot.site;
        let bmc = |machine: &ExpectedMachine| {
            let address = recorded_address(self.model, machine)?;
            let owner = BmcOwner::of_machine(self.model, machine);
            let driver = driver_of(site, &owner)?;
            // A program may switch several machines at one address: it has no key.
            Some((NetworkKey::parse(driver, &address)?, address))
        };
        let others = self.model.expected_machines();
        let others = others.filter(|machine| !self.imported.contains_key(&machine.mac));
        // Systems of one BMC have the same server, and a path each.
        let mut owners: BTreeMap<String, Vec<(NetworkKey, String)>> = BTreeMap::new();
        for machine in others {
            let Some((key, _)) = bmc(machine) else { continue };
            owners.entry(key.server()).or_default().push((key, machine.title()));
        }
        let mut faults = Vec::new();
        for (line, machine) in self.machines {
            let Some((key, address)) = bmc(machine) else { continue };
            let owners = owners.entry(key.server()).or_default();
            let other = owners.iter().find(|(other, _)| key.is_shared(other));
            let other = other.map(|(_, title)| title.clone());
            owners.push((key, machine.title()));
            if let Some(other) = other {
                let message = format!("`{address}` is the BMC of {other}, too");
                let hint = "write the address of the machine's BMC; with several systems, add the path of one";
                faults.push(RowFault::new(*line, "bmc_address", message, hint.to_owned()));
            }
        }
        faults
    }

    /// A BMC has one machine, and is no NIC of a machine.
    fn bmc_mac(&self, machine: MacAddr, mac: MacAddr) -> Option<(String, String)> {
        if let Some(fault) = self.mac(mac) {
            return Some(fault);
        }
        let keeps = |other: &&ExpectedMachine| {
            other.mac != machine && self.keeps(other, |after| after.bmc_mac)
        };
        let expected = self.bmc_macs.get(&mac).copied().filter(keeps);
        let expected = expected.or_else(|| self.model.expected_machine(mac));
        let node = || self.model.node_of_mac(mac).map(|node| node.name.clone());
        let holder = expected.map(ExpectedMachine::title).or_else(node)?;
        let message = format!("{mac} is a MAC address of {holder}");
        Some((message, "write the MAC address of the machine's BMC".to_owned()))
    }

    /// A boot NIC is no BMC of another machine.
    fn boot_nic(&self, mac: MacAddr) -> Option<(String, String)> {
        let keeps = |holder: &&ExpectedMachine| self.keeps(holder, |after| after.bmc_mac);
        let Some(holder) = self.bmc_macs.get(&mac).copied().filter(keeps) else {
            return self.mac(mac);
        };
        let message = format!("{mac} is the BMC of {}", holder.title());
        Some((message, "write the address of the machine's boot NIC".to_owned()))
    }

    fn mac(&self, mac: MacAddr) -> Option<(String, String)> {
        let vm = self.model.vm_of_mac(mac)?;
        let message = format!("{mac} is a NIC of the VM {}", vm.name());
        Some((message, "write the address of a machine's boot NIC".to_owned()))
    }

    /// Whether an expected machine keeps its name or address: it is not part of this import, or the
    /// import leaves it.
    fn keeps<T: PartialEq>(
        &self,
        holder: &ExpectedMachine,
        value: impl Fn(&ExpectedMachine) -> Option<T>,
    ) -> bool {
        self.imported.get(&holder.mac).is_none_or(|after| value(after) == value(holder))
    }

    fn name(&self, mac: MacAddr, name: &str) -> Option<(String, String)> {
        let hint = || "use another name".to_owned();
        let expected = self.model.expected_machine_named(name).filter(|holder| {
            holder.mac != mac && self.keeps(holder, |machine| machine.name.clone())
        });
        if let Some(holder) = expected {
            return Some((format!("`{name}` is the name of machine {}", holder.mac), hint()));
        }
        // Another node may have the NIC by now; the record belongs to the node that it became.
        let became = self.model.expected_machine(mac).and_then(|machine| machine.node);
        let is_own =
            |node: &Node| became == Some(node.id) || node.seen_nics().any(|own| *own == mac);
        let holder = self.node_names.get(name).filter(|node| !is_own(node))?;
        Some((format!("`{name}` is the name of node {}", holder.id), hint()))
    }

    fn address(&self, mac: MacAddr, address: Ipv4Addr) -> Option<(String, String)> {
        let hint = || "use another address".to_owned();
        let expected = self
            .model
            .expected_machine_at(address)
            .filter(|holder| holder.mac != mac && self.keeps(holder, |machine| machine.address));
        if let Some(holder) = expected {
            return Some((format!("{address} is reserved for machine {}", holder.title()), hint()));
        }
        if let Some(vm) = self.model.vm_at(address) {
            return Some((format!("{address} is assigned to the VM {}", vm.name()), hint()));
        }
        if let Some(other) = self.snapshot.reserved([], [&mac]) {
            let message = format!("a [[reservation]] of site.toml gives {mac} the address {other}");
            return (other != address).then(|| (message, "remove one of the two".to_owned()));
        }
        if let Some(holder) = self.snapshot.holder_of(address) {
            return Some((format!("{address} is {holder}"), hint()));
        }
        let subnets = self.snapshot.site.segments.iter().filter_map(|it| it.subnet.as_ref());
        let Some(subnet) = subnets.into_iter().find(|subnet| subnet.is_on_network(address)) else {
            let message =
                format!("{address} is in the network of no segment that leases addresses");
            return Some((message, "use an address of the network of a range".to_owned()));
        };
        [subnet.network(), subnet.broadcast()].contains(&address).then(|| {
            let message =
                format!("{address} is the network or the broadcast address of its network");
            (message, hint())
        })
    }

    fn profile(&self, profile: &ProfileName) -> Option<(String, String)> {
        let profiles = &self.snapshot.site.profiles;
        (!profiles.contains_key(profile)).then(|| {
            let hint = suggest(profile.as_str(), profiles.keys().map(ProfileName::as_str));
            (format!("there is no profile `{profile}`"), hint)
        })
    }
}
