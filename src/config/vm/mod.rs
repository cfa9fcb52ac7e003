//! `vm.toml`: a virtual machine as people write it becomes a [`VmAsk`], or the list of all its faults.
//!
//! ```toml
//! name = "train-7"
//! vcpus = 8
//! memory = "64G"
//! units = ["class:0302", "any"]     # one unit each: an address, a selector or any; or a number; or "all" for the whole node
//! on_node_loss = "wait"             # or "restart": elsewhere, once it is certain that it runs here no more
//! [restart]
//! when = "on-failure"
//! [[volume]]
//! name = "root"
//! format = "qcow2"
//! digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! [[nic]]                           # a private network; on a bridge with bridge = "br0"
//! [cloud_init]
//! user_data = "#cloud-config\n"
//! ```
//! Bounds, and what holds between fields, are the wire's ([`VmSpec::faults`]): the node asks the same. Here they get their lines.

mod ask;

pub use ask::{DEFAULT_GRACE_S, MAX_GRACE_S, OnNodeLoss, ParseUnitWishError, UnitWish, UnitsAsk, VmAsk};

use super::{
    Faults,
    reader::{self, Document, Table, write_duration},
};
use crate::{
    id::{Digest, MacAddr, Secret, SystemUuid, VmName},
    wire::vm::{
        ByteSize, CloudInit, Firmware, InterfaceName, MachineType, Nic, RestartPolicy, RestartWhen, SpecFault, VmSpec,
        Volume, VolumeSource,
    },
};
use std::{ops::RangeInclusive, path::Path, time::Duration};

/// Durations that can be written at all; the wire's own bounds are narrower.
const ANY_DURATION: RangeInclusive<Duration> = Duration::ZERO..=Duration::from_secs(366 * 24 * 3600);
/// Stands in for a value that is missing or faulty, so that the rest can be looked at.
const PLACEHOLDER_NAME: &str = "vm";
const PLACEHOLDER_MIB: u64 = 1024;

/// Reads the text of a `vm.toml`. `file` is what faults name; `fresh` is the UUID that the machine gets if the text has none.
///
/// # Errors
/// All faults at once, in the order of their lines.
pub fn parse(text: &str, file: &Path, fresh: SystemUuid) -> Result<VmAsk, Faults> {
    let document = reader::parse(text, file)?;
    let ask = read(&document, fresh);
    document.finish(Some(ask))
}

/// Reads a file that holds one.
///
/// # Errors
/// All faults at once; one when the file cannot be read.
pub fn load(file: &Path, fresh: SystemUuid) -> Result<VmAsk, Faults> {
    parse(&reader::read_text(file, "name the file of the virtual machine with -f FILE")?, file, fresh)
}

/// The tables of the file, kept until all faults have their lines.
struct Written<'d> {
    root: Table<'d>,
    restart: Option<Table<'d>>,
    cloud_init: Option<Table<'d>>,
    /// Those that became a volume or a card: the n-th here is the n-th of the specification.
    volumes: Vec<Table<'d>>,
    nics: Vec<Table<'d>>,
}

fn read(document: &Document, fresh: SystemUuid) -> VmAsk {
    let root = document.root();
    let mut spec = head(&root, fresh);
    let units = units(&root);
    spec.units = units.each.iter().filter_map(UnitWish::address).collect();
    let only_wished = spec.units.is_empty() && (units.whole || !units.each.is_empty());
    if only_wished && spec.machine == MachineType::Pc {
        root.fault("machine", "it has no PCI Express for units", "write machine = \"q35\"");
    }
    let policies = [("wait", OnNodeLoss::Wait), ("restart", OnNodeLoss::Restart)];
    let on_node_loss = root.choice("on_node_loss", &policies).map(|policy| policy.value).unwrap_or_default();
    let grace = root.duration("grace", Duration::ZERO..=Duration::from_secs(MAX_GRACE_S.into()));
    let grace_s = grace.map_or(DEFAULT_GRACE_S, |grace| u32::try_from(grace.as_secs()).unwrap_or(MAX_GRACE_S));
    let restart = root.table("restart");
    if let Some(table) = &restart {
        spec.restart = restart_policy(table);
    }
    let cloud_init = root.table("cloud_init");
    spec.cloud_init = cloud_init.as_ref().and_then(seed);
    let (mut volumes, mut nics) = (Vec::new(), Vec::new());
    for table in root.tables("volume") {
        if let Some(volume) = volume(&table) {
            spec.volumes.push(volume);
            volumes.push(table);
        }
    }
    for table in root.tables("nic") {
        spec.nics.push(nic(&table, spec.uuid, spec.nics.len()));
        nics.push(table);
    }
    let written = Written { root, restart, cloud_init, volumes, nics };
    for fault in spec.faults() {
        written.report(fault);
    }
    VmAsk { spec, units, on_node_loss, grace_s }
}

/// A number of them, `"all"`, or a list with one entry for each.
fn units(root: &Table<'_>) -> UnitsAsk {
    match root.kind("units") {
        Some("integer") => {
            let count = root.integer("units", 0..=ask::MAX_UNITS).map_or(0, |count| count.value);
            UnitsAsk { whole: false, each: (0..count).map(|_| UnitWish::Any).collect() }
        }
        Some("string") => {
            let whole = root.choice("units", &[("all", true)]).is_some();
            UnitsAsk { whole, each: Vec::new() }
        }
        _ => {
            let each: Vec<UnitWish> = root.list("units").into_iter().map(|unit| unit.value).collect();
            if each.len() > usize::try_from(ask::MAX_UNITS).unwrap_or(usize::MAX) {
                root.fault("units", format!("{} units", each.len()), format!("at most {}", ask::MAX_UNITS));
            }
            UnitsAsk { whole: false, each }
        }
    }
}

impl Written<'_> {
    /// Records a fault of the specification where its key stands in the file.
    fn report(&self, SpecFault { key, message, hint }: SpecFault) {
        let indexed = |list: &str, tables: &[Table<'_>]| {
            let (index, rest) = key.strip_prefix(list)?.strip_prefix('[')?.split_once("].")?;
            let table = tables.get(index.parse::<usize>().ok()?)?;
            table.fault(rest, message.clone(), hint.clone());
            Some(())
        };
        let inside = |section: &str, table: &Option<Table<'_>>| {
            let rest = key.strip_prefix(section)?.strip_prefix('.')?;
            table.as_ref()?.fault(rest, message.clone(), hint.clone());
            Some(())
        };
        indexed("volume", &self.volumes)
            .or_else(|| indexed("nic", &self.nics))
            .or_else(|| inside("restart", &self.restart))
            .or_else(|| inside("cloud_init", &self.cloud_init))
            .unwrap_or_else(|| {
                // `units[1]`: the list has the line.
                let list = key.split('[').next().unwrap_or(&key);
                self.root.fault(list, message, hint);
            });
    }
}

fn head(root: &Table<'_>, fresh: SystemUuid) -> VmSpec {
    let number = |key: &str| {
        // Its bounds are the wire's; here only what fits.
        let number = root.integer(key, 0..=i64::from(u32::MAX));
        number.map(|number| u32::try_from(number.value).unwrap_or(u32::MAX))
    };
    let flag = |key: &str| root.bool(key).is_some_and(|flag| flag.value);
    let name = root.required("name", root.parsed::<VmName>("name"), "give it a name: name = \"train-7\"");
    let vcpus = root.required("vcpus", number("vcpus"), "say how many processors it has: vcpus = 8");
    let memory = root.required("memory", root.parsed("memory"), "say how much memory it has: memory = \"64G\"");
    let machines = [("q35", MachineType::Q35), ("pc", MachineType::Pc)];
    let firmwares = [("bios", Firmware::Bios), ("uefi", Firmware::Uefi)];
    VmSpec {
        name: name.map_or_else(placeholder, |name| name.value),
        uuid: root.parsed("uuid").map_or(fresh, |uuid| uuid.value),
        vcpus: vcpus.unwrap_or(1),
        memory: memory.map_or(ByteSize::from_mib(PLACEHOLDER_MIB), |memory| memory.value),
        machine: root.choice("machine", &machines).map(|machine| machine.value).unwrap_or_default(),
        cpu: root.parsed("cpu").map(|cpu| cpu.value).unwrap_or_default(),
        firmware: root.choice("firmware", &firmwares).map(|firmware| firmware.value).unwrap_or_default(),
        secure_boot: flag("secure_boot"),
        vtpm: flag("vtpm"),
        hugepages: flag("hugepages"),
        numa_node: number("numa_node"),
        volumes: Vec::new(),
        cloud_init: None,
        nics: Vec::new(),
        units: Vec::new(),
        restart: RestartPolicy::default(),
        allow_tcg: flag("allow_tcg"),
    }
}

fn placeholder() -> VmName {
    PLACEHOLDER_NAME.parse().expect("it is a name")
}

fn restart_policy(table: &Table<'_>) -> RestartPolicy {
    let default = RestartPolicy::default();
    let seconds = |key: &str, default: u32| {
        let span = table.duration(key, ANY_DURATION);
        if let Some(span) = &span
            && span.subsec_nanos() > 0
        {
            table.fault(key, format!("`{}` is no whole number of seconds", write_duration(span.value)), "write \"5s\"");
        }
        span.map_or(default, |span| u32::try_from(span.as_secs()).unwrap_or(u32::MAX))
    };
    let words =
        [("never", RestartWhen::Never), ("on-failure", RestartWhen::OnFailure), ("always", RestartWhen::Always)];
    let when = table.required("when", table.choice("when", &words), "write when = \"on-failure\", or remove [restart]");
    let attempts = table.integer("attempts", 0..=i64::from(u32::MAX));
    RestartPolicy {
        when: when.map_or(default.when, |when| when.value),
        delay_s: seconds("delay", default.delay_s),
        max_delay_s: seconds("max_delay", default.max_delay_s),
        attempts: attempts.map_or(default.attempts, |count| u32::try_from(count.value).unwrap_or(u32::MAX)),
        stable_after_s: seconds("stable_after", default.stable_after_s),
    }
}

fn seed(table: &Table<'_>) -> Option<CloudInit> {
    let text = |key: &str| table.string(key).map(|text| Secret::new(text.value));
    let (meta_data, network_config) = (text("meta_data"), text("network_config"));
    let user_data = table.required("user_data", text("user_data"), "write user_data = \"#cloud-config\\n...\"")?;
    Some(CloudInit { user_data, meta_data, network_config })
}

#[derive(Clone, Copy)]
enum Format {
    Qcow2,
    Raw,
    Iso,
}

/// `None` for one that cannot be told what it is; its faults are recorded.
fn volume(table: &Table<'_>) -> Option<Volume> {
    let formats = [("qcow2", Format::Qcow2), ("raw", Format::Raw), ("iso", Format::Iso)];
    let name = table.required("name", table.parsed("name"), "give it a name: name = \"root\"");
    let format =
        table.required("format", table.choice("format", &formats), "write format = \"qcow2\", \"raw\" or \"iso\"");
    // All are asked for, so that a key beside the wrong format is told as that, not as unknown.
    let digest = table.parsed::<Digest>("digest").map(|digest| digest.value);
    let size = table.parsed::<ByteSize>("size").map(|size| size.value);
    let disk = table.parsed("disk").map(|disk| disk.value);
    let beside = |key: &str, word: &str| {
        if table.has(key) {
            table.fault(key, format!("stands beside format = \"{word}\""), "remove it");
        }
    };
    let needs_digest =
        |digest| table.required("digest", digest, "name its file by its SHA-256: digest = \"9f86d0...\"");
    let source = match format?.value {
        Format::Qcow2 => {
            beside("disk", "qcow2");
            VolumeSource::Qcow2 { digest: needs_digest(digest)?, size }
        }
        Format::Iso => {
            beside("disk", "iso");
            beside("size", "iso");
            VolumeSource::Iso { digest: needs_digest(digest)? }
        }
        Format::Raw => {
            beside("digest", "raw");
            beside("size", "raw");
            let hint = "name a disk of the node by its wwid or serial number, as `meshd node show` lists them";
            VolumeSource::Raw { disk: table.required("disk", disk, hint)? }
        }
    };
    Some(Volume { name: name?.value, source })
}

fn nic(table: &Table<'_>, uuid: SystemUuid, index: usize) -> Nic {
    Nic {
        mac: table.parsed("mac").map_or_else(|| derived_mac(uuid, index), |mac| mac.value),
        address: table.ipv4("address").map(|address| address.value),
        bridge: table.parsed::<InterfaceName>("bridge").map(|bridge| bridge.value),
    }
}

/// The same machine has the same cards wherever it runs. 52:54:00 is what QEMU's machines are known by.
fn derived_mac(uuid: SystemUuid, index: usize) -> MacAddr {
    let Digest(digest) = Digest::of_fields([b"mesh-vm-mac/1".as_slice(), &uuid.0, &index.to_be_bytes()]);
    MacAddr([0x52, 0x54, 0x00, digest[0], digest[1], digest[2]])
}

#[cfg(test)]
mod tests;
