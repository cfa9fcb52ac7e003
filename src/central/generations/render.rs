//! Renders the public overlay of a node and its generation.

use super::render_cache::count;
use crate::{
    environment::{
        Environment,
        site_snapshot::{PinnedProfile, SiteSnapshot},
    },
    generations::{
        Generations,
        render_context::{Contexts, RenderContext},
    },
};
use meshd_config::Profile;
use meshd_image::{
    catalog::{Catalog, Image, ImageError, Overlays},
    overlay::{self, ImageFacts, NodeContext, PublicOverlay, RenderFaults, RenderInput},
};
use meshd_model::{
    boot::{self, BootContents, Endpoint, ImageParts, NoProfile},
    fleet::{Generation, Node},
};
use meshd_store::{ArchiveError, Model};
use meshd_types::{BootSessionId, BundleName, Digest, ImageName, NodeId, ProfileName};
use std::sync::Arc;

/// Everything public of a node's next boot. The overlay of a session is what its script promised.
#[derive(Clone)]
pub struct Rendered {
    /// The public part of the overlay.
    pub overlay: Arc<PublicOverlay>,
    /// The digest of everything public.
    pub generation: Generation,
    /// Image and kernel arguments.
    pub what: Arc<BootContents>,
    /// The version of the image.
    pub version: Digest,
    /// The layers of the bundles.
    pub layers: Vec<Digest>,
}

/// Why nothing was rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The site has no such profile any more.
    #[error(transparent)]
    NoProfile(#[from] NoProfile),
    /// The image is not built, or damaged.
    #[error("image `{image}` cannot be served; run `meshd image build {image}`")]
    NoImage { image: ImageName },
    /// The pinned generation is not in the archive.
    #[error("cannot read the pinned generation of node {node}; unpin it with `meshd node pin {node} --off`")]
    NotKept { node: NodeId, source: ArchiveError },
    /// The image of the pinned generation was removed.
    #[error("version {version} of image `{image}` is gone; unpin the node with `meshd node pin {node} --off`")]
    ImageGone {
        image: ImageName,
        /// The version of the image.
        version: String,
        node: NodeId,
    },
    /// The revision of a rolled back profile is not in the archive.
    #[error("profile {profile} is rolled back, and {why}; end that with `meshd profile rollback {profile} --off`")]
    HeldGone { profile: ProfileName, why: String },
    /// The image of a generation cannot be read.
    #[error("cannot pin node {node} to this generation: its image cannot be read")]
    Image { node: NodeId, source: ImageError },
    /// A bundle is not built, or damaged.
    #[error("bundle `{bundle}` cannot be served; run `meshd bundle build {bundle}`")]
    NoBundle { bundle: BundleName },
    /// A layer of the pinned generation was removed.
    #[error("layer {layer} of a bundle is gone; unpin the node with `meshd node pin {node} --off`")]
    LayerGone { layer: String, node: NodeId },
    /// The overlays have faults.
    #[error("the overlays of profile `{profile}` cannot be rendered")]
    Faults {
        profile: String,
        /// All of them.
        source: RenderFaults,
    },
    /// The thread that rendered has panicked.
    #[error("rendering was interrupted; this is a fault of meshd, its log says where")]
    Interrupted,
}

/// Everything that a render is made from, held for as long as it takes.
pub(crate) struct PreparedRender {
    env: Arc<Environment>,
    live: Arc<SiteSnapshot>,
    node: NodeContext,
    profile: Profile,
    /// Where they are not those of the snapshot: its profile is held.
    overlays: Option<Arc<Overlays>>,
    facts: ImageFacts,
    parts: ImageParts,
    endpoint: Endpoint,
    /// Over all of the above: two jobs with one key have one outcome.
    pub(crate) key: Digest,
}

impl Generations {
    /// Renders what this node would boot next.
    ///
    /// # Errors
    /// The site, the image or the overlays do not allow it. Shared by all who asked at that time; the next one tries anew.
    pub async fn render(self: &Arc<Self>, node: &Node, endpoint: Endpoint) -> Result<Rendered, Arc<RenderError>> {
        self.render_for(&self.env.live(), node, None, endpoint).await
    }

    /// Renders what this node boots in a session, or next where none is named; or waits for somebody who does.
    pub(crate) async fn render_for(
        self: &Arc<Self>,
        live: &Arc<SiteSnapshot>,
        node: &Node,
        session: Option<BootSessionId>,
        endpoint: Endpoint,
    ) -> Result<Rendered, Arc<RenderError>> {
        if let Some(pinned) = node.pinned {
            return self.pinned(live, node, pinned).await;
        }
        let prepared = self
            .env
            .store
            .read(|model| self.prepare_render(live, &mut Contexts::new(live), model, node, (session, endpoint)));
        let prepared = prepared.map_err(Arc::new)?;
        let key = prepared.key;
        self.renders.once(key, move || prepared.run()).await
    }

    /// Collects the inputs of a render.
    pub(crate) fn prepare_render(
        self: &Arc<Self>,
        live: &Arc<SiteSnapshot>,
        contexts: &mut Contexts<'_>,
        model: &Model,
        node: &Node,
        (session, endpoint): (Option<BootSessionId>, Endpoint),
    ) -> Result<PreparedRender, RenderError> {
        let profile = boot::choose(&live.site, node, session)?;
        let held = held(live, &profile.name)?;
        let image = match &held {
            Some(held) => live.catalog.version(&held.version),
            None => live.catalog.image(&profile.image),
        };
        let image = image.ok_or_else(|| RenderError::NoImage { image: profile.image.clone() })?;
        let bundles = bundles(&live.catalog, &profile, held.as_deref())?;
        let facts = ImageFacts { bundles, ..ImageFacts::of(&image.manifest) };
        let layers = facts.bundles.iter().map(|(_, layer)| layer.0.as_slice());
        let layers = Digest::of_fields(layers);
        let RenderContext { node, digest } = contexts.of(model, node, &profile);
        let overlays = held.as_ref().and_then(|held| live.overlays_of(&held.profile.name).cloned());
        let used = overlay::used_digest(&profile, &node, overlays.as_deref().unwrap_or(live.catalog.overlays()));
        let key = Digest::of_fields([
            live.common.0.as_slice(),
            used.0.as_slice(),
            held.as_ref().map_or(&[][..], |held| held.generation.0.0.as_slice()),
            facts.manifest.0.as_slice(),
            layers.0.as_slice(),
            live.profile_digest(&profile).0.as_slice(),
            digest.0.as_slice(),
            endpoint.address.octets().as_slice(),
        ]);
        let (parts, profile) = (image_parts(image), profile.into_owned());
        Ok(PreparedRender {
            env: self.env.clone(),
            live: live.clone(),
            node,
            profile,
            overlays,
            facts,
            parts,
            endpoint,
            key,
        })
    }

    /// Renders made since the start: each different one counts once.
    pub fn renders_made(&self) -> u64 {
        self.renders.made()
    }
}

/// The layers of a profile's bundles: where it is held, those that it had then.
fn bundles(
    catalog: &Catalog,
    profile: &Profile,
    held: Option<&PinnedProfile>,
) -> Result<Vec<(BundleName, Digest)>, RenderError> {
    let layer = |name: &BundleName| {
        if let Some(layer) = held.and_then(|held| held.bundles.get(name)) {
            let why = || format!("layer {} of bundle {name} is gone", layer.short());
            catalog.layer(layer).ok_or_else(|| RenderError::HeldGone { profile: profile.name.clone(), why: why() })?;
            return Ok((name.clone(), *layer));
        }
        let bundle = catalog.bundle(name).ok_or_else(|| RenderError::NoBundle { bundle: name.clone() })?;
        Ok((name.clone(), bundle.manifest.layer.digest))
    };
    profile.bundles.iter().map(layer).collect()
}

/// Returns the revision that a profile is rolled back to.
fn held(live: &SiteSnapshot, profile: &ProfileName) -> Result<Option<Arc<PinnedProfile>>, RenderError> {
    let held = live.all_held().get(profile).filter(|_| live.filed().contains_key(profile)).cloned().transpose();
    held.map_err(|why| RenderError::HeldGone { profile: profile.clone(), why })
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
        let what = self.what();
        let generation = self.generation_of(public.digest, &what);
        let layers = self.facts.bundles.iter().map(|(_, layer)| *layer).collect();
        let (overlay, what) = (Arc::new(public), Arc::new(what));
        Ok(Rendered { overlay, generation, what, version: self.facts.manifest, layers })
    }

    /// The generation that [`Generations::render`] would give, without packing anything.
    pub(crate) fn generation(&self) -> Result<Generation, RenderError> {
        let digest = overlay::public_digest(&self.input()).map_err(|source| self.faults(source))?;
        Ok(self.generation_of(digest, &self.what()))
    }

    /// Refuses what the image's repository cannot install.
    pub(crate) fn check_packages(&self) -> Result<(), RenderError> {
        let Some(image) = self.live.catalog.version(&self.facts.manifest) else { return Ok(()) };
        let faults = overlay::missing_packages(&self.input(), &image.manifest);
        if faults.is_empty() { Ok(()) } else { Err(self.faults(RenderFaults(faults))) }
    }

    /// The profile that it renders.
    pub(crate) fn profile_name(&self) -> &ProfileName {
        &self.profile.name
    }

    fn input(&self) -> RenderInput<'_> {
        RenderInput {
            site: &self.live.site,
            profile: &self.profile,
            overlays: self.overlays.as_deref().unwrap_or(self.live.catalog.overlays()),
            node: &self.node,
            central: self.endpoint.address,
            agent: &self.live.agent,
            image: &self.facts,
        }
    }

    fn what(&self) -> BootContents {
        let args = boot::kernel_args(&self.live.site, &self.profile, self.parts.arch);
        let (profile, image) = (self.profile.name.clone(), self.profile.image.clone());
        BootContents { profile, image, parts: self.parts.clone(), args }
    }

    fn generation_of(&self, overlay: Digest, what: &BootContents) -> Generation {
        overlay::generation(&self.facts, overlay, &what.profile, &what.args)
    }

    fn faults(&self, source: RenderFaults) -> RenderError {
        RenderError::Faults { profile: self.profile.name.to_string(), source }
    }
}

/// What the script has to know of an image.
pub(crate) fn image_parts(image: &Image) -> ImageParts {
    let parts = &image.manifest.parts;
    ImageParts {
        arch: image.manifest.arch,
        kernel: parts.kernel.digest,
        initramfs: parts.initramfs.digest,
        packages: parts.packages.digest,
        modloop: parts.modloop.digest,
    }
}

#[cfg(test)]
#[path = "render_tests.rs"]
mod tests;
