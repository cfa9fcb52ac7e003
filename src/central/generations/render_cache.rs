//! Caches rendered overlays by the digest of their inputs. Concurrent requests for the same inputs
//! share one render. A cached result returns without waiting.

use super::render::{RenderError, Rendered, count};
use crate::locks::Leaf;
use meshd_types::Digest;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};
use tokio::sync::{OnceCell, Semaphore};

/// Maximum number of cached overlays, some kilobytes each; the oldest half is removed when the
/// cache is full.
const MAX_CACHED: usize = 4096;

pub(crate) struct Cache {
    inner: Leaf<CacheInner>,
    /// Limits renders to one for each processor.
    permits: Semaphore,
    render_count: AtomicU64,
}

#[derive(Default)]
struct CacheInner {
    slots: BTreeMap<Digest, (u64, Arc<Slot>)>,
    clock: u64,
}
/// A render in progress, or its result.
type Slot = OnceCell<Result<Rendered, Arc<RenderError>>>;

impl Default for Cache {
    fn default() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Cache {
            inner: Leaf::default(),
            permits: Semaphore::new(processors),
            render_count: AtomicU64::new(0),
        }
    }
}

impl Cache {
    /// Returns the slot of a key, or creates it.
    fn slot(&self, key: Digest) -> Arc<Slot> {
        let mut inner = self.inner.lock();
        if let Some((_, slot)) = inner.slots.get(&key) {
            return slot.clone();
        }
        inner.clock += 1;
        let (clock, slot) = (inner.clock, Arc::new(Slot::new()));
        inner.slots.insert(key, (clock, slot.clone()));
        if inner.slots.len() > MAX_CACHED {
            let keep_after = clock.saturating_sub(MAX_CACHED as u64 / 2);
            inner.slots.retain(|_, (render_count, _)| *render_count > keep_after);
        }
        slot
    }

    /// Returns the outcome of a key: from the cache, from a render under way, or from a new render.
    pub(crate) async fn once(
        &self,
        key: Digest,
        make: impl FnOnce() -> Result<Rendered, RenderError> + Send + 'static,
    ) -> Result<Rendered, Arc<RenderError>> {
        let slot = self.slot(key);
        if let Some(Ok(rendered)) = slot.get() {
            count("cached");
            return Ok(rendered.clone());
        }
        let outcome = slot.get_or_init(|| self.make(make)).await;
        if outcome.is_err() {
            self.forget(key, &slot);
        }
        outcome.clone()
    }

    /// Number of renders since the start.
    pub(super) fn render_count(&self) -> u64 {
        self.render_count.load(Ordering::Relaxed)
    }

    async fn make(
        &self,
        make: impl FnOnce() -> Result<Rendered, RenderError> + Send + 'static,
    ) -> Result<Rendered, Arc<RenderError>> {
        let interrupted = || Arc::new(RenderError::Interrupted);
        let _permit = self.permits.acquire().await.map_err(|_| interrupted())?;
        let rendered = tokio::task::spawn_blocking(make).await.map_err(|_| interrupted())?;
        self.render_count.fetch_add(1, Ordering::Relaxed);
        rendered.map_err(Arc::new)
    }

    /// Failures are not cached: the next request may succeed.
    fn forget(&self, key: Digest, failed: &Arc<Slot>) {
        let mut inner = self.inner.lock();
        if inner.slots.get(&key).is_some_and(|(_, slot)| Arc::ptr_eq(slot, failed)) {
            inner.slots.remove(&key);
        }
    }
}
