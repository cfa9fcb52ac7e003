//! Archives the generations that nodes were given, compares them, and boots them again.

use crate::{
    environment::site_snapshot::SiteSnapshot,
    generations::{
        Generations,
        render::{RenderError, Rendered, image_parts},
        render_context::Contexts,
    },
    locks::Leaf,
};
use bytes::Bytes;
use meshd_image::{
    builder::declare_in_use,
    catalog::{Image, bundle::load_layer, image::load_version},
    overlay::{self, ImageFacts, PublicOverlay},
};
use meshd_model::{
    boot::BootContents,
    fleet::{ARCHIVE_FORMAT, ArchivedFile, ArchivedGeneration, ArchivedKind, Generation, Node},
};
use meshd_store::{ArchiveError, Model};
use meshd_types::Digest;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    sync::Arc,
    time::Duration,
};

/// Interval of the garbage collection.
const SWEEP_EVERY: Duration = Duration::from_secs(60 * 60);

/// Generations that wait to be kept, at most: a rack that powers on at once.
const MAX_WAITING: usize = 16_384;

/// Minimum interval between two lists of images in use: a rack that powers on at once changes the list a thousand times.
const PUBLISH_INTERVAL: Duration = Duration::from_secs(5);

/// Generations that wait to be kept.
#[derive(Default)]
pub(crate) struct PendingArchive {
    generations: Leaf<Vec<Rendered>>,
    /// Whether the list of images in use has changed since it was written last, and the time of that write.
    unpublished: Leaf<(bool, Option<Duration>)>,
}

/// A generation as it is kept.
pub(crate) fn kept(rendered: &Rendered) -> ArchivedGeneration {
    let Rendered { overlay, what, version, .. } = rendered;
    ArchivedGeneration {
        format: ARCHIVE_FORMAT,
        profile: what.profile.clone(),
        image: what.image.clone(),
        version: *version,
        args: what.args.clone(),
        packages: overlay.packages(),
        overlay: overlay.digest,
        files: overlay.listing(),
    }
}

impl Generations {
    /// A node was given this: it is kept soon. If it cannot be, the node boots all the same, and cannot be pinned to it.
    pub(crate) fn keep(&self, rendered: Rendered) {
        let mut waiting = self.to_keep.generations.lock();
        if waiting.len() < MAX_WAITING {
            waiting.push(rendered);
        } else {
            tracing::warn!(generation = %rendered.generation, "not kept: too many at once");
        }
        drop(waiting);
        self.wake();
    }

    /// Keeps everything that waits for it.
    pub(crate) async fn keep_waiting(self: &Arc<Self>) {
        let waiting = std::mem::take(&mut *self.to_keep.generations.lock());
        if waiting.is_empty() {
            return;
        }
        let this = self.clone();
        let work = move || {
            for rendered in &waiting {
                if let Err(error) = this.put_kept(rendered) {
                    tracing::warn!(error = &error as &dyn std::error::Error, "a generation is not kept");
                }
            }
        };
        drop(tokio::task::spawn_blocking(work).await);
        self.to_keep.unpublished.lock().0 = true;
    }

    /// Writes the list of images in use, if it has changed and was not written a moment ago.
    pub(crate) async fn publish_in_use(self: &Arc<Self>) {
        let now = self.env.monotonic();
        {
            let mut unpublished = self.to_keep.unpublished.lock();
            if !unpublished.0 || unpublished.1.is_some_and(|last| now.saturating_sub(last) < PUBLISH_INTERVAL) {
                return;
            }
            *unpublished = (false, Some(now));
        }
        self.update_in_use().await;
    }

    fn put_kept(&self, rendered: &Rendered) -> Result<(), ArchiveError> {
        if self.kept.has(rendered.generation) {
            return Ok(());
        }
        let live = self.env.live();
        let agents = live.former_agent.iter().chain([&live.agent]);
        let contents = rendered.overlay.contents().chain(agents.map(|agent| (agent.digest(), agent.bytes())));
        self.kept.put(rendered.generation, &kept(rendered), contents)
    }

    /// Whether a generation can be compared, and booted again.
    pub(crate) fn is_kept(&self, generation: Generation) -> bool {
        self.kept.has(generation)
    }

    /// A generation as it was kept. Blocks.
    pub(crate) fn kept_generation(&self, generation: Generation) -> Result<ArchivedGeneration, ArchiveError> {
        self.kept.get(generation)
    }

    /// A generation of a node as it was, to be booted again: compared with its digest in every part. Blocks.
    pub(crate) fn bring_back(
        self: &Arc<Self>,
        live: &Arc<SiteSnapshot>,
        node: &Node,
        generation: Generation,
    ) -> Result<Rendered, RenderError> {
        let refused = |source| RenderError::NotKept { node: node.id, source };
        let kept = self.kept.get(generation).map_err(refused)?;
        // Secrets are never archived: their present files are used.
        let secret = kept.files.iter().find(|file| file.kind == ArchivedKind::Secret);
        let now = secret.map(|_| self.unpinned(live, node)).transpose()?;
        let same = |file: &&ArchivedFile| {
            let files = now.iter().flat_map(|now| &now.files);
            files.into_iter().any(|it| it.path == file.path && it.digest == file.digest)
        };
        let secrets = || kept.files.iter().filter(|file| file.kind == ArchivedKind::Secret);
        if let Some(other) = secrets().find(|file| !same(file)) {
            let (generation, path) = (generation.0.short(), other.path.to_string());
            return Err(refused(ArchiveError::Secret { generation, path }));
        }
        let gone =
            || RenderError::ImageGone { image: kept.image.clone(), version: kept.version.short(), node: node.id };
        let image = live.catalog.version(&kept.version).ok_or_else(gone)?;
        let content = |digest: &Digest| self.kept.content(generation, digest);
        let overlay = PublicOverlay::restore(&kept.files, &live.agent, now.as_deref(), content).map_err(refused)?;
        let facts = ImageFacts { name: kept.image.clone(), ..ImageFacts::of(&image.manifest) };
        if overlay::generation(&facts, overlay.digest, &kept.profile, &kept.args) != generation {
            let what = "it does not have the digest that it is named by".to_owned();
            return Err(refused(ArchiveError::Damaged { generation: generation.0.short(), what }));
        }
        let layers = self.layers_of(node, generation);
        if let Some(layer) = layers.iter().find(|layer| live.catalog.layer(layer).is_none()) {
            return Err(RenderError::LayerGone { layer: layer.short(), node: node.id });
        }
        let what =
            BootContents { profile: kept.profile, image: kept.image, parts: image_parts(image), args: kept.args };
        Ok(Rendered { overlay: Arc::new(overlay), generation, what: Arc::new(what), version: kept.version, layers })
    }

    /// The layers of the bundles that a node was given with a generation.
    fn layers_of(&self, node: &Node, generation: Generation) -> Vec<Digest> {
        let given = |model: &Model| model.history(node.id)?.get(generation).map(|given| given.layers.clone());
        self.env.store.read(given).unwrap_or_default()
    }

    /// Renders the next boot of a node without its pin. Blocks.
    fn unpinned(self: &Arc<Self>, live: &Arc<SiteSnapshot>, node: &Node) -> Result<Arc<PublicOverlay>, RenderError> {
        let endpoint = self.env.endpoint(node.told.unwrap_or(Ipv4Addr::UNSPECIFIED));
        let prepared = self
            .env
            .store
            .read(|model| self.prepare_render(live, &mut Contexts::new(live), model, node, (None, endpoint)))?;
        Ok(prepared.render()?.overlay)
    }

    /// The same, on a thread of its own and once for all that ask.
    pub(crate) async fn pinned(
        self: &Arc<Self>,
        live: &Arc<SiteSnapshot>,
        node: &Node,
        generation: Generation,
    ) -> Result<Rendered, Arc<RenderError>> {
        let key = Digest::of_fields([b"pinned".as_slice(), generation.0.0.as_slice()]);
        let (this, live, node) = (self.clone(), live.clone(), node.clone());
        self.renders.once(key, move || this.bring_back(&live, &node, generation)).await
    }

    /// Makes sure that a node can boot a generation from now on, whatever happens: all of it is there and on the disk.
    pub(crate) async fn hold(self: &Arc<Self>, node: Node, generation: Generation) -> Result<(), RenderError> {
        // A reload would put another catalog in place of the one that gets the image.
        let _one = self.reloading.lock().await;
        let this = self.clone();
        let hold = tokio::task::spawn_blocking(move || this.hold_now(&node, generation));
        hold.await.map_err(|_| RenderError::Interrupted)?
    }

    fn hold_now(self: &Arc<Self>, node: &Node, generation: Generation) -> Result<(), RenderError> {
        let refused = |source| RenderError::NotKept { node: node.id, source };
        let kept = self.kept.get(generation).map_err(refused)?;
        let live = self.env.live();
        let mut served = live.catalog.kept().to_vec();
        if live.catalog.version(&kept.version).is_none() {
            served.push(load_kept(&live, &kept).map_err(|source| RenderError::Image { node: node.id, source })?);
        }
        let layers = self.missing_layers(&live, self.layers_of(node, generation));
        self.env.replace_live(live.with_kept(served, layers));
        self.bring_back(&self.env.live(), node, generation)?;
        self.kept.sync(generation, &kept).map_err(refused)
    }

    /// Versions of images that pinned nodes boot and that are not current any more. Blocks.
    pub(crate) fn kept_images(&self, live: &SiteSnapshot) -> Vec<Image> {
        let pinned = self.env.store.read(|model| model.nodes().filter_map(|node| node.pinned).collect::<BTreeSet<_>>());
        let mut images: BTreeMap<Digest, Image> = BTreeMap::new();
        for generation in pinned {
            let Ok(kept) = self.kept.get(generation) else { continue };
            if images.contains_key(&kept.version) || live.catalog.version(&kept.version).is_some() {
                continue;
            }
            match load_kept(live, &kept) {
                Ok(image) => drop(images.insert(kept.version, image)),
                Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "a pinned image is gone"),
            }
        }
        images.into_values().collect()
    }

    /// Layers of bundles that pinned nodes mount and held profiles name and that are not current any more. Blocks.
    pub(crate) fn kept_layers(&self, live: &SiteSnapshot) -> BTreeMap<Digest, Bytes> {
        let pinned = |node: &Node, model: &Model| Some(model.history(node.id)?.get(node.pinned?)?.layers.clone());
        let pinned =
            self.env.store.read(|model| model.nodes().filter_map(|node| pinned(node, model)).collect::<Vec<_>>());
        let held = live.all_held().values().flatten().flat_map(|held| held.bundles.values().copied());
        self.missing_layers(live, pinned.into_iter().flatten().chain(held))
    }

    fn missing_layers(&self, live: &SiteSnapshot, wanted: impl IntoIterator<Item = Digest>) -> BTreeMap<Digest, Bytes> {
        let wanted: BTreeSet<Digest> = wanted.into_iter().collect();
        let absent = wanted.into_iter().filter(|layer| live.catalog.layer(layer).is_none());
        let load = |layer: Digest| match load_layer(&live.site.blobs_dir, &layer) {
            Ok(bytes) => Some((layer, bytes)),
            Err(error) => {
                tracing::error!(error, "a layer that is kept for nodes is gone");
                None
            }
        };
        absent.filter_map(load).collect()
    }

    /// Runs the garbage collection when it is due, and writes the list of images in use.
    pub(crate) async fn sweep(self: &Arc<Self>) {
        let now = self.env.monotonic();
        {
            let mut swept = self.swept.lock();
            if swept.is_some_and(|last| now.saturating_sub(last) < SWEEP_EVERY) {
                return;
            }
            *swept = Some(now);
        }
        let this = self.clone();
        let swept = tokio::task::spawn_blocking(move || {
            let gone = this.kept.sweep(|| this.env.store.read(needed))?;
            this.write_in_use();
            Ok::<_, ArchiveError>(gone)
        });
        match swept.await {
            Ok(Ok(0)) | Err(_) => {}
            Ok(Ok(gone)) => tracing::info!(gone, "generations that no node needs were thrown away"),
            Ok(Err(error)) => tracing::warn!(error = &error as &dyn std::error::Error, "cannot sweep generations"),
        }
    }

    /// The same as [`Generations::write_in_use`], on a thread of its own.
    pub(crate) async fn update_in_use(self: &Arc<Self>) {
        let this = self.clone();
        drop(tokio::task::spawn_blocking(move || this.write_in_use()).await);
    }

    /// Names the versions of images and bundles that nodes run, boot or are pinned to and that profiles are rolled back to, where
    /// `meshd image prune` looks. Blocks.
    pub(crate) fn write_in_use(&self) {
        let live = self.env.live();
        let site = &live.site;
        let held = live.all_held().values().flatten();
        let held = held.flat_map(|held| held.bundles.values().copied().chain([held.version]));
        let mut versions = self.env.store.read(|model| {
            let of = |node: &Node| {
                let history = model.history(node.id);
                let needed = [node.booted, node.generation, node.pinned].into_iter().flatten();
                let given = needed.filter_map(move |generation| history?.get(generation));
                given.flat_map(|given| given.layers.iter().copied().chain([given.version])).collect::<Vec<Digest>>()
            };
            model.nodes().flat_map(of).collect::<BTreeSet<_>>()
        });
        versions.extend(held);
        if let Err(error) = declare_in_use(&site.blobs_dir, &site.name, &versions) {
            tracing::warn!(error = &error as &dyn std::error::Error, "cannot say which images are in use");
        }
    }
}

fn load_kept(live: &SiteSnapshot, kept: &ArchivedGeneration) -> Result<Image, meshd_image::catalog::ImageError> {
    let blobs = &live.site.blobs_dir;
    Image::load(blobs, load_version(blobs, &kept.image, &kept.version)?)
}

/// Generations that are never collected: what nodes run, are pinned to and would boot, and the newest of each node.
fn needed(model: &Model) -> BTreeSet<Generation> {
    let mut needed = BTreeSet::new();
    for node in model.nodes() {
        needed.extend([node.booted, node.pinned, node.generation].into_iter().flatten());
        needed.extend(model.history(node.id).into_iter().flat_map(|history| history.newest()));
    }
    needed
}
