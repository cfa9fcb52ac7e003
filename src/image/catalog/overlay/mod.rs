//! Reads and validates overlays from disk.
//!
//! An overlay is a folder. `overlay.toml` declares its purpose, modes, owners, links, services,
//! packages, modules and variables. `rootfs/` contains the node's files; a file ending in `.j2` is
//! a template for the file without that suffix. `rootfs.alpine/` and `rootfs.systemd/` contain those
//! of one system. `golden/` contains the expected rendering for
//! tests; this module does not read it. `nodes/<node-id>/` is the overlay of one node, applied
//! after all others.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `content` | finds invisible faults of files: line ends, byte order marks, tabs, names that differ only by case |
//! | `entry` | entries of an overlay: files, templates, links and folders |
//! | `manifest` | `overlay.toml`: description, packages, services, modules, kernel parameters |
//! | `overlay_set` | all overlays of a folder |
//! | `paths` | `[files]`, `[directories]`, `[links]` and `[append]` of `overlay.toml` |
//! | `permissions` | modes and attributes that a working tree loses |
//! | `services` | OpenRC services and runlevels, and units of systemd |
//! | `template` | templates, compiled in strict mode with bounds |
//! | `tree` | walks `rootfs/` without following links |
//! | `variable` | `[variables.NAME]`: typed variables |

mod content;
mod entry;
mod manifest;
mod overlay_set;
mod paths;
mod permissions;
mod services;
mod template;
mod tree;
mod variable;
#[cfg(test)]
mod tests;

pub use entry::{AGENT_PATH, Entries, OverlayEntry, Source, SourceLocation};
pub use meshd_model::image_kind::System;
pub use overlay_set::{NODES, Overlays, Reading, read_all, read_overlays};
pub use permissions::package_mode;
pub use services::{Runlevel, Services, Units, is_plain_name};
pub use template::{NAMES, TemplateInputs, Templates};
pub use variable::{VarKind, Variable};

use bytes::Bytes;
use meshd_config::Fault;
use meshd_proto::mesh_init::MESH_INIT_PROGRAM;
use meshd_types::{Digest, NodeId, OverlayName, SafePath, VarName, Vars, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Files that meshd writes from the declarations of overlays and profile; an overlay must not
/// contain them.
const RESERVED: [(&str, &str); 11] = [
    ("/etc/apk/world", "list packages in overlay.toml: packages = [\"name\"]"),
    ("/etc/modules-load.d/50-meshd.conf", "list modules in overlay.toml: modules = [\"name\"]"),
    (
        "/etc/systemd/system/multi-user.target.wants",
        "list units in overlay.toml, under [systemd]: units = [\"name.service\"]",
    ),
    ("/etc/modules", "list modules in overlay.toml: modules = [\"name\"]"),
    ("/etc/runlevels", "list services in overlay.toml, under [services]"),
    ("/etc/sysctl.d/50-meshd.conf", "list kernel parameters in overlay.toml, under [sysctl]"),
    ("/etc/meshd/packages", "remove it"),
    ("/etc/meshd/manifest.sha256", "remove it"),
    ("/etc/meshd/boot.json", "remove it"),
    ("/etc/meshd/mesh-init.json", "remove it"),
    (
        "/etc/network/interfaces.d/boot",
        "mesh-init writes it on the node; use another name beside it",
    ),
];

/// One valid overlay. Immutable: a reload reads a changed folder into a new snapshot.
#[derive(Debug, Clone)]
pub struct Overlay {
    pub name: Layer,
    /// Folder of the overlay.
    pub folder: PathBuf,
    /// Purpose, in one line.
    pub description: String,
    pub entries: Entries,
    pub templates: Templates,
    /// Paths of earlier overlays to remove, each with its line in `overlay.toml`.
    pub removed: BTreeMap<SafePath, usize>,
    pub services: Services,
    pub units: Units,
    /// Systems that the overlay supports.
    pub systems: BTreeSet<System>,
    /// Packages of Alpine that a node must have.
    pub packages: BTreeSet<String>,
    /// Kernel modules to load at boot, in this order.
    pub modules: Vec<String>,
    pub sysctl: BTreeMap<String, String>,
    /// Declared variables of templates.
    pub variables: BTreeMap<VarName, Variable>,
    /// Sample for golden files.
    pub golden: Golden,
    /// Digest of all inputs of a rendering: the overlay's version.
    pub digest: Digest,
    /// Plain files, links and folders as one archive member for each system; the first rendering
    /// packs it for all nodes.
    pub packed: Arc<[OnceLock<Bytes>; System::ALL.len()]>,
}

impl Overlay {
    /// Returns the entries for a system.
    pub fn entries_for(&self, system: System) -> impl Iterator<Item = (&SafePath, &OverlayEntry)> {
        self.entries.iter().filter(move |(_, entry)| entry.is_for(system))
    }

    /// Returns the packages that a node of a system must have.
    pub fn packages_for(&self, system: System) -> &BTreeSet<String> {
        match system {
            System::Alpine => &self.packages,
            System::Systemd => &self.units.packages,
        }
    }
}

/// Identifies an overlay: by name for profiles and groups, or by the node that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// `overlays/<name>/`
    Named(OverlayName),
    /// `overlays/nodes/<node-id>/`
    Node(NodeId),
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Layer::Named(name) => f.pad(name.as_str()),
            Layer::Node(id) => f.pad(&format!("nodes/{id}")),
        }
    }
}

/// Input of golden files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Golden {
    /// Preceding overlays.
    pub after: Vec<OverlayName>,
    pub vars: Vars,
}

/// Reads one overlay.
fn read_overlay(folder: &Path, name: Layer, faults: &mut Vec<Fault>) -> Overlay {
    let manifest = folder.join("overlay.toml");
    let real_manifest = real_path(folder, "overlay.toml", &name, faults);
    let reference = permissions::reference(&manifest);
    let mut read_tree = |rootfs: &str| {
        real_path(folder, rootfs, &name, faults)
            .map(|real| tree::read(&folder.join(rootfs), &real, reference, faults))
            .unwrap_or_default()
    };
    let mut rootfs = read_tree("rootfs");
    let of_systems = System::ALL.map(|system| (system, read_tree(system.rootfs())));
    for (system, tree) in of_systems {
        rootfs.add(folder, system, tree, faults);
    }
    let tree::RootFs { mut entries, lost } = rootfs;
    let declared =
        real_manifest.map(|_| manifest::read(&manifest, &mut entries, faults)).unwrap_or_default();
    let is_declared =
        |at: &SafePath| entries.get(at).is_some_and(|entry| entry.location.file == paths::MANIFEST);
    faults.extend(lost.into_iter().filter(|(at, _)| !is_declared(at)).map(|(_, fault)| fault));
    content::check(folder, &entries, faults);
    faults.extend(unsupported(folder, &entries, &declared));
    faults.extend(empty_units(folder, &entries));
    // The script of an overlay of an earlier version: meshd adds the program that replaced it.
    entries.retain(|path, _| path.to_string() != MESH_INIT_PROGRAM);
    let reserved = |path: String| {
        let inside = |at: &str| {
            path.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let (_, hint) = RESERVED.iter().find(|(at, _)| inside(at))?;
        Some(Fault::of_file(folder, format!("brings {path}, which meshd writes itself"), *hint))
    };
    faults.extend(entries.keys().map(SafePath::to_string).filter_map(reserved));
    let mut compiler = template::Compiler::new(folder, &declared.variables, faults);
    for entry in entries.values_mut() {
        if let Source::Template { text, file, uses, .. } = &mut entry.source {
            *uses = compiler.add(file, text);
        }
    }
    let templates = compiler.finish();
    secret_files(folder, &entries, &declared.variables, faults);
    let mut overlay = Overlay {
        name,
        folder: folder.to_owned(),
        description: declared.description,
        entries,
        templates,
        removed: declared.removed,
        services: declared.services,
        units: declared.units,
        systems: declared.systems,
        packages: declared.packages,
        modules: declared.modules,
        sysctl: declared.sysctl,
        variables: declared.variables,
        golden: declared.golden,
        digest: Digest([0; 32]),
        packed: Arc::default(),
    };
    overlay.digest = digest(&overlay);
    overlay
}

/// Returns the real path of a part of the overlay. A link may lead to other overlays only: meshd
/// may read files that the overlay's author may not, and would bring them to nodes, or into a fault
/// that quotes them.
fn real_path(folder: &Path, name: &str, layer: &Layer, faults: &mut Vec<Fault>) -> Option<PathBuf> {
    let path = folder.join(name);
    // An absent part is no fault here.
    let Ok(real) = path.canonicalize() else { return Some(path) };
    let levels = match layer {
        Layer::Named(_) => 1,
        Layer::Node(_) => 2,
    };
    let is_among = |overlay: PathBuf| {
        let all = overlay.ancestors().nth(levels).and_then(|all| all.canonicalize().ok());
        all.is_some_and(|all| real.starts_with(all))
    };
    let is_near = is_among(folder.to_owned()) || folder.canonicalize().is_ok_and(is_among);
    if is_near || !failpoint::defends("overlay-links") {
        return Some(real);
    }
    let what = "is a link that leaves the folder of overlays";
    faults.push(Fault::of_file(
        path,
        what,
        "link the overlay as a whole, or copy the target of the link",
    ));
    None
}

/// Reports files and declarations for a system that the overlay does not support.
fn unsupported(
    folder: &Path,
    entries: &Entries,
    declared: &manifest::Declarations,
) -> Option<Fault> {
    let system = System::ALL.into_iter().find(|system| {
        let has_files = entries.values().any(|entry| entry.system == Some(*system));
        let has_units = *system == System::Systemd && declared.units != Units::default();
        (has_files || has_units)
            && !declared.systems.is_empty()
            && !declared.systems.contains(system)
    })?;
    let what = format!("has files or units for {system}, which `systems` does not name");
    let hint = "add it: systems = [\"alpine\", \"systemd\"]";
    Some(Fault::of_file(folder.join(paths::MANIFEST), what, hint))
}

/// Reports units without content: systemd takes them for masked ones (systemd.unit(5)).
fn empty_units(folder: &Path, entries: &Entries) -> Vec<Fault> {
    let is_empty = |entry: &OverlayEntry| match &entry.source {
        Source::File(bytes) => bytes.is_empty(),
        _ => false,
    };
    let is_unit = |path: &SafePath| {
        let path = path.to_string();
        path.strip_prefix("/etc/systemd/system/").is_some_and(services::is_unit)
    };
    let found = entries.iter().filter(|(path, entry)| is_empty(entry) && is_unit(path));
    let fault = |(path, entry): (&SafePath, &OverlayEntry)| {
        let what = format!("{path} is empty, so it never starts");
        let hint =
            "write the unit; one that must not start belongs into masked = [..] under [systemd]";
        Fault::of_file(folder.join(&entry.location.file), what, hint)
    };
    found.map(fault).collect()
}

/// Reports files with a secret that users other than root could read.
fn secret_files(
    folder: &Path,
    entries: &Entries,
    variables: &BTreeMap<VarName, Variable>,
    faults: &mut Vec<Fault>,
) {
    for (path, entry) in entries {
        let Some(secret) = entry.source.secret(variables) else { continue };
        if !entry.append && (entry.mode, entry.owner) != (0o600, (0, 0)) {
            let what = format!("{path} uses the secret `{secret}` and is not 0600 and root's");
            let hint = format!(
                "write [files.\"{path}\"] mode = \"0600\"; a service that needs it as another user copies it"
            );
            faults.push(Fault {
                line: entry.location.line,
                ..Fault::of_file(folder.join(&entry.location.file), what, hint)
            });
        }
    }
}

/// Returns a digest over all inputs of a rendering.
fn digest(overlay: &Overlay) -> Digest {
    let mut fields: Vec<String> = Vec::new();
    for (path, entry) in &overlay.entries {
        let (user, group) = entry.owner;
        let content = match &entry.source {
            Source::File(bytes) => format!("file {}", Digest::of(bytes)),
            Source::Template { text, omit_empty, .. } => {
                format!("template {omit_empty} {}", Digest::of(text.as_bytes()))
            }
            Source::Agent => "agent".to_owned(),
            Source::Link(target) => format!("link {target}"),
            Source::Directory => "directory".to_owned(),
        };
        let how = format!("{:o} {user}:{group} {} {}", entry.mode, entry.append, entry.replace);
        fields.extend([path.to_string(), how, content]);
        fields.extend(entry.system.map(|system| format!("only {system}")));
    }
    // An overlay for Alpine alone keeps the digest that it had before there were systems.
    let systems =
        overlay.systems.iter().filter(|_| overlay.systems != BTreeSet::from([System::Alpine]));
    fields.extend(systems.map(|system| format!("system {system}")));
    let Units { enabled, masked, packages } = &overlay.units;
    fields.extend(enabled.keys().map(|name| format!("unit {name}")));
    fields.extend(masked.keys().map(|name| format!("masked {name}")));
    fields.extend(packages.iter().map(|name| format!("systemd package {name}")));
    let Services { enabled, removed, conflicts } = &overlay.services;
    fields.extend(overlay.removed.keys().map(|path| format!("remove {path}")));
    fields.extend(enabled.iter().map(|(name, (level, _))| format!("service {level} {name}")));
    fields.extend(removed.keys().map(|name| format!("no service {name}")));
    fields.extend(conflicts.keys().map(|name| format!("conflict {name}")));
    fields.extend(overlay.packages.iter().map(|name| format!("package {name}")));
    fields.extend(overlay.modules.iter().map(|name| format!("module {name}")));
    fields.extend(overlay.sysctl.iter().map(|(name, value)| format!("sysctl {name} = {value}")));
    fields.extend(overlay.variables.iter().map(|(name, variable)| {
        let Variable { kind, default, required, secret, choices, .. } = variable;
        format!("variable {name} {kind:?} {default:?} {required} {secret} {choices:?}")
    }));
    Digest::of_fields(fields.iter().map(String::as_bytes))
}
