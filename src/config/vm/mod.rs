//! `vm.toml`: parses a VM file into a [`VmRequest`], or reports all its faults.
//!
//! | module | content |
//! | --- | --- |
//! | `request` | parts of a VM request that only the central node evaluates, such as placement |
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
mod request;
mod template;

pub use mac::derived_mac;
pub use request::{
    DEFAULT_GRACE_S, MAX_GRACE_S, OnNodeLoss, UnitSelector, UnitsRequest, VmRequest,
};
pub(super) use template::template;
pub use template::{DEFAULT_TEMPLATE, VmTemplate, VmTemplates};

use super::{
    Faults, MacPrefix,
    reader::{self, Document, Table, write_duration},
    suggest,
};
use meshd_proto::{
    InterfaceName,
    vm::{
        ByteSize, CloudInit, MachineType, Nic, OnRelease, RestartPolicy, RestartWhen, SpecFault,
        VmSpec, Volume, VolumeSource,
    },
};
use meshd_types::{Digest, Secret, SystemUuid, TemplateName, VmName};
use std::{ops::RangeInclusive, path::Path, time::Duration};

/// Accepted durations; [`VmSpec::faults`] has narrower limits.
const ANY_DURATION: RangeInclusive<Duration> =
    Duration::ZERO..=Duration::from_secs(366 * 24 * 3600);
/// Placeholders of missing values, so that the rest can be checked.
const PLACEHOLDER_NAME: &str = "vm";
const PLACEHOLDER_MIB: u64 = 1024;

/// Parses a `vm.toml` without templates; returns all faults in line order. `fresh` is the UUID if
/// the text has none.
pub fn parse(text: &str, file: &Path, fresh: SystemUuid) -> Result<VmRequest, Faults> {
    parse_with(text, file, fresh, Some(&VmTemplates::new()))
}

/// As [`parse`], with the templates of a site. `None`: they are unknown, so keys that a template
/// may define are not required.
pub fn parse_with(
    text: &str,
    file: &Path,
    fresh: SystemUuid,
    templates: Option<&VmTemplates>,
) -> Result<VmRequest, Faults> {
    let document = reader::parse(text, file)?;
    let request = read(&document, fresh, templates);
    document.finish(Some(request))
}

/// Reads a VM file.
pub fn read_file(file: &Path) -> Result<String, Faults> {
    reader::read_text(file, "name the file of the VM with -f FILE")
}

/// The tables of the file, with the positions of faults.
struct WrittenVm<'d> {
    root: Table<'d>,
    /// Template for absent values.
    template: Option<&'d TemplateName>,
    restart: Option<Table<'d>>,
    cloud_init: Option<Table<'d>>,
    /// Tables of valid volumes and NICs, in the order of the specification.
    volumes: Vec<Table<'d>>,
    nics: Vec<Table<'d>>,
}

fn read<'d>(
    document: &'d Document,
    fresh: SystemUuid,
    templates: Option<&'d VmTemplates>,
) -> VmRequest {
    let root = document.root();
    let (template, defaults) = template_of(&root, templates).unzip();
    let settings = VmTemplate::read(&root).or(defaults.unwrap_or(&VmTemplate::default()));
    let (mut spec, numa_anywhere) = head(&root, fresh, &settings, templates);
    let units = units(&root);
    spec.units = units.each.iter().filter_map(UnitSelector::address).collect();
    let is_unnamed = spec.units.is_empty() && (units.whole || !units.each.is_empty());
    if is_unnamed && spec.machine == MachineType::Pc {
        root.fault("machine", "`pc` has no PCI Express for units", "write machine = \"q35\"");
    }
    let on_node_loss = settings.on_node_loss.unwrap_or_default();
    let grace_s = settings.grace_s.unwrap_or(DEFAULT_GRACE_S);
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
    let written = WrittenVm { root, template, restart, cloud_init, volumes, nics };
    let request = VmRequest { spec, units, on_node_loss, grace_s, numa_anywhere };
    request.faults().into_iter().for_each(|fault| written.report(fault));
    request
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
            root.is_within("units", request::MAX_UNITS, each.len(), "units");
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
                match self.template.filter(|_| !self.root.has(list)) {
                    Some(template) => {
                        self.root.fault(list, format!("{message} (template `{template}`)"), hint)
                    }
                    None => self.root.fault(list, message, hint),
                }
            });
    }
}

/// Returns the template that a file names, else the default template. An unknown name is a fault.
fn template_of<'d>(
    root: &Table<'_>,
    templates: Option<&'d VmTemplates>,
) -> Option<(&'d TemplateName, &'d VmTemplate)> {
    let (name, templates) = (root.parsed::<TemplateName>("template"), templates?);
    let Some(name) = name else {
        return templates
            .iter()
            .find(|(name, _)| !root.has("template") && name.as_str() == DEFAULT_TEMPLATE);
    };
    let found = templates.get_key_value(&name.value);
    if found.is_none() {
        let hint = suggest(name.as_str(), templates.keys().map(TemplateName::as_str));
        root.fault_at(&name, format!("the site has no template `{}`", name.value), hint);
    }
    found
}

/// Reads the specification without volumes and NICs, and whether any NUMA node may be used.
fn head(
    root: &Table<'_>,
    fresh: SystemUuid,
    settings: &VmTemplate,
    templates: Option<&VmTemplates>,
) -> (VmSpec, bool) {
    let name =
        root.required("name", root.parsed::<VmName>("name"), "give it a name: name = \"train-7\"");
    if let Some(templates) = templates {
        let names: Vec<&str> = templates.keys().map(TemplateName::as_str).collect();
        let known = if names.is_empty() {
            String::new()
        } else {
            format!(", or name a template: {}", names.join(", "))
        };
        root.required(
            "vcpus",
            settings.vcpus,
            format!("say how many processors it has: vcpus = 8{known}"),
        );
        root.required(
            "memory",
            settings.memory,
            format!("say how much memory it has: memory = \"64G\"{known}"),
        );
    }
    let is_word = root.kind("numa_node") == Some("string");
    let anywhere = is_word && root.choice("numa_node", &[("any", ())]).is_some();
    let numa_node = if is_word { None } else { root.integer("numa_node", 0..=u32::MAX) };
    let name = name.map_or_else(placeholder, |name| name.value);
    let uuid = root.parsed("uuid").map_or(fresh, |uuid| uuid.value);
    let spec = VmSpec {
        numa_node: numa_node.map(|node| node.value),
        ..settings.spec(name, uuid, 1, ByteSize::from_mib(PLACEHOLDER_MIB))
    };
    (spec, anywhere)
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
    let (meta_data, network_config) = (text("meta_data"), text("network_config"));
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

fn nic(table: &Table<'_>, uuid: SystemUuid, index: usize) -> Nic {
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
    Nic {
        slot,
        peers: table.bool("peers").is_some_and(|peers| peers.value),
        // The central node derives another one if the site has a prefix, or if the address is
        // taken.
        mac: table
            .parsed("mac")
            .map_or_else(|| derived_mac(&MacPrefix::default(), uuid, index, 0), |mac| mac.value),
        address: table.ipv4("address").map(|address| address.value),
        bridge: table.parsed::<InterfaceName>("bridge").map(|bridge| bridge.value),
    }
}

#[cfg(test)]
mod tests;
