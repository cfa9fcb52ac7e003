//! `vm.toml`: parses a VM file into a [`NewVm`], or reports all its faults.
//!
//! | module | content |
//! | --- | --- |
//! | `new_vm` | a new VM as its user describes it; a template of the site completes it |
//! | `request` | the complete request, with parts that only the central node evaluates, such as placement |
//! | `mac` | MAC addresses of NICs that have none in their VM file |
//! | `template` | VM templates: defaults from `[vms.templates.NAME]` of the site |
//!
//! ```toml
//! name = "train-7"
//! vcpus = 8
//! memory = "64G"
//! units = ["class:0302", "any"]     # one unit each: an address, a selector or any; or a number; or "all" for the whole node
//! on_node_loss = "wait"             # or "restart": on another node, once it certainly does not run here
//! [restart]
//! when = "on-failure"
//! [[volume]]
//! name = "root"
//! format = "qcow2"
//! digest = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
//! [[volume]]
//! name = "scratch"
//! format = "raw"                    # a whole disk of the node, by its wwid or serial number
//! disk = "slot"                     # or the disk of its slot: the n-th such volume gets that of the n-th unit
//! digest = "9f86d0..."              # image to write onto it first; it must be empty, or overwrite = true
//! on_release = "wipe"               # or "keep"; by default disks of slots are wiped, named disks are not
//! [[nic]]                           # bridge = "mesh-nat0" or "br0"; slot = true: with the addresses of its slot; peers = true
//! [cloud_init]
//! user_data = "#cloud-config\n"
//! ```
//! [`VmSpec::faults`] checks limits and consistency, also on the node. This module adds the lines.

mod mac;
mod new_vm;
mod request;
mod template;

pub use mac::derived_mac;
pub use new_vm::{NewNic, NewVm};
pub use request::{
    DEFAULT_GRACE_S, MAX_GRACE_S, OnNodeLoss, UnitSelector, UnitsRequest, VmRequest,
};
pub(super) use template::template;
pub use template::{DEFAULT_TEMPLATE, VmTemplate, VmTemplates};

use super::{
    Faults,
    reader::{self, Document, Table, write_duration},
};
use meshd_proto::{
    InterfaceName,
    vm::{
        ByteSize, CloudInit, OnRelease, RestartPolicy, RestartWhen, SpecFault, Volume, VolumeSource,
    },
};
use meshd_types::{Digest, Secret, TemplateName, VmName};
use std::{ops::RangeInclusive, path::Path, time::Duration};

/// Accepted durations; [`meshd_proto::vm::VmSpec::faults`] has narrower limits.
const ANY_DURATION: RangeInclusive<Duration> =
    Duration::ZERO..=Duration::from_secs(366 * 24 * 3600);
/// Placeholder of a missing name, so that the rest can be checked.
const PLACEHOLDER_NAME: &str = "vm";

/// Parses a `vm.toml`; returns all faults in line order. [`NewVm::complete`] finds those that
/// depend on a template.
pub fn parse(text: &str, file: &Path) -> Result<NewVm, Faults> {
    let document = reader::parse(text, file)?;
    let vm = read(&document);
    document.finish(Some(vm))
}

/// Reads a VM file.
pub fn read_file(file: &Path) -> Result<String, Faults> {
    reader::read_text(file, "name the file of the VM with -f FILE")
}

/// The tables of the file, with the positions of faults.
struct WrittenVm<'d> {
    root: Table<'d>,
    restart: Option<Table<'d>>,
    cloud_init: Option<Table<'d>>,
    /// Tables of valid volumes and NICs, in the order of the specification.
    volumes: Vec<Table<'d>>,
    nics: Vec<Table<'d>>,
}

fn read(document: &Document) -> NewVm {
    let root = document.root();
    let mut settings = VmTemplate::read(&root);
    let restart = root.table("restart");
    settings.restart = restart.as_ref().map(restart_policy);
    let name =
        root.required("name", root.parsed::<VmName>("name"), "give it a name: name = \"train-7\"");
    let numa_is_word = root.kind("numa_node") == Some("string");
    let numa_anywhere = numa_is_word && root.choice("numa_node", &[("any", ())]).is_some();
    let numa_node = if numa_is_word { None } else { root.integer("numa_node", 0..=u32::MAX) };
    let cloud_init = root.table("cloud_init");
    let mut vm = NewVm {
        name: name.map_or_else(placeholder, |name| name.value),
        uuid: root.parsed("uuid").map(|uuid| uuid.value),
        template: root.parsed::<TemplateName>("template").map(|name| name.value),
        settings,
        numa_node: numa_node.map(|node| node.value),
        numa_anywhere,
        units: units(&root),
        volumes: Vec::new(),
        nics: Vec::new(),
        cloud_init: cloud_init.as_ref().and_then(seed),
        ready: root.parsed("ready").map(|check| check.value),
    };
    let mut volumes = Vec::new();
    for table in root.tables("volume") {
        if let Some(volume) = volume(&table) {
            vm.volumes.push(volume);
            volumes.push(table);
        }
    }
    let nics = root.tables("nic");
    vm.nics = nics.iter().map(nic).collect();
    let written = WrittenVm { root, restart, cloud_init, volumes, nics };
    vm.faults().into_iter().for_each(|fault| written.report(fault));
    vm
}

/// Reads `units`: a number, `"all"`, or a list of selectors.
fn units(root: &Table<'_>) -> UnitsRequest {
    match root.kind("units") {
        Some("integer") => {
            let count =
                root.integer("units", 0..=request::MAX_UNITS).map_or(0, |count| count.value);
            UnitsRequest { whole: false, each: vec![UnitSelector::Any; count] }
        }
        Some("string") => {
            let whole = root.choice("units", &[("all", true)]).is_some();
            UnitsRequest { whole, each: Vec::new() }
        }
        _ => {
            let each: Vec<UnitSelector> =
                root.list("units").into_iter().map(|unit| unit.value).collect();
            UnitsRequest { whole: false, each }
        }
    }
}

impl WrittenVm<'_> {
    /// Records a fault at the position of its key.
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
            table.fault(
                key,
                format!("`{}` is no whole number of seconds", write_duration(span.value)),
                "write \"5s\"",
            );
        }
        span.map_or(default, |span| u32::try_from(span.as_secs()).unwrap_or(u32::MAX))
    };
    let words = [
        ("never", RestartWhen::Never),
        ("on-failure", RestartWhen::OnFailure),
        ("always", RestartWhen::Always),
    ];
    let when = table.required(
        "when",
        table.choice("when", &words),
        "write when = \"on-failure\", or remove [restart]",
    );
    let attempts = table.integer("attempts", 0..=u32::MAX);
    RestartPolicy {
        when: when.map_or(default.when, |when| when.value),
        delay_s: seconds("delay", default.delay_s),
        max_delay_s: seconds("max_delay", default.max_delay_s),
        attempts: attempts.map_or(default.attempts, |count| count.value),
        stable_after_s: seconds("stable_after", default.stable_after_s),
    }
}

fn seed(table: &Table<'_>) -> Option<CloudInit> {
    let text = |key: &str| table.string(key).map(|text| Secret::new(text.value));
    let meta_data = text("meta_data");
    let network_config = text("network_config");
    let user_data = table.required(
        "user_data",
        text("user_data"),
        "write user_data = \"#cloud-config\\n...\"",
    )?;
    Some(CloudInit { user_data, meta_data, network_config })
}

#[derive(Clone, Copy)]
enum Format {
    Qcow2,
    Raw,
    Iso,
}

/// Reads a volume; `None` if a required key has a fault.
fn volume(table: &Table<'_>) -> Option<Volume> {
    let formats = [("qcow2", Format::Qcow2), ("raw", Format::Raw), ("iso", Format::Iso)];
    let name = table.required("name", table.parsed("name"), "give it a name: name = \"root\"");
    let format = table.required(
        "format",
        table.choice("format", &formats),
        "write format = \"qcow2\", \"raw\" or \"iso\"",
    );
    // Reads all keys, so that a key of another format is not reported as unknown.
    let digest = table.parsed::<Digest>("digest").map(|digest| digest.value);
    let size = table.parsed::<ByteSize>("size").map(|size| size.value);
    let disk = table.parsed("disk").map(|disk| disk.value);
    let overwrite = table.bool("overwrite").is_some_and(|overwrite| overwrite.value);
    let adopt = table.bool("adopt").is_some_and(|adopt| adopt.value);
    let words = [("keep", OnRelease::Keep), ("wipe", OnRelease::Wipe)];
    let on_release = table.choice("on_release", &words).map(|word| word.value);
    let beside = |key: &str, word: &str| {
        if table.has(key) {
            table.fault(key, format!("stands beside format = \"{word}\""), "remove it");
        }
    };
    let of_disk = ["disk", "overwrite", "adopt", "on_release"];
    let needs_digest = |digest| {
        table.required("digest", digest, "name its file by its SHA-256: digest = \"9f86d0...\"")
    };
    let source = match format?.value {
        Format::Qcow2 => {
            of_disk.iter().for_each(|key| beside(key, "qcow2"));
            VolumeSource::Qcow2 { digest: needs_digest(digest)?, size }
        }
        Format::Iso => {
            of_disk.iter().for_each(|key| beside(key, "iso"));
            beside("size", "iso");
            VolumeSource::Iso { digest: needs_digest(digest)? }
        }
        Format::Raw => {
            beside("size", "raw");
            if (overwrite || table.has("overwrite")) && digest.is_none() && !table.has("digest") {
                let hint = "name an image by its digest, or remove it";
                table.fault("overwrite", "nothing is written onto the disk", hint);
            }
            if adopt && table.has("digest") {
                let message = "stands beside an image, which replaces what the disk holds";
                table.fault("adopt", message, "remove it, or the digest");
            }
            let hint = "write \"slot\" for the disk of its slot, or the wwid or serial number of one that `meshd node show` lists";
            VolumeSource::Raw {
                disk: table.required("disk", disk, hint)?,
                digest,
                overwrite,
                adopt,
                on_release,
            }
        }
    };
    Some(Volume { name: name?.value, source })
}

fn nic(table: &Table<'_>) -> NewNic {
    let slot = table.bool("slot").is_some_and(|slot| slot.value);
    for key in ["mac", "address"] {
        if slot && table.has(key) {
            table.fault(
                key,
                "is that of its slot, as `slot = true` says",
                "leave one of the two out",
            );
        }
    }
    NewNic {
        slot,
        peers: table.bool("peers").is_some_and(|peers| peers.value),
        mac: table.parsed("mac").map(|mac| mac.value),
        address: table.ipv4("address").map(|address| address.value),
        bridge: table.parsed::<InterfaceName>("bridge").map(|bridge| bridge.value),
    }
}

#[cfg(test)]
mod tests;
