//! Reads and validates overlays from disk.
//!
//! An overlay is a folder. `overlay.toml` declares its purpose, modes, owners, links, services, packages, modules and
//! variables. `rootfs/` contains the node's files; a file ending in `.j2` is a template for the file without that suffix.
//! `golden/` contains the expected rendering for tests; this module does not read it. `nodes/<node-id>/` is the overlay
//! of one node, applied after all others.

mod content;
mod manifest;
mod paths;
mod permissions;
mod overlay_set;
mod template;
mod template_comparisons;
mod template_filters;
mod template_limits;
mod template_products;
mod template_tokens;
mod tree;
mod variable;

pub use overlay_set::{NODES, Overlays, Reading, read_all, read_overlays};
pub use permissions::package_mode;
pub use template::{NAMES, TemplateInputs, Templates};
pub use variable::{VarKind, Variable};

use bytes::Bytes;
use meshd_config::Fault;
use meshd_types::{Digest, NodeId, OverlayName, SafePath, VarName, Vars, failpoint};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
};

/// Path of the agent on a node, the only path that permits `source = "agent"`. meshd provides the content.
pub const AGENT_PATH: &str = "/usr/bin/mesh-agent";

/// Maximum number of files, links and folders of one overlay.
const MAX_ENTRIES: usize = 4096;
/// Maximum file size, in bytes. Larger software belongs into packages or bundles.
const MAX_FILE: u64 = 4 << 20;
/// Maximum overlay size, in bytes.
const MAX_OVERLAY: u64 = 16 << 20;
/// Files that meshd writes from the declarations of overlays and profile; an overlay must not contain them.
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

pub type Entries = BTreeMap<SafePath, OverlayEntry>;

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
    /// Packages to install.
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
    /// Plain files, links and folders as one archive member; the first rendering packs it for all nodes.
    pub packed: Arc<OnceLock<Bytes>>,
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

/// OpenRC services. Numbers are lines of `overlay.toml`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Services {
    /// Services to enable, with their runlevels.
    pub enabled: BTreeMap<String, (Runlevel, usize)>,
    /// Services of earlier overlays to disable.
    pub removed: BTreeMap<String, usize>,
    /// Services that conflict with this overlay.
    pub conflicts: BTreeMap<String, usize>,
}

/// Input of golden files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Golden {
    /// Preceding overlays.
    pub after: Vec<OverlayName>,
    pub vars: Vars,
}

/// Position of a declaration, for faults.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// Path relative to the overlay's folder.
    pub file: String,
    /// Line from 1; 0 for the whole file.
    pub line: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverlayEntry {
    pub source: Source,
    /// Permission bits.
    pub mode: u32,
    /// User and group ID.
    pub owner: (u64, u64),
    /// Appends to earlier overlays.
    pub append: bool,
    /// Intentionally replaces a file of another mode, owner or kind.
    pub replace: bool,
    pub location: SourceLocation,
}

/// Source of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    File(Bytes),
    Template {
        text: String,
        /// Path of the template relative to the overlay's folder, for faults.
        file: String,
        /// Omit the file if it renders to white space.
        omit_empty: bool,
        uses: TemplateInputs,
    },
    /// The agent's binary, which the renderer adds.
    Agent,
    /// A symbolic link to this target.
    Link(String),
    /// A folder with its own mode or owner, or an empty folder.
    Directory,
}

/// Runlevel of OpenRC; ordered by time of boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Runlevel {
    Sysinit,
    Boot,
    Default,
    Shutdown,
}

impl Runlevel {
    pub const ALL: [Runlevel; 4] = [Runlevel::Sysinit, Runlevel::Boot, Runlevel::Default, Runlevel::Shutdown];

    /// Returns the name of the folder under `/etc/runlevels`.
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

/// Returns whether a package, service or module name needs no quoting in apk, OpenRC and modprobe.
pub fn is_plain_name(text: &str) -> bool {
    let bytes = text.as_bytes();
    (1..=128).contains(&bytes.len())
        && bytes[0].is_ascii_alphanumeric()
        && bytes.iter().all(|c| c.is_ascii_alphanumeric() || b"+._-".contains(c))
}

/// Reads one overlay.
fn read_overlay(folder: &Path, name: Layer, faults: &mut Vec<Fault>) -> Overlay {
    let manifest = folder.join("overlay.toml");
    let real_manifest = real_path(folder, "overlay.toml", &name, faults);
    let tree::RootFs { mut entries, lost } = real_path(folder, "rootfs", &name, faults)
        .map(|real| tree::read(&folder.join("rootfs"), &real, permissions::reference(&manifest), faults))
        .unwrap_or_default();
    let declared = real_manifest.map(|_| manifest::read(&manifest, &mut entries, faults)).unwrap_or_default();
    let is_declared = |at: &SafePath| entries.get(at).is_some_and(|entry| entry.location.file == paths::MANIFEST);
    faults.extend(lost.into_iter().filter(|(at, _)| !is_declared(at)).map(|(_, fault)| fault));
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

/// Returns the real path of a part of the overlay. A link may lead to other overlays only: meshd may read files that the overlay's author
/// may not, and would bring them to nodes, or into a fault that quotes them.
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
    faults.push(Fault::of_file(path, what, "link the overlay as a whole, or copy the target of the link"));
    None
}

/// Reports files with a secret that users other than root could read.
fn secret_files(folder: &Path, entries: &Entries, variables: &BTreeMap<VarName, Variable>, faults: &mut Vec<Fault>) {
    for (path, entry) in entries {
        let Some(secret) = entry.source.secret(variables) else { continue };
        if !entry.append && (entry.mode, entry.owner) != (0o600, (0, 0)) {
            let what = format!("{path} uses the secret `{secret}` and is not 0600 and root's");
            let hint =
                format!("write [files.\"{path}\"] mode = \"0600\"; a service that needs it as another user copies it");
            faults.push(Fault {
                line: entry.location.line,
                ..Fault::of_file(folder.join(&entry.location.file), what, hint)
            });
        }
    }
}

impl OverlayEntry {
    /// Returns whether the entry is the same on every node, unless another overlay changes it.
    pub fn is_plain(&self) -> bool {
        !self.append && matches!(self.source, Source::File(_) | Source::Link(_) | Source::Directory)
    }
}

impl Source {
    /// Returns the first secret that a template uses.
    pub fn secret<'a>(&'a self, variables: &BTreeMap<VarName, Variable>) -> Option<&'a VarName> {
        let Source::Template { uses, .. } = self else { return None };
        uses.vars.iter().find(|name| variables.get(*name).is_some_and(|variable| variable.secret))
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
mod template_tests;
#[cfg(test)]
mod tests;
