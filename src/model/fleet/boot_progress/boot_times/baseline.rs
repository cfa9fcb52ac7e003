//! Medians of other boots.

use super::{path::BootPath, step::BootStep};
use std::{collections::BTreeMap, time::Duration};

/// Medians of the steps of several boots.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Baseline {
    medians: BTreeMap<BootStep, Duration>,
    /// Number of boots.
    pub boots: usize,
}

impl Baseline {
    /// Computes the medians of finished boots.
    pub fn new<'a>(paths: impl IntoIterator<Item = BootPath<'a>>) -> Self {
        let mut durations: BTreeMap<BootStep, Vec<Duration>> = BTreeMap::new();
        let mut boots = 0;
        for path in paths {
            boots += 1;
            for time in path.steps(None) {
                durations.entry(time.step).or_default().push(time.duration);
            }
        }
        let medians =
            durations.into_iter().filter_map(|(step, times)| Some((step, median(times)?)));
        Baseline { medians: medians.collect(), boots }
    }

    /// Returns the median of a step; `None` if no boot has it.
    pub fn median(&self, step: BootStep) -> Option<Duration> {
        self.medians.get(&step).copied()
    }
}

/// Returns the median; of an even number, the lower one of the two in the middle.
fn median(mut times: Vec<Duration>) -> Option<Duration> {
    times.sort_unstable();
    times.get(times.len().saturating_sub(1) / 2).copied()
}
