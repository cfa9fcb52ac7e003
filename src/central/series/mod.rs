//! Time series of the site and its nodes: a sample a minute
//! ([ADR 56](../../docs/adr/0056-time-series.md)).
//!
//! | module | content |
//! | --- | --- |
//! | `site_sample` | the values of one minute, from the records |

mod site_sample;

use super::{boot::BootService, environment::Environment, links::Links};
use meshd_model::series::{MINUTE, SITE_SERIES, SeriesPoint, SeriesRange, usage_codes};
use meshd_store::{NODE_SERIES_BYTES, NodeSeriesLog, SeriesLog};
use meshd_types::NodeId;
use std::{sync::Arc, time::Duration};

/// How often the caller of [`Series::sample_when_due`] calls it: no minute is missed.
pub const SAMPLE_CHECK: Duration = Duration::from_secs(5);

/// A node measures once a minute, and reports with its next heartbeat.
const USAGE_AGE: Duration = Duration::from_secs(90);

/// Takes samples, and answers readers. Methods that read and write a file block.
pub struct Series {
    env: Arc<Environment>,
    boot: Arc<BootService>,
    links: Arc<Links>,
    site: SeriesLog,
    nodes: NodeSeriesLog,
}

impl Series {
    pub(super) fn new(env: Arc<Environment>, links: Arc<Links>, boot: Arc<BootService>) -> Self {
        let names = SITE_SERIES.iter().map(|spec| spec.name.clone()).collect();
        let folder = env.site().state_dir.join("series");
        let nodes = NodeSeriesLog::new(folder.join("nodes"), NODE_SERIES_BYTES);
        Series { env, boot, links, site: SeriesLog::new(folder, names), nodes }
    }

    /// Takes the sample of this minute, unless it was taken. `memory_bytes` is the memory of this
    /// process. A clock that went back is in another minute, too.
    pub fn sample_when_due(&self, memory_bytes: Option<u64>) {
        let now = self.env.now();
        let minute = |seconds: u64| seconds / MINUTE;
        let present = u64::try_from(now.seconds()).unwrap_or(0);
        if self.site.newest_start().is_none_or(|newest| minute(newest) != minute(present)) {
            self.site.record(now, self.site_sample(now, memory_bytes).values());
            let max_age = USAGE_AGE.max(2 * self.env.site().agent.heartbeat);
            let usage = self.links.recent_usage(max_age);
            let samples: Vec<_> =
                usage.iter().map(|(node, usage)| (*node, usage_codes(usage))).collect();
            self.nodes.record(now, &samples);
        }
    }

    /// The newest sample of each of [`SITE_SERIES`].
    pub fn newest(&self) -> Vec<Option<SeriesPoint>> {
        self.site.newest()
    }

    /// Returns the points of a series; `None` if no series has this name.
    pub fn read(&self, name: &str, range: &SeriesRange) -> Option<Vec<SeriesPoint>> {
        self.site.read(name, range)
    }

    /// Returns the points of all series of a node, in the order of
    /// [`NodeSeries::ALL`](meshd_model::series::NodeSeries::ALL).
    pub fn read_node(&self, node: NodeId, range: &SeriesRange) -> Vec<Vec<SeriesPoint>> {
        self.nodes.read(node, range)
    }

    /// True if the last sample could not be written. Does not block.
    pub fn is_failing(&self) -> bool {
        self.site.is_failing() || self.nodes.is_failing()
    }
}
