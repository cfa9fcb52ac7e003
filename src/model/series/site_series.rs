//! The series of the site: names, units, and the values of one minute.

use crate::fleet::Phase;
use std::{collections::BTreeMap, sync::LazyLock};

/// The description of a series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeriesSpec {
    pub name: String,
    /// Unit of the values, as in the names of metrics.
    pub unit: &'static str,
    pub about: String,
    /// The metric of Prometheus with the same value.
    pub metric: String,
}

/// All series of the site, in the order of [`SiteSample::values`].
pub static SITE_SERIES: LazyLock<Vec<SeriesSpec>> = LazyLock::new(|| {
    let phases = Phase::ALL.map(|phase| SeriesSpec {
        name: format!("nodes_{phase}"),
        unit: "nodes",
        about: format!("Nodes in the phase {phase}."),
        metric: format!(r#"meshd_nodes{{phase="{phase}"}}"#),
    });
    let spec = |name: &str, unit, about: &str, metric: &str| SeriesSpec {
        name: name.to_owned(),
        unit,
        about: about.to_owned(),
        metric: metric.to_owned(),
    };
    let others = [
        spec(
            "boot_p50",
            "seconds",
            "Median time of the boots that came online within an hour, without the wait for approval.",
            "meshd_recent_boot_seconds{quantile=\"0.5\"}",
        ),
        spec(
            "boot_p95",
            "seconds",
            "95th percentile of the time of the boots that came online within an hour.",
            "meshd_recent_boot_seconds{quantile=\"0.95\"}",
        ),
        spec(
            "boots_online",
            "boots",
            "Boots that came online within an hour.",
            "meshd_recent_boots",
        ),
        spec(
            "boots_failed",
            "machines",
            "Machines whose newest boot failed or is stalled.",
            "meshd_boots{state=~\"failed|stalled\"}",
        ),
        spec(
            "leases",
            "addresses",
            "Leased addresses of all pools.",
            "meshd_dhcp_pool_addresses{state=\"leased\"}",
        ),
        spec(
            "units_ready",
            "units",
            "Units that are ready on online nodes.",
            "meshd_units{state=\"ready\"}",
        ),
        spec("units", "units", "Units that nodes report.", "meshd_units"),
        spec("memory", "bytes", "Resident memory of meshd.", "meshd_process_resident_memory_bytes"),
    ];
    phases.into_iter().chain(others).collect()
});

/// What is measured each minute.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SiteSample {
    pub phases: BTreeMap<Phase, usize>,
    /// Times of the boots that came online within an hour, in seconds.
    pub boot_seconds: Vec<f64>,
    pub boots_failed: usize,
    pub leases: usize,
    pub units_ready: usize,
    pub units: usize,
    /// `None` if it cannot be read.
    pub memory_bytes: Option<u64>,
}

impl SiteSample {
    /// Returns a value for each of [`SITE_SERIES`].
    pub fn values(mut self) -> Vec<Option<f64>> {
        self.boot_seconds.sort_by(f64::total_cmp);
        let count = |count: usize| Some(count as f64);
        let phases = Phase::ALL.map(|phase| count(self.phases.get(&phase).copied().unwrap_or(0)));
        let others = [
            nearest_rank(&self.boot_seconds, 50),
            nearest_rank(&self.boot_seconds, 95),
            count(self.boot_seconds.len()),
            count(self.boots_failed),
            count(self.leases),
            count(self.units_ready),
            count(self.units),
            self.memory_bytes.map(|bytes| bytes as f64),
        ];
        phases.into_iter().chain(others).collect()
    }
}

/// The nearest-rank percentile of sorted values.
pub fn nearest_rank(sorted: &[f64], percent: usize) -> Option<f64> {
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_has_one_name_and_one_value() {
        let sample = SiteSample {
            phases: BTreeMap::from([(Phase::Online, 7)]),
            boot_seconds: vec![30.0, 10.0, 20.0],
            memory_bytes: Some(1 << 40),
            ..SiteSample::default()
        };
        let values = sample.values();
        let specs = &*SITE_SERIES;
        assert_eq!(values.len(), specs.len());
        let value = |name: &str| {
            let found: Vec<_> =
                specs.iter().zip(&values).filter(|(it, _)| it.name == name).collect();
            assert_eq!(found.len(), 1, "{name}");
            *found[0].1
        };
        assert_eq!(value("nodes_online"), Some(7.0));
        assert_eq!(value("nodes_offline"), Some(0.0));
        assert_eq!((value("boot_p50"), value("boot_p95")), (Some(20.0), Some(30.0)));
        assert_eq!(value("boots_online"), Some(3.0));
        assert_eq!(value("memory"), Some((1_u64 << 40) as f64));
        assert_eq!(SiteSample::default().values().iter().flatten().count(), specs.len() - 3);
    }

    #[test]
    fn percentile_is_the_value_of_the_nearest_rank() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        let percentiles = [50, 95, 100].map(|percent| nearest_rank(&values, percent));
        assert_eq!(percentiles, [Some(10.0), Some(19.0), Some(20.0)]);
        assert_eq!(nearest_rank(&[], 50), None);
        assert_eq!(nearest_rank(&[4.0], 95), Some(4.0));
    }
}
