//! Storm control: which boots load now, and which wait for their turn. The line itself is [`meshd_model::boot::Line`].

use super::{Central, lock};
use meshd_config::Delivery;
use meshd_model::{
    boot::{MachineState, QueueAnswer, Refusal},
    fleet::{Node, Stage},
};
use meshd_store::{StoreError, Tx};
use meshd_types::{BootSessionId, MacAddr, Timestamp};
use std::{collections::BTreeMap, sync::Mutex};

/// How many boots load, how many may, and how many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineState {
    /// Boots between their script and their overlay.
    pub loading: usize,
    /// `[boot].max_loading`.
    pub limit: usize,
    /// Machines that wait in iPXE.
    pub waiting: usize,
}

impl Central {
    /// How the line stands.
    pub fn line(&self) -> LineState {
        let line = lock(&self.line);
        LineState { loading: line.loading(), limit: self.site().boot.max_loading, waiting: line.waiting() }
    }

    /// The place of a machine that waits for its turn; 1 is next.
    pub fn place_in_line(&self, mac: MacAddr) -> Option<usize> {
        lock(&self.line).place(mac)
    }

    /// A machine wants to load: now, or it is told to wait.
    pub(super) fn take_turn(&self, mac: MacAddr, node: &Node) -> Result<(), Refusal> {
        let standing = if node.phase.is_admitted() { MachineState::Approved } else { MachineState::Unknown };
        let mut line = lock(&self.line);
        let before = line.waiting();
        let turn = line.ask(self.clock.monotonic(), mac, standing);
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

    /// A machine does not load after all.
    pub(super) fn give_up_turn(&self, mac: MacAddr) {
        lock(&self.line).leave(mac);
    }

    /// A machine fetched something whole. The overlay is what it loads last; where that travels as a URL, the packages are.
    pub(super) fn loaded(&self, mac: MacAddr, stage: Stage) {
        let now = self.clock.monotonic();
        let last = match self.site().boot.delivery {
            Delivery::Initrd => Stage::Overlay,
            Delivery::Url => Stage::Packages,
        };
        let mut line = lock(&self.line);
        if stage == last {
            line.finished(now, mac);
            metrics::gauge!("meshd_boot_loading").set(line.loading() as f64);
        } else {
            line.progressed(now, mac);
        }
    }
}

/// Scripts that were given again in a session, since they were last written down: how often, and when last.
///
/// A machine that asks again and again changes nothing else, so this waits for the next look of the watch. A crash in between
/// forgets that it asked twice, not that it asked.
#[derive(Default)]
pub(super) struct Repeats(Mutex<BTreeMap<BootSessionId, (u32, Timestamp)>>);

impl Repeats {
    /// One more.
    pub(super) fn count(&self, session: BootSessionId, now: Timestamp) {
        let mut repeats = lock(&self.0);
        let (count, last) = repeats.entry(session).or_insert((0, now));
        (*count, *last) = (count.saturating_add(1), now);
    }

    fn take(&self) -> BTreeMap<BootSessionId, (u32, Timestamp)> {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Central {
    /// Writes down what was only counted.
    pub(super) async fn record_repeats(&self) {
        let repeats = self.repeats.take();
        if repeats.is_empty() {
            return;
        }
        let recorded = self.store.commit(|tx| {
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
