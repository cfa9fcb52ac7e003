//! What lies where on a node, and why: overlays in order, the last writer winning, and the files that follow from them.
//!
//! Pure. Packages, services and modules of all overlays are joined, then written as the files that Alpine reads.

use super::{
    RenderInput,
    template::{TemplateFault, Templates},
};
use crate::{
    catalog::overlay::{Entry, Overlay, Runlevel, Source, is_plain_name},
    id::{Digest, GroupName, NodeId, OverlayName, ProfileName, SafePath, Vars},
    wire::{self, AgentConfig},
};
use bytes::Bytes;
use minijinja::context;
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    net::Ipv4Addr,
    sync::Arc,
};

/// mesh-init compares a node with this list before anything else runs.
const MANIFEST_FILE: &str = "/etc/meshd/manifest.sha256";
/// Files that Alpine's initramfs or the packages' own scripts edit before mesh-init looks at them.
const EDITED_ON_NODE: [&str; 8] = [
    "/etc/apk/arch",
    "/etc/apk/world",
    "/etc/group",
    "/etc/inittab",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/securetty",
    "/etc/shadow",
];

/// What of the node itself its overlay depends on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeContext {
    /// Its ID.
    pub id: NodeId,
    /// The name that an operator gave it; without one it is `node-ID`.
    pub name: Option<String>,
    /// Its variables: those of its profile, of its groups and its own, the last writer having won.
    pub vars: Vars,
    /// The groups that it is in, in the order in which their overlays are applied.
    pub groups: Vec<GroupContext>,
}

/// What of a group the overlays of its members depend on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupContext {
    /// The group's name.
    pub name: GroupName,
    /// Overlays after those of the profile, in order.
    pub overlays: Vec<OverlayName>,
    /// All its members, in the order of their IDs; shared by the contexts of all of them.
    pub members: Arc<[MemberContext]>,
}

/// A member of a group as the other members know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberContext {
    /// Its ID.
    pub id: NodeId,
    /// What it calls itself.
    pub hostname: String,
    /// Its address, if it has one for good: a reservation, or a lease that it holds.
    pub address: Option<Ipv4Addr>,
}

impl NodeContext {
    /// A node in no group, without variables.
    pub fn new(id: NodeId, name: Option<String>) -> Self {
        NodeContext { id, name, vars: Vars::new(), groups: Vec::new() }
    }

    /// What the node calls itself.
    pub fn hostname(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("node-{}", self.id))
    }
}

/// One file, link or folder of a rendered overlay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderedFile {
    /// Where on the node.
    pub path: SafePath,
    /// What it is, and its content.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// User and group number.
    pub owner: (u64, u64),
    /// Who brought it, after everyone earlier lost.
    pub origin: Origin,
    /// Digest of the content, or of a link's target.
    pub digest: Digest,
    /// Size of the content in bytes.
    pub size: u64,
}

/// What a rendered file is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A file with this content.
    File(Bytes),
    /// The agent's binary.
    Agent,
    /// A symbolic link to this target.
    Link(String),
    /// A folder.
    Directory,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Kind::File(_) | Kind::Agent => "file",
            Kind::Link(_) => "link",
            Kind::Directory => "directory",
        })
    }
}

/// Where a rendered file comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// An overlay of the profile.
    Overlay(OverlayName),
    /// Made from what all of them declare.
    Generated,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Overlay(name) => name.fmt(f),
            Origin::Generated => f.pad("(meshd)"),
        }
    }
}

/// Why an overlay cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderFault {
    /// The profile names an overlay that is not there.
    #[error("profile {profile}: there is no overlay `{overlay}`; there are {}", there_are.join(", "))]
    NoOverlay {
        /// The profile.
        profile: ProfileName,
        /// What it names.
        overlay: OverlayName,
        /// What there is.
        there_are: Vec<String>,
    },
    /// A template did not render.
    #[error(transparent)]
    Template(#[from] TemplateFault),
    /// One overlay has a file where another needs a folder.
    #[error("{path} is a file or link in overlay {file_in}, but a folder in overlay {folder_in}; rename one of them")]
    Conflict {
        /// The path that cannot be both.
        path: String,
        /// Who says that it is a file.
        file_in: String,
        /// Who says that it is a folder.
        folder_in: String,
    },
    /// The profile asks for something that is no package name.
    #[error("profile {profile}: `{package}` is not a package name; write it without version or repository")]
    Package {
        /// The profile.
        profile: ProfileName,
        /// What it asks for.
        package: String,
    },
}

/// Everything that is wrong, at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RenderFaults(pub Vec<RenderFault>);

impl fmt::Display for RenderFaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<String> = self.0.iter().map(RenderFault::to_string).collect();
        f.write_str(&lines.join("\n"))
    }
}

impl std::error::Error for RenderFaults {}

/// What all overlays of a profile declare together.
#[derive(Default)]
struct Merged<'a> {
    entries: BTreeMap<&'a SafePath, (&'a Overlay, &'a Entry)>,
    services: BTreeMap<Runlevel, BTreeSet<&'a str>>,
    packages: BTreeSet<&'a str>,
    modules: Vec<&'a str>,
}

/// The whole overlay but for the per-boot part, in the order of paths.
pub(super) fn plan(input: &RenderInput<'_>) -> Result<Vec<RenderedFile>, RenderFaults> {
    let mut faults = Vec::new();
    let merged = merge(input, &mut faults);
    let templates = Templates::new(values(input, &merged));
    let mut files: Vec<RenderedFile> = Vec::new();
    for (path, (overlay, entry)) in &merged.entries {
        match content(entry, &overlay.name, &templates) {
            Ok(Some(kind)) => {
                let origin = Origin::Overlay(overlay.name.clone());
                files.push(rendered(input, (*path).clone(), kind, (entry.mode, entry.owner), origin));
            }
            Ok(None) => {}
            Err(fault) => faults.push(fault.into()),
        }
    }
    let made = generated(&merged);
    files.extend(made.into_iter().map(|(path, kind)| own(input, &path, kind)));
    files.sort_by(|a, b| a.path.cmp(&b.path));
    conflicts(&files, &mut faults);
    if !faults.is_empty() {
        return Err(RenderFaults(faults));
    }
    let manifest = own(input, MANIFEST_FILE, Kind::File(manifest(&files)));
    let at = files.partition_point(|file| file.path < manifest.path);
    files.insert(at, manifest);
    Ok(files)
}

fn merge<'a>(input: &RenderInput<'a>, faults: &mut Vec<RenderFault>) -> Merged<'a> {
    let mut merged = Merged::default();
    for name in &input.profile.overlays {
        let Some(overlay) = input.overlays.get(name) else {
            faults.push(RenderFault::NoOverlay {
                profile: input.profile.name.clone(),
                overlay: name.clone(),
                there_are: input.overlays.keys().map(OverlayName::to_string).collect(),
            });
            continue;
        };
        merged.entries.extend(overlay.entries.iter().map(|(path, entry)| (path, (overlay, entry))));
        for (level, services) in &overlay.services {
            merged.services.entry(*level).or_default().extend(services.iter().map(String::as_str));
        }
        merged.packages.extend(overlay.packages.iter().map(String::as_str));
        let modules = overlay.modules.iter().map(String::as_str);
        let new: Vec<&str> = modules.filter(|module| !merged.modules.contains(module)).collect();
        merged.modules.extend(new);
    }
    for package in &input.profile.packages {
        if is_plain_name(package) {
            merged.packages.insert(package);
        } else {
            let profile = input.profile.name.clone();
            faults.push(RenderFault::Package { profile, package: package.clone() });
        }
    }
    merged
}

/// What templates can name. docs/overlays.md lists it.
fn values(input: &RenderInput<'_>, merged: &Merged<'_>) -> minijinja::Value {
    let site = input.site;
    let config = agent_config(input, merged);
    context! {
        site => context! { name => site.name, ssh_keys => site.ssh_keys },
        node => context! { id => input.node.id.to_string(), hostname => input.node.hostname() },
        profile => context! { name => input.profile.name.as_str() },
        image => context! {
            name => input.image.name.as_str(),
            manifest => input.image.manifest.to_string(),
            modloop => input.image.modloop.to_string(),
        },
        agent => context! {
            config => serde_json::to_string_pretty(&config).expect("an agent's configuration is plain data"),
            ca_pem => input.ca_pem,
        },
    }
}

fn agent_config(input: &RenderInput<'_>, merged: &Merged<'_>) -> AgentConfig {
    let running = [Runlevel::Boot, Runlevel::Default];
    let services = running.iter().filter_map(|level| merged.services.get(level)).flatten();
    AgentConfig {
        version: wire::VERSION,
        node: input.node.id,
        central: input.central,
        port: input.site.agent.port,
        ca_file: "/etc/meshd/ca.pem".to_owned(),
        heartbeat_s: u32::try_from(input.site.agent.heartbeat.as_secs()).unwrap_or(u32::MAX),
        profile: input.profile.name.to_string(),
        services: services.map(|service| (*service).to_owned()).collect(),
        checks: input.profile.checks.clone(),
    }
}

/// `None` for a template that turned out empty and may.
fn content(entry: &Entry, overlay: &OverlayName, templates: &Templates) -> Result<Option<Kind>, TemplateFault> {
    Ok(Some(match &entry.source {
        Source::File(bytes) => Kind::File(bytes.clone()),
        Source::Template { text, file, omit_empty } => {
            let text = templates.render(overlay, file, text)?;
            if *omit_empty && text.trim().is_empty() {
                return Ok(None);
            }
            Kind::File(Bytes::from(text))
        }
        Source::Agent => Kind::Agent,
        Source::Link(target) => Kind::Link(target.clone()),
        Source::Directory => Kind::Directory,
    }))
}

fn rendered(
    input: &RenderInput<'_>,
    path: SafePath,
    kind: Kind,
    (mode, owner): (u32, (u64, u64)),
    origin: Origin,
) -> RenderedFile {
    let (digest, size) = match &kind {
        Kind::File(bytes) => (Digest::of(bytes), bytes.len() as u64),
        Kind::Agent => (input.agent.digest, input.agent.size),
        Kind::Link(target) => (Digest::of(target.as_bytes()), 0),
        Kind::Directory => (Digest::of(b""), 0),
    };
    RenderedFile { path, kind, mode, owner, origin, digest, size }
}

fn own(input: &RenderInput<'_>, path: &str, kind: Kind) -> RenderedFile {
    let path = SafePath::new(path).expect("made of constants and plain names");
    let mode = if matches!(kind, Kind::Link(_)) { 0o777 } else { 0o644 };
    rendered(input, path, kind, (mode, (0, 0)), Origin::Generated)
}

/// The files that Alpine reads packages, modules and services from, and the list that mesh-init compares packages with.
fn generated(merged: &Merged<'_>) -> Vec<(String, Kind)> {
    let lines = |names: &mut dyn Iterator<Item = &str>| {
        Kind::File(Bytes::from(names.map(|name| format!("{name}\n")).collect::<String>()))
    };
    let mut files = vec![
        ("/etc/apk/world".to_owned(), lines(&mut merged.packages.iter().copied())),
        ("/etc/meshd/packages".to_owned(), lines(&mut merged.packages.iter().copied())),
        ("/etc/modules".to_owned(), lines(&mut merged.modules.iter().copied())),
    ];
    for (level, services) in &merged.services {
        files.extend(services.iter().map(|service| {
            (format!("/etc/runlevels/{level}/{service}"), Kind::Link(format!("/etc/init.d/{service}")))
        }));
    }
    files
}

/// A path cannot be a file for one overlay and a folder for another: tar would unpack whichever comes first.
fn conflicts(files: &[RenderedFile], faults: &mut Vec<RenderFault>) {
    let leaves: BTreeMap<&str, &RenderedFile> =
        files.iter().filter(|file| file.kind != Kind::Directory).map(|file| (file.path.relative(), file)).collect();
    for below in files {
        for leaf in below.path.parents().filter_map(|parent| leaves.get(parent)) {
            faults.push(RenderFault::Conflict {
                path: leaf.path.to_string(),
                file_in: leaf.origin.to_string(),
                folder_in: below.origin.to_string(),
            });
        }
    }
}

/// In the format of sha256sum, which busybox checks.
fn manifest(files: &[RenderedFile]) -> Bytes {
    let checked = files.iter().filter(|file| matches!(file.kind, Kind::File(_) | Kind::Agent));
    let checked = checked.filter(|file| !EDITED_ON_NODE.contains(&file.path.to_string().as_str()));
    Bytes::from(checked.map(|file| format!("{}  {}\n", file.digest, file.path)).collect::<String>())
}
