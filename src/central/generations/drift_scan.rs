//! Determines what each node would boot now, after a reload, an order, or a new link.
//!
//! The scan renders without packing, on all processors, and skips what has not changed. A batch of nodes is one commit.

use crate::{
    environment::site_snapshot::SiteSnapshot,
    generations::{
        Generations,
        render::{PreparedRender, RenderError},
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

/// Nodes of one commit.
const BATCH: usize = 512;
/// Outcomes that are remembered: those of three times the largest rack. It takes some 100 bytes for each.
const MAX_KNOWN: usize = 32_768;

/// Nodes to scan, and cached results.
#[derive(Default)]
pub(crate) struct Stale {
    nodes: Leaf<BTreeSet<NodeId>>,
    wake: Notify,
    known: Leaf<BTreeMap<Digest, Generation>>,
    /// How many were found out by rendering.
    rendered: AtomicU64,
}

/// How the next boot of a node is determined.
enum Question {
    Known(NextBoot),
    Render(Box<PreparedRender>, ProfileName),
}

impl Generations {
    /// Marks a node for the next scan: an input of its boot changed.
    pub(crate) fn scan_soon(&self, node: NodeId) {
        self.stale.nodes.lock().insert(node);
        self.stale.wake.notify_one();
    }

    /// Something changed that every node depends on.
    pub(crate) fn scan_all(&self) {
        let all: Vec<NodeId> = self.env.store.read(|model| model.nodes().map(|node| node.id).collect());
        self.stale.nodes.lock().extend(all);
        self.stale.wake.notify_one();
    }

    pub(crate) fn wake(&self) {
        self.stale.wake.notify_one();
    }

    /// Waits until there is something to do for [`Generations::chores`].
    pub async fn until_chores(&self) {
        self.stale.wake.notified().await;
    }

    /// Background work: scans marked nodes, archives and collects generations.
    pub async fn chores(self: &Arc<Self>) {
        self.scan_stale().await;
        self.keep_waiting().await;
        self.publish_in_use().await;
        self.sweep().await;
    }

    /// Scans all marked nodes. Returns their number.
    pub async fn scan_stale(self: &Arc<Self>) -> usize {
        let mut looked = 0;
        loop {
            let batch: Vec<NodeId> = {
                let mut stale = self.stale.nodes.lock();
                let batch = stale.iter().take(BATCH).copied().collect::<Vec<_>>();
                for id in &batch {
                    stale.remove(id);
                }
                batch
            };
            if batch.is_empty() {
                return looked;
            }
            looked += batch.len();
            if let Err(error) = self.scan(batch).await {
                tracing::error!(error = &error as &dyn std::error::Error, "cannot record what nodes would boot");
            }
        }
    }

    /// Determines what these nodes would boot, and stores it in one commit.
    pub(crate) async fn scan(self: &Arc<Self>, ids: Vec<NodeId>) -> Result<(), StoreError> {
        let live = self.env.live();
        let questions = self.env.store.read(|model| {
            let mut contexts = Contexts::new(&live);
            let each =
                ids.iter().filter_map(|id| Some((*id, self.question(&live, &mut contexts, model, model.node(*id)?)?)));
            each.collect::<Vec<_>>()
        });
        let answers = self.answer(questions).await;
        let now = self.env.now();
        self.env
            .store
            .commit(|tx| {
                for (id, outlook) in answers {
                    let Some(before) = tx.node(id) else { continue };
                    let mut node = before.clone();
                    let told = update_boot_conditions(&mut node, &outlook, now);
                    if node == *before {
                        continue;
                    }
                    let boot = node.boot;
                    tx.put_node(node);
                    for (kind, detail) in told {
                        tx.event(Event::new(now, Actor::Central, kind, detail).of_node(id).in_session(boot));
                    }
                }
                Ok(())
            })
            .await
    }

    /// `None` for a machine that never asked for a script: it is not known where it would boot from.
    fn question(
        self: &Arc<Self>,
        live: &Arc<SiteSnapshot>,
        contexts: &mut Contexts<'_>,
        model: &Model,
        node: &Node,
    ) -> Option<Question> {
        let endpoint = self.env.endpoint(node.told?);
        if let Some(pinned) = node.pinned {
            let given = model.history(node.id).and_then(|history| history.get(pinned));
            let profile = given.map(|given| given.profile.clone()).or_else(|| node.profile.clone());
            let profile = profile.unwrap_or_else(|| live.site.default_profile.clone());
            return Some(Question::Known(NextBoot::Boots(pinned, profile)));
        }
        Some(match self.prepare_render(live, contexts, model, node, (None, endpoint)) {
            Err(error) => Question::Known(failed(&error)),
            Ok(prepared) => {
                let profile = prepared.profile_name().clone();
                match self.stale.known.lock().get(&prepared.key) {
                    Some(generation) => Question::Known(NextBoot::Boots(*generation, profile)),
                    None => Question::Render(Box::new(prepared), profile),
                }
            }
        })
    }

    /// What nodes would boot, found out by rendering since the start: what was known already does not count.
    pub fn outlooks_rendered(&self) -> u64 {
        self.stale.rendered.load(Ordering::Relaxed)
    }

    async fn answer(self: &Arc<Self>, questions: Vec<(NodeId, Question)>) -> Vec<(NodeId, NextBoot)> {
        let workers = available_parallelism().map_or(1, usize::from);
        let mut shares: Vec<Vec<(NodeId, Box<PreparedRender>, ProfileName)>> =
            (0..workers).map(|_| Vec::new()).collect();
        let mut answers = Vec::with_capacity(questions.len());
        for (at, (id, question)) in questions.into_iter().enumerate() {
            match question {
                Question::Known(outlook) => answers.push((id, outlook)),
                Question::Render(prepared, profile) => shares[at % workers].push((id, prepared, profile)),
            }
        }
        let busy = shares.into_iter().filter(|share| !share.is_empty());
        let tasks: Vec<_> = busy.map(|share| tokio::task::spawn_blocking(move || render(share))).collect();
        for task in tasks {
            let Ok(rendered) = task.await else { continue };
            let mut known = self.stale.known.lock();
            if known.len() + rendered.len() > MAX_KNOWN {
                known.clear();
            }
            self.stale.rendered.fetch_add(rendered.len() as u64, Ordering::Relaxed);
            for (id, key, outlook) in rendered {
                if let NextBoot::Boots(generation, _) = &outlook {
                    known.insert(key, *generation);
                }
                answers.push((id, outlook));
            }
        }
        answers
    }
}

fn render(share: Vec<(NodeId, Box<PreparedRender>, ProfileName)>) -> Vec<(NodeId, Digest, NextBoot)> {
    let one = |(id, prepared, profile): (NodeId, Box<PreparedRender>, ProfileName)| {
        let outlook = match prepared.generation() {
            Ok(generation) => NextBoot::Boots(generation, profile),
            Err(error) => failed(&error),
        };
        (id, prepared.key, outlook)
    };
    share.into_iter().map(one).collect()
}

fn failed(error: &RenderError) -> NextBoot {
    match error {
        RenderError::NoImage { .. } | RenderError::ImageGone { .. } => NextBoot::ImageMissing(error.to_string()),
        RenderError::Faults { source, .. } => NextBoot::RenderFailed(format!("{error}: {source}")),
        _ => NextBoot::RenderFailed(error.to_string()),
    }
}
