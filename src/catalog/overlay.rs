//! Overlays as they lie on disk, read whole into memory, checked, and never read again.
//!
//! An overlay is a folder: `overlay.toml` says what it is for and what plain files cannot say (modes, owners, links,
//! services, packages, modules), `rootfs/` is what the node will see, a file ending in `.j2` being a template for the
//! file without that suffix. `golden/` holds the expected rendering, for people and tests; it is not read here.

mod manifest;
mod tree;

use super::{Fault, Faults};
use crate::id::{Digest, OverlayName, SafePath};
use bytes::Bytes;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs,
    path::Path,
};

/// Where the agent lies on a node: the one file whose bytes meshd brings itself (`source = "agent"`).
pub const AGENT_PATH: &str = "/usr/bin/mesh-agent";

/// Most overlays of a site.
const MAX_OVERLAYS: usize = 256;
/// Most files, links and folders of one overlay.
const MAX_ENTRIES: usize = 4096;
/// Largest file, in bytes. Software comes as packages, not in overlays.
const MAX_FILE: u64 = 4 << 20;
/// Largest overlay, in bytes.
const MAX_OVERLAY: u64 = 16 << 20;
/// Largest `overlay.toml`, in bytes.
const MAX_MANIFEST: u64 = 256 << 10;

/// Files that are written from what overlays and profile declare. An overlay that brought one would lose it.
const RESERVED: [(&str, &str); 8] = [
    ("/etc/apk/world", "list packages in overlay.toml: packages = [\"name\"]"),
    ("/etc/modules", "list modules in overlay.toml: modules = [\"name\"]"),
    ("/etc/runlevels", "list services in overlay.toml, under [services]"),
    ("/etc/meshd/packages", "remove it"),
    ("/etc/meshd/manifest.sha256", "remove it"),
    ("/etc/meshd/boot.json", "remove it"),
    ("/etc/meshd/boot.env", "remove it"),
    ("/etc/network/interfaces.d/boot", "mesh-init writes it on the node; use another name beside it"),
];

/// One overlay, checked. Immutable: a changed folder is another snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Overlay {
    /// Name of its folder.
    pub name: OverlayName,
    /// What it is for, in a line.
    pub description: String,
    /// Everything that it puts on a node.
    pub entries: BTreeMap<SafePath, Entry>,
    /// OpenRC services that it enables.
    pub services: BTreeMap<Runlevel, BTreeSet<String>>,
    /// Packages that it needs installed.
    pub packages: BTreeSet<String>,
    /// Kernel modules to load at boot, in this order.
    pub modules: Vec<String>,
    /// Digest of all of the above but the description: the overlay's version.
    pub digest: Digest,
}

/// One file, link or folder of an overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is, and its content.
    pub source: Source,
    /// Permission bits.
    pub mode: u32,
    /// User and group number.
    pub owner: (u64, u64),
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, as it is.
    File(Bytes),
    /// A template of a file.
    Template {
        /// Its text.
        text: String,
        /// Where it was read, relative to the overlay's folder: what faults name.
        file: String,
        /// No file at all where it renders to nothing but white space.
        omit_empty: bool,
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

/// Reads every overlay of the site, or says everything that is wrong with any of them.
///
/// # Errors
/// All faults of all overlays, each with file, line where there is one, and what to do.
pub fn read_overlays(overlays_dir: &Path) -> Result<BTreeMap<OverlayName, Overlay>, Faults> {
    let mut faults = Faults::default();
    let mut overlays = BTreeMap::new();
    for name in overlay_names(overlays_dir, &mut faults) {
        let overlay = read_overlay(&overlays_dir.join(name.as_str()), &name, &mut faults);
        overlays.insert(name, overlay);
    }
    faults.or(overlays)
}

/// Each folder is an overlay. A stray file beside them is nobody's concern; a folder that cannot be an overlay is.
fn overlay_names(dir: &Path, faults: &mut Faults) -> Vec<OverlayName> {
    let listing = match fs::read_dir(dir) {
        Ok(listing) => listing,
        Err(error) => {
            let what = format!("the folder of overlays cannot be read: {error}");
            faults.push(Fault::new(dir, what, "make it, or set [site].overlays_dir"));
            return Vec::new();
        }
    };
    let mut names = Vec::new();
    for folder in listing.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        let text = folder.file_name().unwrap_or_default().to_string_lossy();
        match text.parse::<OverlayName>() {
            Ok(name) => names.push(name),
            Err(_) if text.starts_with('.') => {}
            Err(error) => faults.push(Fault::new(&folder, error.to_string(), "rename the folder")),
        }
    }
    names.sort();
    if names.len() > MAX_OVERLAYS {
        let what = format!("{} overlays, more than {MAX_OVERLAYS}", names.len());
        faults.push(Fault::new(dir, what, "move those that no profile uses elsewhere"));
        names.truncate(MAX_OVERLAYS);
    }
    names
}

fn read_overlay(folder: &Path, name: &OverlayName, faults: &mut Faults) -> Overlay {
    let mut entries = tree::read(&folder.join("rootfs"), faults);
    let declared = manifest::read(&folder.join("overlay.toml"), &mut entries, faults);
    for path in entries.keys().map(SafePath::to_string) {
        let inside = |at: &str| path.strip_prefix(at).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        if let Some((_, hint)) = RESERVED.iter().find(|(at, _)| inside(at)) {
            faults.push(Fault::new(folder, format!("brings {path}, which meshd writes itself"), *hint));
        }
    }
    let mut overlay = Overlay {
        name: name.clone(),
        description: declared.description,
        entries,
        services: declared.services,
        packages: declared.packages,
        modules: declared.modules,
        digest: Digest([0; 32]),
    };
    overlay.digest = digest(&overlay);
    overlay
}

/// Over everything that can change a rendering.
fn digest(overlay: &Overlay) -> Digest {
    let mut fields: Vec<String> = Vec::new();
    for (path, Entry { source, mode, owner: (user, group) }) in &overlay.entries {
        let content = match source {
            Source::File(bytes) => format!("file {}", Digest::of(bytes)),
            Source::Template { text, omit_empty, .. } => {
                format!("template {omit_empty} {}", Digest::of(text.as_bytes()))
            }
            Source::Agent => "agent".to_owned(),
            Source::Link(target) => format!("link {target}"),
            Source::Directory => "directory".to_owned(),
        };
        fields.extend([path.to_string(), format!("{mode:o} {user}:{group}"), content]);
    }
    let services = overlay.services.iter().flat_map(|(level, names)| names.iter().map(move |name| (level, name)));
    fields.extend(services.map(|(level, name)| format!("service {level} {name}")));
    fields.extend(overlay.packages.iter().map(|name| format!("package {name}")));
    fields.extend(overlay.modules.iter().map(|name| format!("module {name}")));
    Digest::of_fields(fields.iter().map(String::as_bytes))
}

#[cfg(test)]
mod tests;
