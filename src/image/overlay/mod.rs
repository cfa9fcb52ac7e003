//! Renders overlays deterministically: plan, templates, archive.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `bootable` | tests whether a machine can boot the result of a merge |
//! | `archive` | writes the archive of an overlay: tar members, gzip and cpio |
//! | `context` | the inputs of a rendering: node, variables and groups |
//! | `merge` | merges overlay layers in order |
//! | `plan` | the plan of a node's files, with the origin of each |
//! | `rendered` | the result of a rendering: files, links and folders with their origin |
//! | `sample` | a sample site and node for golden files |
//! | `secret` | files that contain secrets: a storable description, and the real content for one boot |
//! | `stored` | a stored rendering that can be compared and rebuilt |
//! | `values` | names and types of the values that templates can use |
//!
//! [`render_public`] returns the public part of a node's overlay, which may be cached, compared and
//! shown. It consists of the merged files of the profile's overlays, and of generated files (world,
//! runlevels, manifest). [`deliver`] adds the member of one boot, with session and token, which is
//! never cached. A node's [`generation`] is a digest of the public part only, so two boots of one
//! generation are equal.

mod archive;
mod bootable;
mod context;
mod merge;
mod plan;
mod rendered;
pub mod sample;
mod secret;
mod stored;
mod values;

pub use archive::{HeaderBudget, HeaderLimit, Packer, Unpacked, read as read_targz, unpack};
pub use bootable::boot_faults;
pub use context::{GroupContext, MemberContext, MemberSize, NodeContext};
pub use merge::{missing_packages, used_digest};
pub use meshd_config::Faults as RenderFaults;
pub use rendered::{Kind, Origin, RenderedFile};
pub use secret::{Delivered, SecretFile};

use crate::catalog::{
    ImageManifest, Overlay, Overlays, Stage1Program,
    overlay::{AGENT_PATH, Source, System},
};
use archive::Member;
use bytes::Bytes;
use meshd_config::{Profile, Site};
use meshd_model::{
    boot::BootContents,
    fleet::Generation,
    image_kind::{Blob, ImageKindName, PartUse},
};
use meshd_proto::{BOOT_FILE, BootPart, mesh_init::MESH_INIT_PROGRAM, stage1::Stage1Config};
use meshd_types::{BundleName, Digest, ImageName, SafePath};
use std::{collections::BTreeMap, net::Ipv4Addr};

/// Mode and owner of a program.
const PROGRAM_FILE: (u32, (u64, u64)) = (0o755, (0, 0));
/// Only root may read files of one boot.
const BOOT_MODE: u32 = 0o600;

/// All inputs of the public part of a node's overlay.
#[derive(Debug, Clone, Copy)]
pub struct RenderInput<'a> {
    /// Name, keys and agent listener of the site.
    pub site: &'a Site,
    pub profile: &'a Profile,
    pub overlays: &'a Overlays,
    pub node: &'a NodeContext,
    /// Address of the central node on the segment of the boot.
    pub central: Ipv4Addr,
    pub programs: &'a NodePrograms,
    pub image: &'a ImageFacts,
}

/// Image facts that the overlay contains: the node refuses other parts than those with these
/// digests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageFacts {
    pub name: ImageName,
    pub manifest: Digest,
    pub kind: ImageKindName,
    pub system: System,
    /// The parts that the running node fetches, by name.
    pub fetched_parts: BTreeMap<&'static str, Blob>,
    /// Bundles of the profile in order, each with its layer: mesh-init mounts only these.
    pub bundles: Vec<(BundleName, Blob)>,
    /// Stage 1, which is also mesh-init.
    pub stage1: Option<Digest>,
}

impl ImageFacts {
    /// Returns the facts of a built image. Build time and recipe do not count.
    pub fn from_manifest(manifest: &ImageManifest) -> Self {
        let parts =
            manifest.parts.parts().into_iter().filter(|part| part.usage == PartUse::Fetched);
        ImageFacts {
            name: manifest.name.clone(),
            manifest: manifest.version(),
            kind: manifest.parts.name(),
            system: manifest.parts.system(),
            fetched_parts: parts.map(|part| (part.name, part.blob)).collect(),
            bundles: Vec::new(),
            stage1: None,
        }
    }

    /// Returns the facts with stage 1.
    #[must_use]
    pub fn with_stage1(self, program: Option<&Stage1Program>) -> Self {
        ImageFacts { stage1: program.map(|program| program.digest), ..self }
    }

    /// Returns facts with one digest for everything, in place of those of an image that is not
    /// built.
    pub fn placeholder(name: ImageName, kind: ImageKindName, digest: Digest) -> Self {
        let blob = Blob { digest, size: 0 };
        let fetched_parts = kind.fetched_parts().iter().map(|part| (*part, blob)).collect();
        let system = match kind {
            ImageKindName::Alpine => System::Alpine,
            ImageKindName::Root => System::default(),
        };
        ImageFacts {
            name,
            manifest: digest,
            kind,
            system,
            fetched_parts,
            bundles: Vec::new(),
            stage1: None,
        }
    }
}

/// The programs of nodes as archive members: packed once, shared by all overlays.
#[derive(Debug, Clone)]
pub struct NodePrograms {
    agent: PackedProgram,
    mesh_init: PackedProgram,
}

/// A static program as archive member.
#[derive(Debug, Clone)]
struct PackedProgram {
    digest: Digest,
    member: Member,
    bytes: Bytes,
}

impl PackedProgram {
    fn new(path: &str, bytes: Bytes) -> Self {
        let path = SafePath::new(path).expect("a constant path is plain");
        let content = archive::Content::File(&bytes);
        let (mode, owner) = PROGRAM_FILE;
        let member = archive::member([archive::ArchiveEntry { path: &path, mode, owner, content }]);
        PackedProgram { digest: Digest::of(&bytes), member, bytes }
    }

    fn size(&self) -> u64 {
        self.bytes.len() as u64
    }
}

impl NodePrograms {
    /// Packs the agent and stage 1, which takes about a second for some megabytes. Without stage 1,
    /// mesh-init is an empty file.
    pub fn new(agent: Bytes, stage1: Option<&Stage1Program>) -> Self {
        let stage1 = stage1.map(|program| program.bytes.clone()).unwrap_or_default();
        NodePrograms {
            agent: PackedProgram::new(AGENT_PATH, agent),
            mesh_init: PackedProgram::new(MESH_INIT_PROGRAM, stage1),
        }
    }

    /// Returns the digest of the agent.
    pub fn agent_digest(&self) -> Digest {
        self.agent.digest
    }

    /// Returns the digest of mesh-init.
    pub fn mesh_init_digest(&self) -> Digest {
        self.mesh_init.digest
    }

    /// Returns each program with its digest.
    pub fn contents(&self) -> impl Iterator<Item = (Digest, &[u8])> {
        [&self.agent, &self.mesh_init].into_iter().map(|program| (program.digest, &*program.bytes))
    }
}

#[derive(Debug, Clone)]
pub struct PublicOverlay {
    /// Archive members, without an end of the archive.
    members: Vec<Member>,
    /// Files, ordered by path.
    pub files: Vec<RenderedFile>,
    /// Digest over paths, modes, owners and contents, independent of their compression.
    pub digest: Digest,
    /// Descriptions of files with secrets, which are in no member.
    pub secrets: Vec<SecretFile>,
}

impl PublicOverlay {
    /// Returns a complete archive of the public part, with placeholders for secrets, for
    /// inspection: mesh-init refuses to boot it.
    pub fn to_targz(&self) -> Bytes {
        let shown = self.files.iter().filter_map(|file| {
            let Kind::Secret(bytes) = &file.kind else { return None };
            let content = archive::Content::File(bytes);
            Some(archive::ArchiveEntry {
                path: &file.path,
                mode: file.mode,
                owner: file.owner,
                content,
            })
        });
        Bytes::from(plain(&self.members, archive::last_member(shown)).concat())
    }
}

/// Renders the public part of a node's overlay.
///
/// # Errors
/// All faults: templates and variables with file and line, unknown overlays, conflicting paths and
/// services, and parts that the boot lacks.
pub fn render_public(input: &RenderInput<'_>) -> Result<PublicOverlay, RenderFaults> {
    Ok(pack_public(plan::plan(input, plan::Purpose::Boot)?, input.programs))
}

/// Renders overlays that need not boot: those of a sample.
fn render_part(input: &RenderInput<'_>) -> Result<PublicOverlay, RenderFaults> {
    Ok(pack_public(plan::plan(input, plan::Purpose::Sample)?, input.programs))
}

fn pack_public(planned: plan::Planned<'_>, programs: &NodePrograms) -> PublicOverlay {
    let plan::Planned { files, secrets, shared } = planned;
    let members = pack(&files, programs, &shared);
    PublicOverlay { members, digest: digest(&files), files, secrets }
}

/// An overlay whose plain files no other overlay of a node changes.
#[derive(Clone, Copy)]
struct SharedFiles<'a> {
    overlay: &'a Overlay,
    system: System,
}

impl SharedFiles<'_> {
    fn has(&self, path: &SafePath) -> bool {
        let entry = self.overlay.entries.get(path);
        entry.is_some_and(|entry| entry.is_plain() && entry.is_for(self.system))
    }

    /// Returns the packed files; the first call packs them.
    fn member(&self) -> Member {
        let packed = self.overlay.packed[self.system as usize].get_or_init(|| {
            let plain = self.overlay.entries_for(self.system).filter(|(_, it)| it.is_plain());
            let entries = plain.filter_map(|(path, entry)| {
                let content = match &entry.source {
                    Source::File(bytes) => archive::Content::File(bytes),
                    Source::Link(target) => archive::Content::Link(target),
                    Source::Directory => archive::Content::Directory,
                    Source::Template { .. } | Source::Agent => return None,
                };
                Some(archive::ArchiveEntry { path, mode: entry.mode, owner: entry.owner, content })
            });
            archive::member(entries).bytes
        });
        Member::new(packed.clone())
    }
}

/// Packs files into members: those of programs first, then those of unchanged overlays.
fn pack(
    files: &[RenderedFile],
    programs: &NodePrograms,
    shared: &[SharedFiles<'_>],
) -> Vec<Member> {
    let is_plain = |path| shared.iter().any(|shared| shared.has(path));
    let entries = files.iter().filter(|file| !is_plain(&file.path)).filter_map(|file| {
        let content = match &file.kind {
            Kind::File(bytes) => archive::Content::File(bytes),
            Kind::Link(target) => archive::Content::Link(target),
            Kind::Directory => archive::Content::Directory,
            Kind::Agent | Kind::MeshInit | Kind::Secret(_) => return None,
        };
        Some(archive::ArchiveEntry {
            path: &file.path,
            mode: file.mode,
            owner: file.owner,
            content,
        })
    });
    let mut parents = archive::parents(files.iter().map(|file| &file.path));
    parents.retain(|path, _| files.iter().all(|file| file.path != *path));
    let content = archive::Content::Directory;
    let parents = parents.iter().map(|(path, mode)| archive::ArchiveEntry {
        path,
        mode: *mode,
        owner: (0, 0),
        content: content.clone(),
    });
    let node_member = archive::quick_member(parents.chain(entries));
    let programs = files.iter().filter_map(|file| match file.kind {
        Kind::Agent => Some(programs.agent.member.clone()),
        Kind::MeshInit => Some(programs.mesh_init.member.clone()),
        _ => None,
    });
    programs.chain(shared.iter().map(SharedFiles::member)).chain([node_member]).collect()
}

/// Returns [`PublicOverlay::digest`] of the rendering without packing it.
pub fn public_digest(input: &RenderInput<'_>) -> Result<Digest, RenderFaults> {
    Ok(digest(&plan::plan(input, plan::Purpose::Boot)?.files))
}

fn digest(files: &[RenderedFile]) -> Digest {
    let fields = files.iter().flat_map(|file| {
        let (user, group) = file.owner;
        [
            file.path.to_string(),
            format!("{} {:o} {user}:{group}", file.kind, file.mode),
            file.digest.to_string(),
        ]
    });
    Digest::of_fields(fields.collect::<Vec<_>>().iter().map(String::as_bytes))
}

/// Returns the overlay of one boot as an initrd with
/// [`OVERLAY_PATH`](meshd_model::image_kind::OVERLAY_PATH), in pieces; all boots share the large
/// pieces. The overlay contains the boot's token and the node's secrets: never cache it. `secrets`
/// are for admitted nodes only.
pub fn deliver(public: &PublicOverlay, boot: &BootPart, secrets: &[Delivered]) -> Vec<Bytes> {
    archive::initrd(&public.members, &boot_member(boot, secrets))
}

/// Returns the overlay of one boot of an image of kind `root`, with stage 1 and its configuration,
/// as an initrd in pieces. Never cache it, as [`deliver`].
pub fn deliver_with_stage1(
    public: &PublicOverlay,
    boot: &BootPart,
    secrets: &[Delivered],
    program: &Stage1Program,
    config: &Stage1Config,
) -> Vec<Bytes> {
    let config = serde_json::to_vec(config).expect("a configuration of stage 1 is plain data");
    let program = Member::new(program.bytes.clone());
    archive::stage1_initrd(&program, &config, &public.members, &boot_member(boot, secrets))
}

/// Returns the overlay of one boot as a plain apkovl, for `delivery = "url"`, in pieces as
/// [`deliver`]. Never cache the overlay.
pub fn deliver_targz(public: &PublicOverlay, boot: &BootPart, secrets: &[Delivered]) -> Vec<Bytes> {
    plain(&public.members, boot_member(boot, secrets))
}

fn plain(members: &[Member], last: Bytes) -> Vec<Bytes> {
    members.iter().map(|member| member.bytes.clone()).chain([last]).collect()
}

/// Returns the last member, which makes an archive the overlay of one boot.
fn boot_member(boot: &BootPart, secrets: &[Delivered]) -> Bytes {
    let json = serde_json::to_vec(boot).expect("a boot part is plain data");
    let path = |text| SafePath::new(text).expect("a constant path is plain");
    let json_path = path(BOOT_FILE);
    let entry = |path, bytes| archive::ArchiveEntry {
        path,
        mode: BOOT_MODE,
        owner: (0, 0),
        content: archive::Content::File(bytes),
    };
    // The secret is exposed only to an archive that is sent and never stored.
    let secrets = secrets.iter().map(|file| entry(&file.path, file.content.expose()));
    archive::last_member([entry(&json_path, &json)].into_iter().chain(secrets))
}

/// Returns the generation of a node: a digest of all public inputs of its next boot. `overlay` is
/// [`PublicOverlay::digest`], which includes the node's values.
pub fn generation(image: &ImageFacts, overlay: Digest, contents: &BootContents) -> Generation {
    let manifest = image.manifest.to_string();
    let overlay = overlay.to_string();
    let profile = contents.profile.as_str();
    let head = ["meshd-generation/1", profile, image.name.as_str(), &manifest, &overlay];
    let stage1 = image.stage1.map(|digest| format!("stage1 {digest}"));
    let writable = contents.writable.map(|size| format!("writable {size}"));
    let fields = head.into_iter().chain(contents.args.iter().map(String::as_str));
    let fields = fields.chain(stage1.as_deref()).chain(writable.as_deref());
    let root_mode = (!contents.root_mode.is_ram()).then(|| contents.root_mode.as_str());
    let fields = fields.chain(root_mode);
    Generation(Digest::of_fields(fields.map(str::as_bytes)))
}

/// Returns the generation of a node that received its overlay without secrets, because it was not
/// approved.
pub fn without_secrets(generation: Generation) -> Generation {
    Generation(Digest::of_fields([b"without secrets".as_slice(), &generation.0.0]))
}

#[cfg(test)]
mod merge_tests;
#[cfg(test)]
mod secret_tests;
#[cfg(test)]
mod tests;
