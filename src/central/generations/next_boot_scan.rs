//! Determines what each node would boot now, after a reload, an order, or a new link.
//!
//! The scan renders without packing, on all processors, and skips what has not changed. A batch of
//! nodes is one commit.

use crate::{
    environment::site_snapshot::SiteSnapshot,
    generations::{
        Generations,
        render::{PreparedRender, RenderError, RenderTarget},
        render_context::Contexts,
    },
    locks::Leaf,
};
use meshd_model::fleet::{Actor, Event, Generation, NextBoot, Node, update_boot_conditions};
use meshd_store::{Model, StoreError};
use meshd_types::{Digest, NodeId, ProfileName};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::available_parallelism,
};
use tokio::sync::Notify;

/// Number of nodes of one commit.
const BATCH: usize = 512;
/// Maximum number of cached results, some 100 bytes each: three times the largest rack.
const MAX_KNOWN: usize = 32_768;

/// Nodes to scan, and cached results.
#[derive(Default)]
pub(crate) struct ScanQueue {
    nodes: Leaf<BTreeSet<NodeId>>,
    wake: Notify,
    known: Leaf<BTreeMap<Digest, Generation>>,
    /// Number of results that were rendered.
    rendered: AtomicU64,
}

/// How the next boot of a node is determined.
enum NextBootSource {
    Known(NextBoot),
    Render(Box<PreparedRender>, ProfileName),
}

impl Generations {
    /// Marks a node for the next scan: an input of its boot changed.
    pub(crate) fn scan_soon(&self, node: NodeId) {
        self.scan_queue.nodes.lock().insert(node);
        self.scan_queue.wake.notify_one();
    }

    /// True if a node is marked for the next scan.
    pub(crate) fn is_stale(&self, node: NodeId) -> bool {
        self.scan_queue.nodes.lock().contains(&node)
    }

    /// Marks all nodes for the next scan.
    pub(crate) fn scan_all(&self) {
        let all: Vec<NodeId> =
            self.env.store.read(|model| model.nodes().map(|node| node.id).collect());
        self.scan_queue.nodes.lock().extend(all);
        self.scan_queue.wake.notify_one();
    }

    pub(crate) fn wake(&self) {
        self.scan_queue.wake.notify_one();
    }

    /// Waits until [`Generations::run_background_work`] is needed.
    pub async fn wait_for_background_work(&self) {
        self.scan_queue.wake.notified().await;
    }

    /// Scans all marked nodes. Returns their number.
    pub async fn scan_stale(self: &Arc<Self>) -> usize {
        let mut scanned = 0;
        loop {
            let batch: Vec<NodeId> = {
                let mut scan_queue = self.scan_queue.nodes.lock();
                let batch = scan_queue.iter().take(BATCH).copied().collect::<Vec<_>>();
                for id in &batch {
                    scan_queue.remove(id);
                }
                batch
            };
            if batch.is_empty() {
                return scanned;
            }
            scanned += batch.len();
            if let Err(error) = self.scan(batch).await {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "cannot record the next boot of nodes"
                );
            }
        }
    }

    /// Determines what these nodes would boot, and stores it in one commit.
    pub(crate) async fn scan(self: &Arc<Self>, ids: Vec<NodeId>) -> Result<(), StoreError> {
        let snapshot = self.env.snapshot();
        let sources = self.env.store.read(|model| {
            let mut contexts = Contexts::new(&snapshot);
            let each = ids.iter().filter_map(|id| {
                Some((
                    *id,
                    self.next_boot_source(&snapshot, &mut contexts, model, model.node(*id)?)?,
                ))
            });
            each.collect::<Vec<_>>()
        });
        let answers = self.resolve(sources).await;
        let now = self.env.now();
        let stored = self.env.store.commit(|tx| {
            for (id, next_boot) in answers {
                let Some(before) = tx.node(id) else { continue };
                let mut node = before.clone();
                let changes = update_boot_conditions(&mut node, &next_boot, now);
                if node == *before {
                    continue;
                }
                let boot = node.boot;
                tx.put_node(node);
                for (kind, detail) in changes {
                    tx.event(
                        Event::new(now, Actor::Central, kind, detail).of_node(id).in_session(boot),
                    );
                }
            }
            Ok(())
        });
        stored.await
    }

    /// `None` for a machine that never requested a script: the address of the central node for it
    /// is unknown.
    fn next_boot_source(
        self: &Arc<Self>,
        snapshot: &Arc<SiteSnapshot>,
        contexts: &mut Contexts<'_>,
        model: &Model,
        node: &Node,
    ) -> Option<NextBootSource> {
        let endpoint = self.env.endpoint(node.central_address?);
        if let Some(pinned) = node.pinned {
            let given = model.history(node.id).and_then(|history| history.get(pinned));
            let profile = given.map(|given| given.profile.clone()).or_else(|| node.profile.clone());
            let profile = profile.unwrap_or_else(|| snapshot.site.default_profile.clone());
            return Some(NextBootSource::Known(NextBoot::Boots(pinned, profile)));
        }
        Some(
            match self.prepare_render(
                snapshot,
                contexts,
                model,
                &RenderTarget { node, session: None, endpoint },
            ) {
                Err(error) => NextBootSource::Known(failed_boot(&error)),
                Ok(prepared) => {
                    let profile = prepared.profile_name().clone();
                    match self.scan_queue.known.lock().get(&prepared.key) {
                        Some(generation) => {
                            NextBootSource::Known(NextBoot::Boots(*generation, profile))
                        }
                        None => NextBootSource::Render(Box::new(prepared), profile),
                    }
                }
            },
        )
    }

    /// Number of rendered results since the start, without cached ones.
    pub fn drift_render_count(&self) -> u64 {
        self.scan_queue.rendered.load(Ordering::Relaxed)
    }

    async fn resolve(
        self: &Arc<Self>,
        sources: Vec<(NodeId, NextBootSource)>,
    ) -> Vec<(NodeId, NextBoot)> {
        let workers = available_parallelism().map_or(1, usize::from);
        let mut shares: Vec<Vec<(NodeId, Box<PreparedRender>, ProfileName)>> =
            (0..workers).map(|_| Vec::new()).collect();
        let mut answers = Vec::with_capacity(sources.len());
        for (at, (id, next_boot_source)) in sources.into_iter().enumerate() {
            match next_boot_source {
                NextBootSource::Known(next_boot) => answers.push((id, next_boot)),
                NextBootSource::Render(prepared, profile) => {
                    shares[at % workers].push((id, prepared, profile))
                }
            }
        }
        let busy = shares.into_iter().filter(|share| !share.is_empty());
        let tasks: Vec<_> =
            busy.map(|share| tokio::task::spawn_blocking(move || render(share))).collect();
        for task in tasks {
            let Ok(rendered) = task.await else { continue };
            let mut known = self.scan_queue.known.lock();
            if known.len() + rendered.len() > MAX_KNOWN {
                known.clear();
            }
            self.scan_queue.rendered.fetch_add(rendered.len() as u64, Ordering::Relaxed);
            for (id, key, next_boot) in rendered {
                if let NextBoot::Boots(generation, _) = &next_boot {
                    known.insert(key, *generation);
                }
                answers.push((id, next_boot));
            }
        }
        answers
    }
}

fn render(
    share: Vec<(NodeId, Box<PreparedRender>, ProfileName)>,
) -> Vec<(NodeId, Digest, NextBoot)> {
    let one = |(id, prepared, profile): (NodeId, Box<PreparedRender>, ProfileName)| {
        let next_boot = match prepared.generation() {
            Ok(generation) => NextBoot::Boots(generation, profile),
            Err(error) => failed_boot(&error),
        };
        (id, prepared.key, next_boot)
    };
    share.into_iter().map(one).collect()
}

fn failed_boot(error: &RenderError) -> NextBoot {
    match error {
        RenderError::NoImage { .. } | RenderError::ImageMissing { .. } => {
            NextBoot::ImageMissing(error.to_string())
        }
        RenderError::Faults { source, .. } => NextBoot::RenderFailed(format!("{error}: {source}")),
        _ => NextBoot::RenderFailed(error.to_string()),
    }
}
