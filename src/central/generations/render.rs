//! Renders the public overlay of a node and its generation.

use crate::{
    environment::{
        Environment,
        site_snapshot::{RolledBackProfile, SiteSnapshot},
    },
    generations::{
        Generations,
        render_context::{Contexts, RenderContext},
    },
};
use meshd_config::{Fault, Profile};
use meshd_image::{
    catalog::{Catalog, ImageError, Overlays, Stage1Program},
    overlay::{self, ImageFacts, NodeContext, PublicOverlay, RenderFaults, RenderInput},
};
use meshd_model::{
    boot::{self, BootContents, Endpoint, NoProfile},
    fleet::{Generation, Node},
    image_kind::{Blob, ImageKind},
};
use meshd_store::{ArchiveError, Model};
use meshd_types::{
    Architecture, BootSessionId, BundleName, Digest, ImageName, NodeId, ProfileName, failpoint,
};
use std::sync::Arc;

/// The public part of a node's boot, without secrets.
#[derive(Clone)]
pub struct Rendered {
    /// The public part of the overlay.
    pub overlay: Arc<PublicOverlay>,
    /// The digest of everything public.
    pub generation: Generation,
    /// Image and kernel arguments.
    pub contents: Arc<BootContents>,
    /// The version of the image.
    pub version: Digest,
    /// The stage 1 that is part of the generation.
    pub stage1: Option<Stage1Program>,
    /// The layers of the bundles.
    pub layers: Vec<Digest>,
}

/// Why a boot cannot be rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error(transparent)]
    NoProfile(#[from] NoProfile),
    #[error("image `{image}` cannot be served")]
    NoImage { image: ImageName },
    #[error("cannot read the pinned generation of node {node}")]
    NotArchived { node: NodeId, source: ArchiveError },
    #[error("version {version} of image `{image}` is gone")]
    ImageMissing { image: ImageName, version: String, node: NodeId },
    #[error("profile {profile} is rolled back, and {why}")]
    RollbackGone { profile: ProfileName, why: String },
    #[error("generation {generation} of profile {profile} is gone: {why}")]
    RevisionGone { profile: ProfileName, generation: String, why: String },
    #[error("cannot pin node {node} to this generation: its image cannot be read")]
    Image { node: NodeId, source: ImageError },
    #[error("bundle `{bundle}` cannot be served")]
    NoBundle { bundle: BundleName },
    #[error("layer {layer} of a bundle is gone")]
    LayerMissing { layer: String, node: NodeId },
    #[error("the overlays of profile `{profile}` cannot be rendered")]
    Faults { profile: String, source: RenderFaults },
    /// The rendering thread panicked.
    #[error("rendering was interrupted")]
    Interrupted,
    #[error("rendering took more than {seconds} s")]
    Deadline { seconds: u64 },
}

meshd_types::hints!(RenderError {
    RenderError::NoImage { image } => "run `meshd image build {image}`";
    RenderError::NotArchived { node, .. } => "unpin it with `meshd node pin {node} --off`";
    RenderError::ImageMissing { node, .. } => "unpin the node with `meshd node pin {node} --off`";
    RenderError::RollbackGone { profile, .. } => "end that with `meshd profile rollback {profile} --off`";
    RenderError::RevisionGone { profile, .. } => "`meshd profile history {profile}` lists others";
    RenderError::NoBundle { bundle } => "run `meshd bundle build {bundle}`";
    RenderError::LayerMissing { node, .. } => "unpin the node with `meshd node pin {node} --off`";
    RenderError::Interrupted => "this is a fault of meshd, its log says where";
    RenderError::Deadline { .. } => "check that the disk of overlays and secrets answers, and that the host has free processors";
    @source RenderError::NoProfile(source) => source;
});

/// The boot to render: of a node in a session, or its next boot.
pub(crate) struct RenderTarget<'a> {
    pub(crate) node: &'a Node,
    pub(crate) session: Option<BootSessionId>,
    /// Address and port of the central node for the machine.
    pub(crate) endpoint: Endpoint,
}

/// The inputs of a render.
pub(crate) struct PreparedRender {
    env: Arc<Environment>,
    snapshot: Arc<SiteSnapshot>,
    node: NodeContext,
    profile: Profile,
    /// The overlays of a rolled back profile; else those of the snapshot.
    overlays: Option<Arc<Overlays>>,
    facts: ImageFacts,
    architecture: Architecture,
    kind: ImageKind,
    endpoint: Endpoint,
    /// Digest of all inputs: equal keys yield equal results.
    pub(crate) key: Digest,
}

impl Generations {
    /// Renders the next boot of a node. Concurrent requests share an error; later ones render
    /// again.
    pub async fn render(
        self: &Arc<Self>,
        node: &Node,
        endpoint: Endpoint,
    ) -> Result<Rendered, Arc<RenderError>> {
        self.render_for(&self.env.snapshot(), node, None, endpoint).await
    }

    /// Renders the boot of a node in a session, or its next boot. Waits for a render of the same
    /// inputs in progress.
    pub(crate) async fn render_for(
        self: &Arc<Self>,
        snapshot: &Arc<SiteSnapshot>,
        node: &Node,
        session: Option<BootSessionId>,
        endpoint: Endpoint,
    ) -> Result<Rendered, Arc<RenderError>> {
        if let Some(pinned) = node.pinned {
            return self.pinned(snapshot, node, pinned).await;
        }
        let target = RenderTarget { node, session, endpoint };
        let prepared = self.env.store.read(|model| {
            self.prepare_render(snapshot, &mut Contexts::new(snapshot), model, &target)
        });
        let prepared = prepared.map_err(Arc::new)?;
        let key = prepared.key;
        self.renders.once(key, move || prepared.run()).await
    }

    /// Collects the inputs of a render.
    pub(crate) fn prepare_render(
        self: &Arc<Self>,
        snapshot: &Arc<SiteSnapshot>,
        contexts: &mut Contexts<'_>,
        model: &Model,
        target: &RenderTarget<'_>,
    ) -> Result<PreparedRender, RenderError> {
        let RenderTarget { node, session, endpoint } = *target;
        let profile = boot::choose(&snapshot.site, node, session)?;
        let revision = revision(snapshot, &profile.name)?;
        let image = match &revision {
            Some(revision) => snapshot.catalog.version(&revision.version),
            None => snapshot.catalog.image(&profile.image),
        };
        let image = image.ok_or_else(|| RenderError::NoImage { image: profile.image.clone() })?;
        let bundles = bundles(&snapshot.catalog, &profile, revision.as_deref())?;
        let facts = ImageFacts { bundles, ..ImageFacts::from_manifest(&image.manifest) };
        let facts = facts.with_stage1(snapshot.catalog.stage1());
        let layers = facts.bundles.iter().map(|(_, layer)| layer.digest.0.as_slice());
        let layers = Digest::of_fields(layers);
        let RenderContext { node, digest } = contexts.context(model, node, &profile);
        let overlays = revision
            .as_ref()
            .and_then(|revision| snapshot.overlays_for(&revision.profile.name).cloned());
        let used = overlay::used_digest(
            &profile,
            &node,
            overlays.as_deref().unwrap_or(snapshot.catalog.overlays()),
        );
        let key = Digest::of_fields([
            snapshot.shared_inputs.0.as_slice(),
            used.0.as_slice(),
            revision.as_ref().map_or(&[][..], |revision| revision.generation.0.0.as_slice()),
            facts.manifest.0.as_slice(),
            image.parts_digest().0.as_slice(),
            layers.0.as_slice(),
            facts.stage1.as_ref().map_or(&[][..], |stage1| stage1.0.as_slice()),
            snapshot.profile_digest(&profile).0.as_slice(),
            digest.0.as_slice(),
            endpoint.address.octets().as_slice(),
        ]);
        Ok(PreparedRender {
            env: self.env.clone(),
            snapshot: snapshot.clone(),
            node,
            profile: profile.into_owned(),
            overlays,
            facts,
            architecture: image.manifest.arch,
            kind: image.manifest.parts.clone(),
            endpoint,
            key,
        })
    }

    /// Faults of the next boot of a node, which need not be on record. Blocks.
    pub(crate) fn render_faults(self: &Arc<Self>, node: &Node) -> Vec<Fault> {
        let snapshot = self.env.snapshot();
        let endpoint = self.env.endpoint(std::net::Ipv4Addr::UNSPECIFIED);
        let target = RenderTarget { node, session: None, endpoint };
        let prepared = self.env.store.read(|model| {
            self.prepare_render(&snapshot, &mut Contexts::new(&snapshot), model, &target)
        });
        match prepared.and_then(|prepared| prepared.generation()) {
            Err(RenderError::Faults { source, .. }) => source.0,
            _ => Vec::new(),
        }
    }

    /// Number of renders since the start.
    pub fn render_count(&self) -> u64 {
        self.renders.render_count()
    }
}

/// Counts the result of a request for a render.
pub(super) fn count(result: &'static str) {
    metrics::counter!("meshd_renders_total", "result" => result).increment(1);
}

/// The layers of a profile's bundles. A rolled back profile has the layers of its revision.
fn bundles(
    catalog: &Catalog,
    profile: &Profile,
    revision: Option<&RolledBackProfile>,
) -> Result<Vec<(BundleName, Blob)>, RenderError> {
    let layer = |name: &BundleName| {
        if let Some(layer) = revision.and_then(|revision| revision.bundles.get(name)) {
            let why = || format!("layer {} of bundle {name} is gone", layer.short());
            let bytes = catalog.layer(layer).ok_or_else(|| RenderError::RollbackGone {
                profile: profile.name.clone(),
                why: why(),
            })?;
            let blob = Blob { digest: *layer, size: bytes.len() as u64 };
            return Ok((name.clone(), blob));
        }
        let bundle =
            catalog.bundle(name).ok_or_else(|| RenderError::NoBundle { bundle: name.clone() })?;
        Ok((name.clone(), bundle.manifest.layer))
    };
    profile.bundles.iter().map(layer).collect()
}

/// Returns the revision that a profile is rolled back to.
fn revision(
    snapshot: &SiteSnapshot,
    profile: &ProfileName,
) -> Result<Option<Arc<RolledBackProfile>>, RenderError> {
    let revision = snapshot
        .rolled_back_profiles()
        .get(profile)
        .filter(|_| snapshot.site_file_profiles().contains_key(profile))
        .cloned()
        .transpose();
    revision.map_err(|why| RenderError::RollbackGone { profile: profile.clone(), why })
}

impl PreparedRender {
    fn run(self) -> Result<Rendered, RenderError> {
        let begun = self.env.monotonic();
        let outcome = self.render();
        let took = self.env.monotonic().saturating_sub(begun);
        metrics::histogram!("meshd_render_seconds").record(took.as_secs_f64());
        count(if outcome.is_ok() { "rendered" } else { "failed" });
        outcome
    }

    pub(crate) fn render(&self) -> Result<Rendered, RenderError> {
        let public = overlay::render_public(&self.input()).map_err(|source| self.faults(source))?;
        let contents = self.contents();
        Ok(Rendered {
            generation: self.generation_of(public.digest, &contents),
            overlay: Arc::new(public),
            contents: Arc::new(contents),
            version: self.facts.manifest,
            stage1: self.facts.stage1.and_then(|_| self.snapshot.catalog.stage1().cloned()),
            layers: self.facts.bundles.iter().map(|(_, layer)| layer.digest).collect(),
        })
    }

    /// Determines the generation without packing files.
    pub(crate) fn generation(&self) -> Result<Generation, RenderError> {
        let digest = overlay::public_digest(&self.input()).map_err(|source| self.faults(source))?;
        Ok(self.generation_of(digest, &self.contents()))
    }

    /// Refuses overlays that no machine can boot, and packages that the image's repository does not
    /// contain.
    pub(crate) fn check_bootable(&self) -> Result<(), RenderError> {
        let mut faults = Vec::new();
        if failpoint::defends("assign-checks-packages")
            && let Some(image) = self.snapshot.catalog.version(&self.facts.manifest)
        {
            faults.extend(overlay::missing_packages(&self.input(), &image.manifest));
        }
        if failpoint::defends("bootable-overlays") {
            faults.extend(overlay::boot_faults(&self.input()));
        }
        if faults.is_empty() { Ok(()) } else { Err(self.faults(RenderFaults(faults))) }
    }

    pub(crate) fn profile_name(&self) -> &ProfileName {
        &self.profile.name
    }

    fn input(&self) -> RenderInput<'_> {
        RenderInput {
            site: &self.snapshot.site,
            profile: &self.profile,
            overlays: self.overlays.as_deref().unwrap_or(self.snapshot.catalog.overlays()),
            node: &self.node,
            central: self.endpoint.address,
            programs: &self.snapshot.programs,
            image: &self.facts,
        }
    }

    fn contents(&self) -> BootContents {
        BootContents {
            profile: self.profile.name.clone(),
            image: self.profile.image.clone(),
            architecture: self.architecture,
            kind: self.kind.clone(),
            args: boot::profile_args(&self.snapshot.site, &self.profile, self.architecture),
            writable: self.profile.writable,
            root_mode: self.profile.root_mode,
        }
    }

    fn generation_of(&self, overlay: Digest, contents: &BootContents) -> Generation {
        overlay::generation(&self.facts, overlay, contents)
    }

    fn faults(&self, source: RenderFaults) -> RenderError {
        RenderError::Faults { profile: self.profile.name.to_string(), source }
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
