//! Limits how many machines load at once. The queue itself is
//! [`BootQueue`](meshd_model::boot::BootQueue).

use crate::{boot::BootService, environment::alarms::log_failure};
use meshd_config::Delivery;
use meshd_model::{
    boot::{Admission, QueueAnswer, Refusal},
    fleet::{Node, Stage},
};
use meshd_store::{StoreError, Tx};
use meshd_types::{BootSessionId, MacAddr, Timestamp};
use std::collections::BTreeMap;

impl BootService {
    /// Admits a machine, or refuses it with its position in the queue.
    pub(crate) fn enter_queue(&self, mac: MacAddr, node: &Node) -> Result<(), Refusal> {
        let state = if node.phase.is_admitted() { Admission::Approved } else { Admission::Unknown };
        let mut queue = self.queue.lock();
        let before = queue.waiting();
        let answer = queue.request(self.env.monotonic(), mac, state);
        let waiting = queue.waiting();
        metrics::gauge!("meshd_boot_loading").set(queue.loading() as f64);
        metrics::gauge!("meshd_boot_waiting").set(waiting as f64);
        drop(queue);
        match (before, waiting) {
            (0, 1..) => {
                tracing::info!("[boot].max_loading is reached: machines wait in the boot queue")
            }
            (1.., 0) => tracing::info!("the boot queue is empty"),
            _ => {}
        }
        match answer {
            QueueAnswer::Admitted => Ok(()),
            QueueAnswer::Wait { seconds, position } => Err(Refusal::Busy { seconds, position }),
        }
    }

    /// Removes a machine from the queue.
    pub(crate) fn leave_queue(&self, mac: MacAddr) {
        self.queue.lock().remove(mac);
    }

    /// Processes a completed fetch. The overlay is loaded last; with `delivery = "url"`, the
    /// packages are.
    pub(crate) fn update_queue(&self, mac: MacAddr, stage: Stage) {
        let now = self.env.monotonic();
        let last = match self.env.site().boot.delivery {
            Delivery::Initrd => Stage::Overlay,
            Delivery::Url => Stage::Packages,
        };
        let mut queue = self.queue.lock();
        if stage == last {
            queue.finish(now, mac);
            metrics::gauge!("meshd_boot_loading").set(queue.loading() as f64);
        } else {
            queue.record_progress(now, mac);
        }
    }
}

/// Repeated scripts of each session since the last record: their number and the time of the last
/// one.
///
/// Repetitions change nothing else, so the next periodic scan stores them. A crash before it
/// loses the number of repetitions, not the first request.
pub(super) type Repeats = BTreeMap<BootSessionId, (u32, Timestamp)>;

impl BootService {
    pub(super) fn count_repeat(&self, session: BootSessionId, now: Timestamp) {
        let mut repeats = self.repeats.lock();
        let (count, last) = repeats.entry(session).or_insert((0, now));
        (*count, *last) = (count.saturating_add(1), now);
    }

    /// Stores the counted repetitions.
    pub(crate) async fn record_repeats(&self) {
        let repeats = std::mem::take(&mut *self.repeats.lock());
        if repeats.is_empty() {
            return;
        }
        let recorded = self.env.store.commit(|tx| {
            for (session, (count, last)) in &repeats {
                record_repeat(tx, *session, *count, *last);
            }
            Ok::<_, StoreError>(())
        });
        log_failure(recorded.await, "cannot record repeated script requests");
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
