//! Detects boot loops: a machine that boots repeatedly and never comes online.
//!
//! A boot that came online, waited, or was rebooted by an operator ends the sequence. A slow boot
//! and retries of iPXE stay within one boot session, so neither counts as a loop.

use super::{
    boot_session::{BootSession, Outcome},
    stage::Stage,
};
use meshd_types::Timestamp;
use std::{fmt, time::Duration};

/// Number of boots in a row that stop at the same stage and make a loop.
pub const LOOP_ALIKE: usize = 3;
/// Number of boots in a row that stop at any stage and make a loop. Fewer than the stored sessions
/// of one MAC address.
pub const LOOP_UNLIKE: usize = 6;
/// Age limit of counted boots: a machine that fails once a week is not in a loop.
const LOOP_WINDOW: Duration = Duration::from_secs(24 * 60 * 60);

/// A detected loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootLoop {
    /// Number of boots in a row.
    pub count: usize,
    /// The stage at which the newest boot stopped.
    pub stage: Stage,
    /// True if all boots stopped at `stage`.
    pub alike: bool,
    /// Start of the first boot.
    pub since: Timestamp,
}

impl BootLoop {
    /// Returns true if the machine reaches the script step, where meshd can refuse its boot.
    pub fn reaches_script(&self) -> bool {
        self.stage >= Stage::Script
    }
}

impl fmt::Display for BootLoop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BootLoop { count, stage, since, .. } = self;
        let at = if self.alike {
            format!("each stopped after {stage}")
        } else {
            format!("the last stopped after {stage}")
        };
        write!(f, "{count} boots in a row since {since} did not come online; {at}")
    }
}

/// Examines the finished boots of a machine, newest first. Boots before `anew` do not count.
pub fn boot_loop<'a>(
    over: impl IntoIterator<Item = &'a BootSession>,
    anew: Option<Timestamp>,
    now: Timestamp,
) -> Option<BootLoop> {
    let counted = over.into_iter().map_while(|session| match session.outcome() {
        Outcome::Stopped(stage) => Some((session.opened_at, stage)),
        Outcome::Online | Outcome::Ordered | Outcome::Waiting => None,
    });
    let row: Vec<(Timestamp, Stage)> = counted
        .take_while(|(opened, _)| {
            anew.is_none_or(|anew| *opened > anew) && now.distance(*opened) <= LOOP_WINDOW
        })
        .collect();
    let (_, stage) = *row.first()?;
    let alike = row.iter().take_while(|(_, other)| *other == stage).count();
    let (count, is_alike) = match () {
        () if alike >= LOOP_ALIKE => (alike, true),
        () if row.len() >= LOOP_UNLIKE => (row.len(), false),
        () => return None,
    };
    Some(BootLoop { count, stage, alike: is_alike, since: row[count - 1].0 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::{BootSessionId, MacAddr};

    fn at(minutes: i64) -> Timestamp {
        Timestamp::from_millis(minutes * 60_000)
    }

    /// Returns boots five minutes apart, newest first as in the store, each with its last stage.
    fn boots(stages: &[Stage]) -> Vec<BootSession> {
        let boot = |(number, stage): (usize, &Stage)| {
            let opened = at(5 * i64::try_from(number).expect("few"));
            let id = BootSessionId([u8::try_from(number).expect("few"); 12]);
            let mut session =
                BootSession::open(id, MacAddr([2, 0, 0, 0, 0, 1]), Stage::Dhcp, opened);
            for reached in Stage::ALL.into_iter().filter(|reached| reached <= stage) {
                session.mark(reached, opened);
            }
            session
        };
        let mut boots: Vec<_> = stages.iter().enumerate().map(boot).collect();
        boots.reverse();
        boots
    }

    fn found(boots: &[BootSession]) -> Option<BootLoop> {
        boot_loop(boots, None, at(60))
    }

    #[test]
    fn same_failure_three_times_in_a_row_is_a_boot_loop() {
        use Stage::*;
        assert_eq!(found(&boots(&[Overlay, Overlay])), None);
        let looping = found(&boots(&[Online, Overlay, Overlay, Overlay])).expect("a loop");
        assert_eq!(
            (looping.count, looping.stage, looping.alike, looping.since),
            (3, Overlay, true, at(5))
        );
        assert!(looping.reaches_script());
        assert!(!found(&boots(&[Loader; 3])).expect("a loop").reaches_script());
    }

    #[test]
    fn six_different_failures_in_a_row_are_a_boot_loop() {
        use Stage::*;
        let mixed = [Overlay, OsDhcp, Overlay, Modloop, Overlay, OsDhcp];
        assert_eq!(found(&boots(&mixed[..5])), None);
        let looping = found(&boots(&mixed)).expect("a loop");
        assert_eq!((looping.count, looping.stage, looping.alike), (6, OsDhcp, false));
    }

    #[test]
    fn online_waiting_or_ordered_boot_resets_loop_count() {
        use Stage::*;
        assert_eq!(
            found(&boots(&[Overlay, Overlay, Online, Overlay, Overlay])),
            None,
            "reprovisioned"
        );
        let mut waited = boots(&[Script, Script, Script]);
        waited[1].record_wait("image_missing", at(50));
        assert_eq!(found(&waited), None);
        let mut ordered = boots(&[Link, Link, Link]);
        ordered[0].reboot_ordered = true;
        assert_eq!(
            found(&ordered),
            None,
            "an operator who reboots a node with a failing check is at work on it"
        );
    }

    #[test]
    fn loop_count_restarts_after_release_and_after_a_day() {
        let looping = boots(&[Stage::Overlay; 5]);
        assert!(found(&looping).is_some());
        assert_eq!(boot_loop(&looping, Some(at(12)), at(60)), None, "two boots since");
        assert_eq!(boot_loop(&looping, Some(at(10)), at(60)), None);
        assert_eq!(boot_loop(&looping, Some(at(9)), at(60)).map(|found| found.count), Some(3));
        assert_eq!(
            boot_loop(&looping, None, at(24 * 60 + 11)),
            None,
            "all but two are longer ago than a day"
        );
        let later: Vec<_> = looping
            .into_iter()
            .map(|boot| BootSession { opened_at: at(70_000_000), ..boot })
            .collect();
        assert_eq!(
            boot_loop(&later, None, at(0)),
            None,
            "the clock was wrong then, or is wrong now"
        );
    }
}
