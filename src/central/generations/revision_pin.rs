//! Prepares the pin of a node to a generation of its profile, which the node need not have run.

use super::{
    Generations,
    archive::load_image,
    render::{RenderError, RenderTarget},
    render_context::Contexts,
    revisions::find,
};
use meshd_model::fleet::{DeliveredGeneration, Generation, Node};
use meshd_store::{ArchiveError, Model};
use meshd_types::{ImageName, ProfileName};
use std::{net::Ipv4Addr, sync::Arc};

impl Generations {
    /// Finds a generation of a profile by a prefix of its digest.
    pub(crate) fn find_revision(&self, profile: &ProfileName, prefix: &str) -> Option<Generation> {
        self.env.store.read(|model| find(model.revisions(profile)?, prefix))
    }

    /// Finds the newest generation of a profile with a version of an image, by a prefix of its
    /// digest; `None` if several versions match.
    pub(crate) fn find_image(
        &self,
        profile: &ProfileName,
        image: &ImageName,
        version: &str,
    ) -> Option<Generation> {
        self.env.store.read(|model| {
            let newest_first = model.revisions(profile)?.all.iter().rev();
            let mut found = newest_first.filter(|one| {
                one.image == *image
                    && !version.is_empty()
                    && one.version.to_string().starts_with(version)
            });
            let newest = found.next()?;
            let is_clear = found.all(|one| one.version == newest.version);
            is_clear.then_some(newest.generation)
        })
    }

    /// Prepares a pin to a generation of a profile: renders and archives what the node would boot,
    /// and adds its image and layers to the snapshot. Returns the record for its history.
    pub(crate) async fn prepare_revision_pin(
        self: &Arc<Self>,
        node: Node,
        profile: ProfileName,
        revision: Generation,
    ) -> Result<DeliveredGeneration, RenderError> {
        // A concurrent reload would replace the catalog that receives the image.
        let _one = self.reloading.lock().await;
        let this = self.clone();
        let prepared = tokio::task::spawn_blocking(move || {
            this.prepare_revision_pin_blocking(node, profile, revision)
        });
        prepared.await.map_err(|_| RenderError::Interrupted)?
    }

    fn prepare_revision_pin_blocking(
        self: &Arc<Self>,
        mut node: Node,
        profile: ProfileName,
        revision: Generation,
    ) -> Result<DeliveredGeneration, RenderError> {
        (node.pinned, node.boot_override) = (None, None);
        let gone = |why| RenderError::RevisionGone {
            profile: profile.clone(),
            generation: revision.0.short(),
            why,
        };
        let restored = self.restore_revision(revision).map_err(gone)?;
        let snapshot = self.env.snapshot();
        let mut images = snapshot.catalog.pinned().to_vec();
        if snapshot.catalog.version(&restored.version).is_none() {
            let image = load_image(&snapshot, &restored.profile.image, &restored.version);
            images.push(image.map_err(|source| RenderError::Image { node: node.id, source })?);
        }
        let layers = self.missing_layers(&snapshot, restored.bundles.values().copied());
        let mut rolled_back = snapshot.rolled_back_profiles().clone();
        rolled_back.insert(profile.clone(), Ok(Arc::new(restored)));
        let then = snapshot.with_rollbacks(rolled_back);
        let then = Arc::new(then.with_archived_contents(images.clone(), layers.clone()));
        let endpoint = self.env.endpoint(node.central_address.unwrap_or(Ipv4Addr::UNSPECIFIED));
        let target = RenderTarget { node: &node, session: None, endpoint };
        let prepare =
            |model: &Model| self.prepare_render(&then, &mut Contexts::new(&then), model, &target);
        let rendered = self.env.store.read(prepare)?.render()?;
        let refused = |source: ArchiveError| RenderError::NotArchived { node: node.id, source };
        self.archive_generation(&rendered).map_err(refused)?;
        self.env.replace_snapshot(snapshot.with_archived_contents(images, layers));
        self.restore_generation(&self.env.snapshot(), &node, rendered.generation)?;
        let archived = self.archived_generation(rendered.generation).map_err(refused)?;
        self.archive.sync(rendered.generation, &archived).map_err(refused)?;
        let now = self.env.now();
        Ok(DeliveredGeneration {
            generation: rendered.generation,
            profile,
            image: rendered.contents.image.clone(),
            version: rendered.version,
            layers: rendered.layers,
            revision: Some(revision),
            delivered_at: now,
            booted_at: None,
            last_at: now,
        })
    }
}
