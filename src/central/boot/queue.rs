//! Limits how many machines load at once. The queue itself is [`BootQueue`](meshd_model::boot::BootQueue).

use crate::{boot::BootService, locks::Leaf};
use meshd_config::Delivery;
use meshd_model::{
    boot::{MachineState, QueueAnswer, Refusal},
    fleet::{Node, Stage},
};
use meshd_store::{StoreError, Tx};
use meshd_types::{BootSessionId, MacAddr, Timestamp};
use std::collections::BTreeMap;

/// The state of the boot queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineState {
    /// Boots between their script and their overlay.
    pub loading: usize,
    /// `[boot].max_loading`.
    pub limit: usize,
    /// Machines that wait in iPXE.
    pub waiting: usize,
}

impl BootService {
    /// Returns the state of the queue.
    pub fn line(&self) -> LineState {
        let line = self.queue.lock();
        LineState { loading: line.loading(), limit: self.env.site().boot.max_loading, waiting: line.waiting() }
    }

    /// Admits a machine, or refuses it with its place in the queue.
    pub(crate) fn enter_queue(&self, mac: MacAddr, node: &Node) -> Result<(), Refusal> {
        let standing = if node.phase.is_admitted() { MachineState::Approved } else { MachineState::Unknown };
        let mut line = self.queue.lock();
        let before = line.waiting();
        let turn = line.ask(self.env.monotonic(), mac, standing);
        let waiting = line.waiting();
        metrics::gauge!("meshd_boot_loading").set(line.loading() as f64);
        metrics::gauge!("meshd_boot_waiting").set(waiting as f64);
        drop(line);
        match (before, waiting) {
            (0, 1..) => tracing::info!("as many boots load as [boot].max_loading allows: machines wait in line"),
            (1.., 0) => tracing::info!("no machine waits in line any more"),
            _ => {}
        }
        match turn {
            QueueAnswer::Admitted => Ok(()),
            QueueAnswer::Wait { seconds, place } => Err(Refusal::Busy { seconds, place }),
        }
    }

    /// Frees the place of a machine in the queue.
    pub(crate) fn leave_queue(&self, mac: MacAddr) {
        self.queue.lock().leave(mac);
    }

    /// Processes a completed fetch. The overlay is loaded last; with `delivery = "url"`, the packages are.
    pub(crate) fn loaded(&self, mac: MacAddr, stage: Stage) {
        let now = self.env.monotonic();
        let last = match self.env.site().boot.delivery {
            Delivery::Initrd => Stage::Overlay,
            Delivery::Url => Stage::Packages,
        };
        let mut line = self.queue.lock();
        if stage == last {
            line.finished(now, mac);
            metrics::gauge!("meshd_boot_loading").set(line.loading() as f64);
        } else {
            line.progressed(now, mac);
        }
    }
}

/// Repeated scripts of a session since the last record: their number and the time of the last one.
///
/// Repetitions change nothing else, so the next periodic scan stores them. A crash before it
/// loses the number of repetitions, not the first request.
#[derive(Default)]
pub(crate) struct Repeats(Leaf<BTreeMap<BootSessionId, (u32, Timestamp)>>);

impl Repeats {
    /// One more.
    pub(crate) fn count(&self, session: BootSessionId, now: Timestamp) {
        let mut repeats = self.0.lock();
        let (count, last) = repeats.entry(session).or_insert((0, now));
        (*count, *last) = (count.saturating_add(1), now);
    }

    fn take(&self) -> BTreeMap<BootSessionId, (u32, Timestamp)> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl BootService {
    /// Stores the counted repetitions.
    pub(crate) async fn record_repeats(&self) {
        let repeats = self.repeats.take();
        if repeats.is_empty() {
            return;
        }
        let recorded = self.env.store.commit(|tx| {
            for (session, (count, last)) in &repeats {
                record_repeat(tx, *session, *count, *last);
            }
            Ok::<_, StoreError>(())
        });
        if let Err(error) = recorded.await {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot record how often scripts were asked for");
        }
    }
}

fn record_repeat(tx: &mut Tx<'_>, session: BootSessionId, count: u32, last: Timestamp) {
    let node = tx.edit_session(session, |session| {
        if let Some(mark) = session.stages.iter_mut().find(|mark| mark.stage == Stage::Script) {
            mark.count = mark.count.saturating_add(count);
            mark.last = mark.last.max(last);
        }
        session.node
    });
    if let Some(Some(node)) = node {
        tx.edit_node(node, |node| node.last_seen = node.last_seen.max(last));
    }
}
