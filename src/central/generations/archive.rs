//! Archives delivered generations, compares them, and restores them for pinned nodes.

use crate::{
    environment::site_snapshot::SiteSnapshot,
    generations::{
        Generations,
        render::{RenderError, RenderTarget, Rendered},
        render_context::Contexts,
    },
    locks::Leaf,
};
use bytes::Bytes;
use meshd_builder::ListKind;
use meshd_image::{
    catalog::{Image, ImageError, Stage1Program, bundle::load_layer, image::load_version},
    overlay::{self, ImageFacts, PublicOverlay},
};
use meshd_model::{
    boot::BootContents,
    fleet::{ARCHIVE_FORMAT, ArchivedFile, ArchivedGeneration, ArchivedKind, Generation, Node},
};
use meshd_store::{ArchiveError, Model};
use meshd_types::{Digest, ImageName};
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

/// Interval of the garbage collection.
const SWEEP_INTERVAL: Duration = Duration::from_secs(60 * 60);

/// Maximum number of queued generations: a rack that powers on at once.
const MAX_WAITING: usize = 16_384;

/// Minimum interval between two lists of images in use: a rack that powers on at once changes the
/// list a thousand times.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(5);

/// Generations that wait for the archive.
#[derive(Default)]
pub(crate) struct PendingArchive {
    generations: Leaf<Vec<Rendered>>,
    /// Whether the list of images in use has changed since its last write, and the time of that
    /// write.
    unpublished: Leaf<(bool, Option<Duration>)>,
}

/// Describes a generation for the archive.
pub(crate) fn archive_entry(rendered: &Rendered) -> ArchivedGeneration {
    let Rendered { overlay, contents, version, stage1, .. } = rendered;
    ArchivedGeneration {
        format: ARCHIVE_FORMAT,
        profile: contents.profile.clone(),
        image: contents.image.clone(),
        version: *version,
        args: contents.args.clone(),
        writable: contents.writable,
        root_mode: contents.root_mode,
        stage1: stage1.as_ref().map(|program| program.digest),
        packages: overlay.packages(),
        overlay: overlay.digest,
        files: overlay.listing(),
    }
}

impl Generations {
    /// Queues a delivered generation. If it cannot be archived, the node boots, but cannot be
    /// pinned to it.
    pub(crate) fn queue_for_archive(&self, rendered: Rendered) {
        let mut waiting = self.pending_archive.generations.lock();
        if waiting.len() < MAX_WAITING {
            waiting.push(rendered);
        } else {
            tracing::warn!(generation = %rendered.generation, "not archived: too many at once");
        }
        drop(waiting);
        self.wake();
    }

    pub(crate) async fn archive_queued(self: &Arc<Self>) {
        let waiting = std::mem::take(&mut *self.pending_archive.generations.lock());
        if waiting.is_empty() {
            return;
        }
        let this = self.clone();
        let work = move || {
            for rendered in &waiting {
                if let Err(error) = this.archive_generation(rendered) {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "cannot archive a generation"
                    );
                }
            }
        };
        drop(tokio::task::spawn_blocking(work).await);
        self.pending_archive.unpublished.lock().0 = true;
    }

    /// Writes a changed list of images in use, at most once in [`PUBLISH_INTERVAL`].
    pub(crate) async fn publish_in_use(self: &Arc<Self>) {
        let now = self.env.monotonic();
        {
            let mut unpublished = self.pending_archive.unpublished.lock();
            if !unpublished.0
                || unpublished.1.is_some_and(|last| now.saturating_sub(last) < PUBLISH_INTERVAL)
            {
                return;
            }
            *unpublished = (false, Some(now));
        }
        self.update_in_use().await;
    }

    pub(super) fn archive_generation(&self, rendered: &Rendered) -> Result<(), ArchiveError> {
        if self.archive.has(rendered.generation) {
            return Ok(());
        }
        let snapshot = self.env.snapshot();
        let programs = snapshot.former_programs.iter().chain([&snapshot.programs]);
        let programs = programs.flat_map(|programs| programs.contents());
        let stage1 = rendered.stage1.iter().map(|program| (program.digest, &*program.bytes));
        let contents = rendered.overlay.contents().chain(programs).chain(stage1);
        self.archive.put(rendered.generation, &archive_entry(rendered), contents)
    }

    /// True if a generation can be compared and restored.
    pub(crate) fn is_archived(&self, generation: Generation) -> bool {
        self.archive.has(generation)
    }

    /// Reads an archived generation. Blocks.
    pub(crate) fn archived_generation(
        &self,
        generation: Generation,
    ) -> Result<ArchivedGeneration, ArchiveError> {
        self.archive.get(generation)
    }

    /// Restores an archived generation of a node, and verifies its digest. Blocks.
    pub(crate) fn restore_generation(
        self: &Arc<Self>,
        snapshot: &Arc<SiteSnapshot>,
        node: &Node,
        generation: Generation,
    ) -> Result<Rendered, RenderError> {
        let refused = |source| RenderError::NotArchived { node: node.id, source };
        let archived = self.archive.get(generation).map_err(refused)?;
        // Secrets are never archived: their present files are used.
        let secret = archived.files.iter().find(|file| file.kind == ArchivedKind::Secret);
        let current = secret.map(|_| self.unpinned(snapshot, node)).transpose()?;
        let same = |file: &&ArchivedFile| {
            let files = current.iter().flat_map(|current| &current.files);
            files.into_iter().any(|it| it.path == file.path && it.digest == file.digest)
        };
        let secrets = || archived.files.iter().filter(|file| file.kind == ArchivedKind::Secret);
        if let Some(other) = secrets().find(|file| !same(file)) {
            let generation = generation.0.short();
            let path = other.path.to_string();
            return Err(refused(ArchiveError::Secret { generation, path }));
        }
        let gone = || RenderError::ImageMissing {
            image: archived.image.clone(),
            version: archived.version.short(),
            node: node.id,
        };
        let image = snapshot.catalog.version(&archived.version).ok_or_else(gone)?;
        let content = |digest: &Digest| self.archive.content(generation, digest);
        let overlay = PublicOverlay::restore(
            &archived.files,
            &snapshot.programs,
            current.as_deref(),
            content,
        )
        .map_err(refused)?;
        let stage1 = archived.stage1.map(|digest| {
            let current = snapshot.catalog.stage1().filter(|program| program.digest == digest);
            let archived = || Ok(Stage1Program { digest, bytes: content(&digest)? });
            current.cloned().map_or_else(archived, Ok)
        });
        let stage1 = stage1.transpose().map_err(refused)?;
        let facts = ImageFacts {
            name: archived.image.clone(),
            stage1: archived.stage1,
            ..ImageFacts::from_manifest(&image.manifest)
        };
        let contents = BootContents {
            profile: archived.profile,
            image: archived.image,
            architecture: image.manifest.arch,
            kind: image.manifest.parts.clone(),
            args: archived.args,
            writable: archived.writable,
            root_mode: archived.root_mode,
        };
        if overlay::generation(&facts, overlay.digest, &contents) != generation {
            let what = "it does not have the digest that it is named by".to_owned();
            return Err(refused(ArchiveError::Damaged { generation: generation.0.short(), what }));
        }
        let layers = self.layers_of(node, generation);
        if let Some(layer) = layers.iter().find(|layer| snapshot.catalog.layer(layer).is_none()) {
            return Err(RenderError::LayerMissing { layer: layer.short(), node: node.id });
        }
        Ok(Rendered {
            overlay: Arc::new(overlay),
            generation,
            contents: Arc::new(contents),
            version: archived.version,
            stage1,
            layers,
        })
    }

    /// The layers of the bundles of a delivered generation.
    fn layers_of(&self, node: &Node, generation: Generation) -> Vec<Digest> {
        let given = |model: &Model| {
            model.history(node.id)?.get(generation).map(|given| given.layers.clone())
        };
        self.env.store.read(given).unwrap_or_default()
    }

    /// Renders the next boot of a node without its pin. Blocks.
    fn unpinned(
        self: &Arc<Self>,
        snapshot: &Arc<SiteSnapshot>,
        node: &Node,
    ) -> Result<Arc<PublicOverlay>, RenderError> {
        let endpoint = self.env.endpoint(node.central_address.unwrap_or(Ipv4Addr::UNSPECIFIED));
        let target = RenderTarget { node, session: None, endpoint };
        let prepare = |model: &Model| {
            self.prepare_render(snapshot, &mut Contexts::new(snapshot), model, &target)
        };
        Ok(self.env.store.read(prepare)?.render()?.overlay)
    }

    /// Restores a pinned generation on another thread, once for concurrent requests.
    pub(crate) async fn pinned(
        self: &Arc<Self>,
        snapshot: &Arc<SiteSnapshot>,
        node: &Node,
        generation: Generation,
    ) -> Result<Rendered, Arc<RenderError>> {
        let key = Digest::of_fields([b"pinned".as_slice(), generation.0.0.as_slice()]);
        let this = self.clone();
        let snapshot = snapshot.clone();
        let node = node.clone();
        self.renders.once(key, move || this.restore_generation(&snapshot, &node, generation)).await
    }

    /// Prepares a pin: adds the image and layers of a generation to the snapshot, and flushes the
    /// generation to the disk.
    pub(crate) async fn prepare_pin(
        self: &Arc<Self>,
        node: Node,
        generation: Generation,
    ) -> Result<(), RenderError> {
        // A concurrent reload would replace the catalog that receives the image.
        let _one = self.reloading.lock().await;
        let this = self.clone();
        let prepared =
            tokio::task::spawn_blocking(move || this.prepare_pin_blocking(&node, generation));
        prepared.await.map_err(|_| RenderError::Interrupted)?
    }

    fn prepare_pin_blocking(
        self: &Arc<Self>,
        node: &Node,
        generation: Generation,
    ) -> Result<(), RenderError> {
        let refused = |source| RenderError::NotArchived { node: node.id, source };
        let archived = self.archive.get(generation).map_err(refused)?;
        let snapshot = self.env.snapshot();
        let mut served = snapshot.catalog.pinned().to_vec();
        if snapshot.catalog.version(&archived.version).is_none() {
            let image = load_image(&snapshot, &archived.image, &archived.version);
            served.push(image.map_err(|source| RenderError::Image { node: node.id, source })?);
        }
        let layers = self.missing_layers(&snapshot, self.layers_of(node, generation));
        self.env.replace_snapshot(snapshot.with_archived_contents(served, layers));
        self.restore_generation(&self.env.snapshot(), node, generation)?;
        self.archive.sync(generation, &archived).map_err(refused)
    }

    /// Versions of images of pinned and tethered nodes, and of rolled back profiles, that are no
    /// longer current. Blocks.
    pub(crate) fn archived_images(&self, snapshot: &SiteSnapshot) -> Vec<Image> {
        // A generation that a node runs, if the version of its image is not current.
        let former = |node: &Node, model: &Model| {
            let running = model.history(node.id)?.get(node.booted?)?;
            let is_served = snapshot.catalog.version(&running.version).is_some();
            (!is_served).then_some(running.generation)
        };
        let (pinned, former) = self.env.store.read(|model| {
            let pinned = model.nodes().filter_map(|node| node.pinned);
            let former = model.nodes().filter_map(|node| former(node, model));
            (pinned.collect::<BTreeSet<_>>(), former.collect::<BTreeSet<_>>())
        });
        let archived = |generation| self.archive.get(generation).ok();
        let pinned = pinned.into_iter().filter_map(archived);
        let tethered = former.into_iter().filter_map(archived);
        let tethered = tethered.filter(|running| !running.root_mode.is_ram());
        let rolled_back = snapshot.rolled_back_profiles().values().flatten();
        let mut versions: BTreeMap<Digest, ImageName> = rolled_back
            .map(|revision| (revision.version, revision.profile.image.clone()))
            .collect();
        versions.extend(pinned.chain(tethered).map(|archived| (archived.version, archived.image)));
        versions.retain(|version, _| snapshot.catalog.version(version).is_none());
        let load = |(version, name): (&Digest, &ImageName)| match load_image(
            snapshot, name, version,
        ) {
            Ok(image) => Some(image),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(
                    error,
                    "the image of a pinned or tethered node, or of a rolled back profile, is missing"
                );
                None
            }
        };
        versions.iter().filter_map(load).collect()
    }

    /// Layers of bundles of pinned nodes and rolled back profiles that are no longer current.
    /// Blocks.
    pub(crate) fn pinned_layers(&self, snapshot: &SiteSnapshot) -> BTreeMap<Digest, Bytes> {
        let pinned = |node: &Node, model: &Model| {
            Some(model.history(node.id)?.get(node.pinned?)?.layers.clone())
        };
        let pinned = self
            .env
            .store
            .read(|model| model.nodes().filter_map(|node| pinned(node, model)).collect::<Vec<_>>());
        let rolled_back = snapshot.rolled_back_profiles().values().flatten();
        let rolled_back = rolled_back.flat_map(|revision| revision.bundles.values().copied());
        self.missing_layers(snapshot, pinned.into_iter().flatten().chain(rolled_back))
    }

    pub(super) fn missing_layers(
        &self,
        snapshot: &SiteSnapshot,
        layers: impl IntoIterator<Item = Digest>,
    ) -> BTreeMap<Digest, Bytes> {
        let layers: BTreeSet<Digest> = layers.into_iter().collect();
        let absent = layers.into_iter().filter(|layer| snapshot.catalog.layer(layer).is_none());
        let load = |layer: Digest| match load_layer(&snapshot.site.blobs_dir, &layer) {
            Ok(bytes) => Some((layer, bytes)),
            Err(error) => {
                tracing::error!(error, "a layer of a pinned generation is missing");
                None
            }
        };
        absent.filter_map(load).collect()
    }

    /// Runs the garbage collection when it is due, and writes the list of images in use.
    pub(crate) async fn sweep(self: &Arc<Self>) {
        if !self.archive_sweeps.is_due(self.env.monotonic(), SWEEP_INTERVAL) {
            return;
        }
        let this = self.clone();
        let swept = tokio::task::spawn_blocking(move || {
            let gone = this.archive.sweep(|| this.env.store.read(required_generations))?;
            this.write_in_use();
            Ok::<_, ArchiveError>(gone)
        });
        match swept.await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(gone)) => tracing::info!(gone, "removed generations that no node needs"),
            Ok(Err(error)) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot sweep generations")
            }
        }
    }

    /// Runs [`Generations::write_in_use`] on another thread.
    pub(crate) async fn update_in_use(self: &Arc<Self>) {
        let this = self.clone();
        drop(tokio::task::spawn_blocking(move || this.write_in_use()).await);
    }

    /// Writes the list of versions of images and bundles for `meshd image prune`: those that nodes
    /// run, boot or are pinned to, and those of rolled back profiles. Blocks.
    pub(crate) fn write_in_use(&self) {
        let snapshot = self.env.snapshot();
        let site = &snapshot.site;
        let rolled_back = snapshot.rolled_back_profiles().values().flatten();
        let rolled_back = rolled_back
            .flat_map(|revision| revision.bundles.values().copied().chain([revision.version]));
        let mut versions = self.env.store.read(|model| {
            let of = |node: &Node| {
                let history = model.history(node.id);
                let needed = [node.booted, node.generation, node.pinned].into_iter().flatten();
                let given = needed.filter_map(move |generation| history?.get(generation));
                given
                    .flat_map(|given| given.layers.iter().copied().chain([given.version]))
                    .collect::<Vec<Digest>>()
            };
            model.nodes().flat_map(of).collect::<BTreeSet<_>>()
        });
        versions.extend(rolled_back);
        let written = self.env.list_owner().map_err(Into::into).and_then(|owner| {
            owner
                .declare(&site.blobs_dir, ListKind::Versions, &versions)
                .map_err(Box::<dyn std::error::Error>::from)
        });
        if let Err(error) = written {
            tracing::warn!(error = &*error, "cannot write the list of images in use");
        }
    }
}

/// Reads a version of an image that is not in the catalog.
pub(super) fn load_image(
    snapshot: &SiteSnapshot,
    name: &ImageName,
    version: &Digest,
) -> Result<Image, ImageError> {
    let blobs = &snapshot.site.blobs_dir;
    Image::load(blobs, load_version(blobs, name, version)?)
}

/// Generations that are never collected: what nodes run, are pinned to and would boot, and the
/// newest of each node.
fn required_generations(model: &Model) -> BTreeSet<Generation> {
    let mut needed = BTreeSet::new();
    for node in model.nodes() {
        needed.extend([node.booted, node.pinned, node.generation].into_iter().flatten());
        needed.extend(model.history(node.id).into_iter().flat_map(|history| history.newest()));
    }
    // What a node returns to if it fails.
    let open = model.open_rollouts().flat_map(|id| model.rollout_nodes(id).values());
    needed.extend(open.filter_map(|record| record.before.as_ref()?.booted));
    let open = model.bisections().filter(|bisection| !bisection.state.is_final());
    needed.extend(open.flat_map(|bisection| bisection.before.values()).filter_map(|it| it.booted));
    needed
}
