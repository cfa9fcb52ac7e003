//! Reads and validates overlays from disk.
//!
//! An overlay is a folder: `overlay.toml` says what it is for and what plain files cannot say (modes, owners, links,
//! services, packages, modules, variables), `rootfs/` is what the node will see, a file ending in `.j2` being a template for
//! the file without that suffix. `golden/` holds the expected rendering, for people and tests; it is not read here.
//! `nodes/<node-id>/` is an overlay of one node, applied after all others.

mod content;
mod manifest;
mod paths;
mod set;
mod template;
mod tree;
mod variable;

pub use set::{NODES, Overlays, Reading, read_all, read_overlays};
pub use template::{NAMES, Templates, Uses};
pub use variable::{VarKind, Variable};

use bytes::Bytes;
use meshd_config::Fault;
use meshd_types::{Digest, NodeId, OverlayName, SafePath, VarName, Vars};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Where the agent lies on a node: the one file whose bytes meshd brings itself (`source = "agent"`).
pub const AGENT_PATH: &str = "/usr/bin/mesh-agent";

/// Most files, links and folders of one overlay.
const MAX_ENTRIES: usize = 4096;
/// Largest file, in bytes. Software comes as packages, not in overlays.
const MAX_FILE: u64 = 4 << 20;
/// Largest overlay, in bytes.
const MAX_OVERLAY: u64 = 16 << 20;
/// Files that are written from what overlays and profile declare. An overlay that brought one would lose it.
const RESERVED: [(&str, &str); 9] = [
    ("/etc/apk/world", "list packages in overlay.toml: packages = [\"name\"]"),
    ("/etc/modules", "list modules in overlay.toml: modules = [\"name\"]"),
    ("/etc/runlevels", "list services in overlay.toml, under [services]"),
    ("/etc/sysctl.d/50-meshd.conf", "list kernel parameters in overlay.toml, under [sysctl]"),
    ("/etc/meshd/packages", "remove it"),
    ("/etc/meshd/manifest.sha256", "remove it"),
    ("/etc/meshd/boot.json", "remove it"),
    ("/etc/meshd/boot.env", "remove it"),
    ("/etc/network/interfaces.d/boot", "mesh-init writes it on the node; use another name beside it"),
];

/// Everything that an overlay puts on a node.
pub type Entries = BTreeMap<SafePath, OverlayEntry>;

/// One overlay, checked. Immutable: a changed folder is another snapshot.
#[derive(Debug, Clone)]
pub struct Overlay {
    /// Which one it is.
    pub name: Layer,
    /// Where it was read.
    pub folder: PathBuf,
    /// What it is for, in a line.
    pub description: String,
    /// Everything that it puts on a node.
    pub entries: Entries,
    pub templates: Templates,
    /// Paths of earlier overlays that it takes away, each with its line in `overlay.toml`.
    pub removed: BTreeMap<SafePath, usize>,
    pub services: Services,
    /// Packages that it needs installed.
    pub packages: BTreeSet<String>,
    /// Kernel modules to load at boot, in this order.
    pub modules: Vec<String>,
    /// Kernel parameters.
    pub sysctl: BTreeMap<String, String>,
    /// What its templates let others decide.
    pub variables: BTreeMap<VarName, Variable>,
    /// What its golden files are rendered with.
    pub golden: Golden,
    /// Digest of all that can change a rendering: the overlay's version.
    pub digest: Digest,
    /// Its plain files, links and folders as one member of an archive: whoever renders first packs them, for all nodes.
    pub packed: Arc<OnceLock<Bytes>>,
}

/// The name of an overlay, as profiles and groups name it, or the node that it is for.
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

/// What an overlay says of OpenRC's services. Numbers are lines of `overlay.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Services {
    /// Services that it enables, and when they start.
    pub enabled: BTreeMap<String, (Runlevel, usize)>,
    /// Services of earlier overlays that shall not start.
    pub removed: BTreeMap<String, usize>,
    /// Services that cannot run beside it.
    pub conflicts: BTreeMap<String, usize>,
}

/// What the golden files of an overlay are rendered with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Golden {
    /// Overlays that come before it.
    pub after: Vec<OverlayName>,
    /// Values of its variables.
    pub vars: Vars,
}

/// Where something was written, for faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// Relative to the overlay's folder.
    pub file: String,
    /// From 1; 0 for the whole file.
    pub line: usize,
}

/// One file, link or folder of an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayEntry {
    /// What it is, and its content.
    pub source: Source,
    /// Permission bits.
    pub mode: u32,
    /// User and group number.
    pub owner: (u64, u64),
    /// Its content is added to what earlier overlays wrote.
    pub append: bool,
    /// It is meant to replace a file of another mode, owner or kind.
    pub replace: bool,
    /// Where it was declared.
    pub place: SourceLocation,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, as it is.
    File(Bytes),
    /// A template of a file.
    Template {
        text: String,
        /// Where it was read, relative to the overlay's folder: what faults name.
        file: String,
        /// No file at all where it renders to nothing but white space.
        omit_empty: bool,
        /// What it asks for.
        uses: Uses,
    },
    /// The agent's binary, which the renderer brings.
    Agent,
    /// A symbolic link to this target.
    Link(String),
    /// A folder whose mode or owner matters, or that is empty.
    Directory,
}

/// When OpenRC starts a service; ordered as a boot goes through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runlevel {
    /// Devices and drivers.
    Sysinit,
    /// What the machine needs before anything can serve.
    Boot,
    /// What the machine is for.
    Default,
    /// On the way down.
    Shutdown,
}

impl Runlevel {
    /// All of them, in order.
    pub const ALL: [Runlevel; 4] = [Runlevel::Sysinit, Runlevel::Boot, Runlevel::Default, Runlevel::Shutdown];

    /// The name of its folder under `/etc/runlevels`.
    pub fn as_str(self) -> &'static str {
        match self {
            Runlevel::Sysinit => "sysinit",
            Runlevel::Boot => "boot",
            Runlevel::Default => "default",
            Runlevel::Shutdown => "shutdown",
        }
    }
}

impl fmt::Display for Runlevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A package, service or module name: what apk, OpenRC and modprobe all take without quoting.
pub fn is_plain_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=128).contains(&bytes.len())
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"+._-".contains(c))
}

/// Reads one overlay, whole.
fn read_overlay(folder: &Path, name: Layer, faults: &mut Vec<Fault>) -> Overlay {
    let mut entries = tree::read(&folder.join("rootfs"), faults);
    let declared = manifest::read(&folder.join("overlay.toml"), &mut entries, faults);
    content::check(folder, &entries, faults);
    let reserved = |path: String| {
        let inside = |at: &str| path.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
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

/// A file with a secret in it is root's alone, from the moment it is unpacked.
fn secret_files(folder: &Path, entries: &Entries, variables: &BTreeMap<VarName, Variable>, faults: &mut Vec<Fault>) {
    for (path, entry) in entries {
        let Some(secret) = entry.source.secret(variables) else { continue };
        if !entry.append && (entry.mode, entry.owner) != (0o600, (0, 0)) {
            let what = format!("{path} uses the secret `{secret}` and is not 0600 and root's");
            let hint =
                format!("write [files.\"{path}\"] mode = \"0600\"; a service that needs it as another user copies it");
            faults.push(Fault { line: entry.place.line, ..Fault::of_file(folder.join(&entry.place.file), what, hint) });
        }
    }
}

impl OverlayEntry {
    /// Whether it is the same on every node that nobody else writes it on.
    pub fn is_plain(&self) -> bool {
        !self.append && matches!(self.source, Source::File(_) | Source::Link(_) | Source::Directory)
    }
}

impl Source {
    /// The first secret that a template uses.
    pub fn secret<'a>(&'a self, variables: &BTreeMap<VarName, Variable>) -> Option<&'a VarName> {
        let Source::Template { uses, .. } = self else { return None };
        uses.vars.iter().find(|name| variables.get(*name).is_some_and(|variable| variable.secret))
    }
}

/// Over everything that can change a rendering.
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
    }
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

#[cfg(test)]
mod tests;
