//! The values of one minute, from the records.

use super::Series;
use meshd_model::{
    fleet::{BootSession, BootStatus, Phase, Stage},
    series::SiteSample,
};
use meshd_proto::UnitState;
use meshd_types::Timestamp;
use std::time::Duration;

/// Boots that came online within this time count for the percentiles.
const RECENT: Duration = Duration::from_secs(3600);
/// A longer boot is the step of a clock, and would distort the percentiles for 90 days.
const MAX_BOOT: Duration = Duration::from_secs(2 * 3600);

impl Series {
    pub(super) fn site_sample(&self, now: Timestamp, memory_bytes: Option<u64>) -> SiteSample {
        let leases: u32 = self.boot.segments().iter().map(|segment| segment.pool.leased).sum();
        let leases = leases as usize;
        let mut sample = SiteSample { leases, memory_bytes, ..SiteSample::default() };
        self.env.store.read(|model| {
            for node in model.nodes() {
                *sample.phases.entry(node.phase).or_default() += 1;
                let units = node.facts.iter().flat_map(|facts| &facts.units);
                for unit in units {
                    sample.units += 1;
                    let is_ready = node.phase == Phase::Online && unit.state == UnitState::Ready;
                    sample.units_ready += usize::from(is_ready);
                }
            }
            for boot in model.newest_sessions() {
                sample.boot_seconds.extend(recent_boot_seconds(boot, now));
                let is_failed =
                    matches!(boot.standing(false), BootStatus::Failed | BootStatus::Stalled);
                sample.boots_failed += usize::from(is_failed);
            }
        });
        sample
    }
}

/// The time of a boot that came online recently, without the wait for approval. A node that is
/// online reaches that stage again with each of its reports: the first time counts.
fn recent_boot_seconds(boot: &BootSession, now: Timestamp) -> Option<f64> {
    let online = boot.stages.iter().find(|mark| mark.stage == Stage::Online)?.at;
    let waited = boot.approval_wait(None).map(|[began, end]| end.since(began));
    let took = online.since(boot.opened_at).saturating_sub(waited.unwrap_or_default());
    let is_plausible = !took.is_zero() && took <= MAX_BOOT;
    (is_plausible && now.distance(online) <= RECENT).then_some(took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::{BootSessionId, MacAddr};

    #[test]
    fn boot_that_came_online_within_an_hour_counts() {
        let at = |seconds: u64| Timestamp::EPOCH.after(Duration::from_secs(seconds));
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        let mut boot = BootSession::open(BootSessionId([7; 12]), mac, Stage::Dhcp, at(10_000));
        assert_eq!(recent_boot_seconds(&boot, at(10_100)), None, "it is not online");
        boot.mark(Stage::Online, at(10_090));
        assert_eq!(recent_boot_seconds(&boot, at(10_100)), Some(90.0));
        assert_eq!(recent_boot_seconds(&boot, at(10_090 + 3600)), Some(90.0));
        assert_eq!(recent_boot_seconds(&boot, at(10_091 + 3600)), None, "it is an hour ago");
        boot.mark(Stage::Online, at(10_090 + 7200));
        assert_eq!(recent_boot_seconds(&boot, at(10_090 + 7200)), None, "it stayed online");
    }

    #[test]
    fn boot_over_the_step_of_a_clock_does_not_count() {
        let at = |seconds: u64| Timestamp::EPOCH.after(Duration::from_secs(seconds));
        let mac = MacAddr([2, 0, 0, 0, 0, 1]);
        for (online, expected) in
            [(90_000, None), (100_000, None), (107_200, Some(7200.0)), (107_201, None)]
        {
            let id = BootSessionId([7; 12]);
            let mut boot = BootSession::open(id, mac, Stage::Dhcp, at(100_000));
            boot.mark(Stage::Online, at(online));
            assert_eq!(recent_boot_seconds(&boot, at(online)), expected, "{online}");
        }
    }
}
