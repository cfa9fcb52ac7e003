//! One boot with the order that began it, and the attempts that failed before it.

use super::step::{BootStep, BootStepTime, stage_times};
use crate::fleet::boot_progress::{
    boot_session::{BootSession, SESSION_WINDOW},
    stage::Stage,
};
use meshd_types::Timestamp;
use std::time::Duration;

/// Maximum time from an order to the first packet. Firmware with terabytes of memory needs a
/// quarter of an hour.
const LONGEST_FIRMWARE: Duration = Duration::from_secs(30 * 60);

/// An order that begins a boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootOrder {
    /// The order in words, such as `power cycle`.
    pub order: String,
    /// Time of the first request to the machine.
    pub first_at: Timestamp,
    /// Time of the last request, which had the effect.
    pub at: Timestamp,
}

/// One boot with what precedes it.
#[derive(Clone, Debug)]
pub struct BootPath<'a> {
    pub boot: &'a BootSession,
    pub order: Option<BootOrder>,
    /// Earlier attempts of the same power-on, by any NIC of the machine, the oldest first.
    pub attempts: Vec<&'a BootSession>,
}

impl<'a> BootPath<'a> {
    /// Collects what precedes a boot. `sessions` are those of all NICs of the machine, `orders` are
    /// those to the machine, both in any order.
    pub fn new(
        boot: &'a BootSession,
        sessions: impl IntoIterator<Item = &'a BootSession>,
        orders: impl IntoIterator<Item = BootOrder>,
    ) -> Self {
        let begun = boot.opened_at;
        let is_earlier =
            |session: &&BootSession| session.id != boot.id && session.order < boot.order;
        let mut earlier: Vec<_> = sessions.into_iter().filter(is_earlier).collect();
        earlier.sort_by_key(|session| session.order);
        // The machine ran in its former boot, so everything before belongs to that one.
        let ran = earlier.iter().rposition(|session| has_run(session));
        let former = ran.and_then(|index| earlier.get(index)).map(|session| session.opened_at);
        let order = orders
            .into_iter()
            .filter(|order| {
                let is_recent = begun.since(order.at) <= LONGEST_FIRMWARE;
                order.at <= begun && former.is_none_or(|former| order.at > former) && is_recent
            })
            .max_by_key(|order| order.at);
        let mut attempts: Vec<&BootSession> = Vec::new();
        for session in earlier.into_iter().skip(ran.map_or(0, |ran| ran + 1)).rev() {
            let first = attempts.last().map_or(begun, |next| next.opened_at);
            let last = session.stages.iter().map(|mark| mark.last).max();
            let gap = first.since(last.unwrap_or(session.opened_at));
            let is_before_order =
                order.as_ref().is_some_and(|order| session.opened_at < order.first_at);
            if is_before_order || gap > SESSION_WINDOW {
                break;
            }
            attempts.push(session);
        }
        attempts.reverse();
        BootPath { boot, order, attempts }
    }

    /// Returns the time of the first packet of any NIC.
    pub fn first_packet(&self) -> Timestamp {
        self.attempts.first().map_or(self.boot.opened_at, |session| session.opened_at)
    }

    /// Returns the begin of the boot: the order, else the first packet.
    pub fn begun_at(&self) -> Timestamp {
        self.order.as_ref().map_or_else(|| self.first_packet(), |order| order.at)
    }

    /// Returns the steps with their durations. `running_until` is the present time of an unfinished
    /// boot.
    pub fn steps(&self, running_until: Option<Timestamp>) -> Vec<BootStepTime> {
        let step = |step, from: Timestamp, at: Timestamp| BootStepTime {
            step,
            at,
            duration: at.since(from),
            count: 1,
        };
        let first = self.first_packet();
        let firmware = self.order.as_ref().filter(|_| self.boot.warm.is_none());
        let firmware = firmware.map(|order| step(BootStep::Firmware, order.at, first));
        let attempts =
            self.attempts.first().map(|_| step(BootStep::Attempts, first, self.boot.opened_at));
        firmware.into_iter().chain(attempts).chain(stage_times(self.boot, running_until)).collect()
    }
}

/// True for a boot that loaded everything. An attempt that failed has not.
fn has_run(session: &BootSession) -> bool {
    session.stages.iter().any(|mark| mark.stage >= Stage::Overlay)
}
