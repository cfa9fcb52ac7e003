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
    time::Duration,
};
use tokio::sync::{OnceCell, Semaphore};

/// Maximum duration of a render with its wait for a processor. A machine requests its script again
/// after its own timeout, which is shorter.
const DEADLINE: Duration = Duration::from_secs(60);
/// Maximum number of cached overlays, some kilobytes each; the oldest half is removed when the
/// cache is full.
const MAX_CACHED: usize = 4096;

pub(crate) struct Cache {
    inner: Leaf<CacheInner>,
    /// Limits renders to one for each processor. A render beyond its deadline keeps its permit
    /// until it ends.
    permits: Arc<Semaphore>,
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
            permits: Arc::new(Semaphore::new(processors)),
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
        let clock = inner.clock;
        let slot = Arc::new(Slot::new());
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
        let outcome = slot.get_or_init(|| self.make(make, DEADLINE)).await;
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
        deadline: Duration,
    ) -> Result<Rendered, Arc<RenderError>> {
        let rendering = async {
            let permit =
                self.permits.clone().acquire_owned().await.map_err(|_| RenderError::Interrupted)?;
            // Nothing can end a thread, so a deadline leaves it behind.
            let rendering = tokio::task::spawn_blocking(move || {
                let _permit = permit;
                make()
            });
            let rendered = rendering.await.map_err(|_| RenderError::Interrupted)?;
            self.render_count.fetch_add(1, Ordering::Relaxed);
            rendered
        };
        let late = |_| Err(RenderError::Deadline { seconds: deadline.as_secs() });
        tokio::time::timeout(deadline, rendering).await.unwrap_or_else(late).map_err(Arc::new)
    }

    /// Failures are not cached: the next request may succeed.
    fn forget(&self, key: Digest, failed: &Arc<Slot>) {
        let mut inner = self.inner.lock();
        if inner.slots.get(&key).is_some_and(|(_, slot)| Arc::ptr_eq(slot, failed)) {
            inner.slots.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[tokio::test]
    async fn render_beyond_its_deadline_is_an_error_and_keeps_its_permit() {
        let cache = Cache::default();
        let (release, wait) = mpsc::channel::<()>();
        let hangs = move || {
            let _ = wait.recv();
            Err(RenderError::Interrupted)
        };
        let error = cache.make(hangs, Duration::from_millis(1)).await.err().expect("it hangs");
        assert!(matches!(*error, RenderError::Deadline { .. }), "{error}");
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        assert_eq!(cache.permits.available_permits(), processors - 1);
        drop(release);
        let error = cache
            .once(Digest::of(b"key"), || Err(RenderError::Interrupted))
            .await
            .err()
            .expect("another outcome");
        assert!(matches!(*error, RenderError::Interrupted), "{error}");
    }
}
