//! Rendering: the public overlay of a node and its generation, made once for the same input.
//!
//! Whoever asks for what is being made waits for that one; whoever asks for what was made is not kept waiting by others' renders,
//! which take their turns on threads of their own.

use super::{Central, Shared, lock};
use crate::boot::{self, Endpoint, ImageParts};
use crate::catalog::{Catalog, Image};
use crate::config::Profile;
use crate::fleet::{Generation, Node};
use crate::id::{Digest, ProfileName};
use crate::overlay::{self, ImageFacts, NodeContext, PublicOverlay, RenderFaults, RenderInput};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::available_parallelism,
};
use tokio::sync::{OnceCell, Semaphore};

/// Rendered overlays kept; the oldest half goes when it is full. One takes some kilobytes beside the shared agent member.
const MAX_CACHED: usize = 4096;

/// Rendered overlays by the digest of what determines them.
pub(super) struct Cache {
    inner: Mutex<CacheInner>,
    /// One render for each processor; more would only slow down everything else.
    turns: Semaphore,
    made: AtomicU64,
}

#[derive(Default)]
struct CacheInner {
    slots: BTreeMap<Digest, (u64, Arc<Slot>)>,
    clock: u64,
}

/// A render that is under way, or its outcome.
type Slot = OnceCell<Result<Rendered, Arc<RenderError>>>;

/// A node's next boot: everything public of it.
#[derive(Clone)]
pub struct Rendered {
    /// The public part of its overlay.
    pub overlay: Arc<PublicOverlay>,
    /// The digest of everything public.
    pub generation: Generation,
    /// The profile that it was made for.
    pub profile: ProfileName,
}

/// What a script promised; the overlay of its session must keep it.
pub(super) type Promise = Rendered;

/// Why nothing was rendered.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    /// The site has no such profile any more.
    #[error("profile `{profile}` is not in the site; assign another one")]
    NoProfile {
        /// Which.
        profile: String,
    },
    /// The image is not built, or damaged.
    #[error("image `{image}` cannot be served; run `meshd image build {image}`")]
    NoImage {
        /// Which.
        image: String,
    },
    /// The overlays have faults.
    #[error("the overlays of profile `{profile}` cannot be rendered")]
    Faults {
        /// Which.
        profile: String,
        /// All of them.
        source: RenderFaults,
    },
    /// The thread that rendered has panicked.
    #[error("rendering was interrupted; this is a fault of meshd, its log says where")]
    Interrupted,
}

/// Everything that a render is made from, held for as long as it takes.
struct Job {
    central: Shared,
    catalog: Arc<Catalog>,
    node: NodeContext,
    profile: ProfileName,
    facts: ImageFacts,
    endpoint: Endpoint,
}

impl Central {
    /// Renders what this node would boot now, or waits for somebody who does.
    ///
    /// # Errors
    /// The site, the image or the overlays do not allow it. Shared by all who asked at that time; the next one tries anew.
    pub async fn render(self: &Shared, node: &Node, endpoint: Endpoint) -> Result<Rendered, Arc<RenderError>> {
        if let Some(missing) = node.profile.as_ref().filter(|name| !self.site.profiles.contains_key(*name)) {
            return Err(Arc::new(RenderError::NoProfile { profile: missing.to_string() }));
        }
        let profile = boot::effective_profile(&self.site, node);
        let catalog = self.catalog();
        let image = catalog.image(&profile.image);
        let image = image.ok_or_else(|| RenderError::NoImage { image: profile.image.to_string() })?;
        let facts = ImageFacts::of(&image.manifest);
        let key = key(&catalog, &facts, profile, node, endpoint);
        let slot = self.renders.slot(key);
        if let Some(Ok(rendered)) = slot.get() {
            count("cached");
            return Ok(rendered.clone());
        }
        let job = Job {
            central: self.clone(),
            node: NodeContext::new(node.id, Some(node.name.clone())),
            profile: profile.name.clone(),
            facts,
            endpoint,
            catalog,
        };
        let outcome = slot.get_or_init(|| self.renders.make(job)).await;
        if outcome.is_err() {
            self.renders.forget(key, &slot);
        }
        outcome.clone()
    }

    /// Renders made since the start: each different one counts once.
    pub fn renders_made(&self) -> u64 {
        self.renders.made.load(Ordering::Relaxed)
    }
}

/// What became of a wish for a render.
fn count(result: &'static str) {
    metrics::counter!("meshd_renders_total", "result" => result).increment(1);
}

fn key(catalog: &Catalog, facts: &ImageFacts, profile: &Profile, node: &Node, endpoint: Endpoint) -> Digest {
    Digest::of_fields([
        catalog.overlays_digest().0.as_slice(),
        facts.manifest.0.as_slice(),
        profile.name.as_str().as_bytes(),
        node.id.to_string().as_bytes(),
        node.name.as_bytes(),
        endpoint.address.octets().as_slice(),
    ])
}

impl Job {
    fn run(&self) -> Result<Rendered, RenderError> {
        let begun = self.central.clock.monotonic();
        let outcome = self.render();
        let took = self.central.clock.monotonic().saturating_sub(begun);
        metrics::histogram!("meshd_render_seconds").record(took.as_secs_f64());
        count(if outcome.is_ok() { "rendered" } else { "failed" });
        outcome
    }

    fn render(&self) -> Result<Rendered, RenderError> {
        let Job { central, catalog, node, profile, facts, endpoint } = self;
        let site = &central.site;
        let no_profile = || RenderError::NoProfile { profile: profile.to_string() };
        let profile = site.profiles.get(profile).ok_or_else(no_profile)?;
        let no_image = || RenderError::NoImage { image: profile.image.to_string() };
        let image = catalog.image(&profile.image).ok_or_else(no_image)?;
        let input = RenderInput {
            site,
            profile,
            overlays: catalog.overlays(),
            node,
            central: endpoint.address,
            ca_pem: central.authority.certificate_pem(),
            agent: &central.agent,
            image: facts,
        };
        let public = overlay::render_public(&input)
            .map_err(|source| RenderError::Faults { profile: profile.name.to_string(), source })?;
        let args = boot::kernel_args(site, profile, image_parts(image).arch);
        let generation = overlay::generation(facts, public.digest, profile, &args);
        Ok(Rendered { overlay: Arc::new(public), generation, profile: profile.name.clone() })
    }
}

/// What the script has to know of an image.
pub(super) fn image_parts(image: &Image) -> ImageParts {
    let parts = &image.manifest.parts;
    ImageParts {
        arch: image.manifest.arch,
        kernel: parts.kernel.digest,
        initramfs: parts.initramfs.digest,
        packages: parts.packages.digest,
        modloop: parts.modloop.digest,
    }
}

impl Default for Cache {
    fn default() -> Self {
        let processors = available_parallelism().map_or(1, usize::from);
        Cache { inner: Mutex::default(), turns: Semaphore::new(processors), made: AtomicU64::new(0) }
    }
}

impl Cache {
    /// The slot of a key, a new one if need be.
    fn slot(&self, key: Digest) -> Arc<Slot> {
        let mut inner = lock(&self.inner);
        if let Some((_, slot)) = inner.slots.get(&key) {
            return slot.clone();
        }
        inner.clock += 1;
        let (clock, slot) = (inner.clock, Arc::new(Slot::new()));
        inner.slots.insert(key, (clock, slot.clone()));
        if inner.slots.len() > MAX_CACHED {
            let keep_after = clock.saturating_sub(MAX_CACHED as u64 / 2);
            inner.slots.retain(|_, (made, _)| *made > keep_after);
        }
        slot
    }

    async fn make(&self, job: Job) -> Result<Rendered, Arc<RenderError>> {
        let interrupted = || Arc::new(RenderError::Interrupted);
        let _turn = self.turns.acquire().await.map_err(|_| interrupted())?;
        let rendered = tokio::task::spawn_blocking(move || job.run()).await.map_err(|_| interrupted())?;
        self.made.fetch_add(1, Ordering::Relaxed);
        rendered.map_err(Arc::new)
    }

    /// A failure is not kept: what was wrong may be right at the next request.
    fn forget(&self, key: Digest, failed: &Arc<Slot>) {
        let mut inner = lock(&self.inner);
        if inner.slots.get(&key).is_some_and(|(_, slot)| Arc::ptr_eq(slot, failed)) {
            inner.slots.remove(&key);
        }
    }
}
