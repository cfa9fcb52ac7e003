//! Renders overlays offline, for `overlay render --profile`, `overlay check` and `check`.

use crate::cli::{Failure, output::file};
use bytes::Bytes;
use meshd_config::{Faults, Owner, Profile, Site, files::read_regular};
use meshd_image::{
    catalog::{
        Overlays, agent_path,
        bundle::load_bundle_manifest,
        image, load_stage1,
        overlay::{Reading, read_all},
    },
    overlay::{
        self, GroupContext, ImageFacts, MemberContext, NodeContext, NodePrograms, PublicOverlay,
        RenderInput,
    },
};
use meshd_model::{
    boot,
    fleet::{ARCHIVE_FORMAT, ArchivedGeneration},
    image_kind::{Blob, ImageKindName},
};
use meshd_types::{Architecture, Digest, NodeId, VarName};
use std::{net::Ipv4Addr, path::Path};

/// Node ID for a rendering without a named node.
const ANY_NODE: &str = "00000000";

/// Inputs of a rendering, and notes about missing inputs.
pub(crate) struct Renderer<'s> {
    site: &'s Site,
    pub(crate) overlays: Overlays,
    programs: Option<NodePrograms>,
    central: Ipv4Addr,
    /// Notes about placeholders for inputs that do not exist yet.
    pub(crate) notes: Vec<String>,
}

/// Reads the overlays of a site. Does not read secrets; each secret of the site has a placeholder
/// digest.
pub(crate) fn reading(site: &Site) -> Reading {
    let mut reading = read_all(&site.overlays_dir);
    add_secrets(&mut reading.overlays, site);
    reading
}

/// Adds a placeholder digest for each secret of the site.
pub(crate) fn add_secrets(overlays: &mut Overlays, site: &Site) {
    let mark = |name: &VarName| (name.clone(), Digest::of(name.as_str().as_bytes()));
    overlays.secret_marks = site.secrets.keys().map(mark).collect();
    overlays.limit_secrets(&site.secrets);
}

/// Returns the overlays of a site if none has a fault.
pub(crate) fn overlays(site: &Site) -> Result<Overlays, Faults> {
    let Reading { overlays, faults, .. } = reading(site);
    if faults.is_empty() { Ok(overlays) } else { Err(Faults(faults)) }
}

impl<'s> Renderer<'s> {
    pub(crate) fn new(site: &'s Site, overlays: Overlays) -> Self {
        let mut notes = Vec::new();
        let central =
            site.segments.first().and_then(|segment| segment.address).unwrap_or_else(|| {
                notes.push("[net].address is not set: rendered as 0.0.0.0".to_owned());
                Ipv4Addr::UNSPECIFIED
            });
        Renderer { site, overlays, programs: None, central, notes }
    }

    /// Includes the programs of nodes. Packing them takes most of the time, and only a written
    /// archive needs them.
    pub(crate) fn with_programs(mut self) -> Self {
        let path = agent_path(self.site);
        let agent = read_regular(&path, 64 << 20).unwrap_or_else(|error| {
            self.notes.push(format!(
                "cannot read {}: {error}; the agent is rendered as an empty file",
                path.display()
            ));
            Vec::new()
        });
        let stage1 = load_stage1(self.site);
        if let Err(error) = &stage1 {
            self.notes.push(format!("{error}; stage 1 is rendered as an empty file"));
        }
        self.programs = Some(NodePrograms::new(agent.into(), stage1.ok().as_ref()));
        self
    }

    /// Renders the public part of a profile's overlay.
    pub(crate) fn render(
        &mut self,
        profile: &Profile,
        node: Option<NodeId>,
    ) -> Result<PublicOverlay, Faults> {
        let image = self.image(profile);
        let node = self.node(profile, node);
        let nothing = NodePrograms::new(Bytes::new(), None);
        let input = RenderInput {
            site: self.site,
            profile,
            overlays: &self.overlays,
            node: &node,
            central: self.central,
            programs: self.programs.as_ref().unwrap_or(&nothing),
            image: &image,
        };
        overlay::render_public(&input)
    }

    /// Returns a node as defined by the site file: the groups of the node, and the reserved
    /// addresses of their members.
    fn node(&self, profile: &Profile, node: Option<NodeId>) -> NodeContext {
        let any = || ANY_NODE.parse().expect("eight zeros are a node ID");
        let name = |id: NodeId| self.site.node_names.get(&Owner::Node(id)).cloned();
        let id = node.unwrap_or_else(any);
        let named = name(id);
        let mut context = NodeContext::new(id, named.clone());
        context.vars = profile.vars.clone();
        for group in
            self.site.groups.iter().filter(|group| group.lists([context.id], named.as_deref()))
        {
            let member = |id: &NodeId| {
                let reserved = self
                    .site
                    .reservations
                    .iter()
                    .find(|reservation| reservation.owner == Owner::Node(*id));
                let address = reserved.map(|reservation| reservation.address);
                MemberContext {
                    id: *id,
                    hostname: NodeContext::new(*id, name(*id)).hostname(),
                    address,
                    size: None,
                }
            };
            let members = group.nodes.iter().map(member).collect();
            context.vars.extend(group.vars.clone());
            let name = group.name.clone();
            let overlays = group.overlays.clone();
            context.groups.push(GroupContext { name, overlays, members });
        }
        context
    }

    /// Returns the generation that a node of a profile would boot, for comparisons.
    pub(crate) fn generation(&mut self, profile: &Profile) -> Result<ArchivedGeneration, Faults> {
        let overlay = self.render(profile, None)?;
        let image = self.image(profile);
        let built = image::load_manifest(&self.site.blobs_dir, &profile.image);
        let architecture = built.map_or(Architecture::X86_64, |image| image.arch);
        Ok(ArchivedGeneration {
            format: ARCHIVE_FORMAT,
            profile: profile.name.clone(),
            image: profile.image.clone(),
            version: image.manifest,
            args: boot::profile_args(self.site, profile, architecture),
            writable: profile.writable,
            root_mode: profile.root_mode,
            stage1: image.stage1,
            packages: overlay.packages(),
            overlay: overlay.digest,
            files: overlay.listing(),
        })
    }

    fn image(&mut self, profile: &Profile) -> ImageFacts {
        let facts = match image::load_manifest(&self.site.blobs_dir, &profile.image) {
            Ok(manifest) => ImageFacts::from_manifest(&manifest)
                .with_stage1(load_stage1(self.site).ok().as_ref()),
            Err(_) => {
                self.notes.push(format!(
                    "image {} is not built: its digests are rendered as zeros",
                    profile.image
                ));
                let name = profile.image.clone();
                let nothing = Digest([0; 32]);
                ImageFacts::placeholder(name, ImageKindName::default(), nothing)
            }
        };
        let bundles = profile.bundles.iter().map(|name| {
            let built = load_bundle_manifest(&self.site.blobs_dir, name);
            let layer = built.map(|manifest| manifest.layer).unwrap_or_else(|_| {
                self.notes
                    .push(format!("bundle {name} is not built: its digest is rendered as zeros"));
                Blob { digest: Digest([0; 32]), size: 0 }
            });
            (name.clone(), layer)
        });
        ImageFacts { bundles: bundles.collect(), ..facts }
    }
}

/// Writes a file atomically, with the failure that a command reports.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    file::write_whole(path, bytes).map_err(|error| {
        Failure::new(
            format!("cannot write {}: {error}", path.display()),
            "name another file with --out FILE",
        )
    })
}
