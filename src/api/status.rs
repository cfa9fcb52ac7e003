//! Status of the central node: health findings, counts, unfinished activities and error responses.

use meshd_model::activities::{Activity, ActivityKind, ActivityState, ObjectKind};
use meshd_model::series::{SITE_SERIES, SeriesPoint, SeriesSpec};
use meshd_trust::Role;
use meshd_types::{Hint, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Body of every error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorView {
    /// Error code, as one word for programs.
    pub code: String,
    /// Description of the error for operators.
    pub message: String,
    /// Advice on the next step; empty if `message` contains it.
    #[serde(default)]
    pub hint: String,
    /// ID that identifies the response in the log of the central node.
    pub correlation_id: String,
}

/// Name and role of the caller: the response of `whoami`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CallerView {
    /// `token:NAME`, or `uid:N` for a process at the admin socket.
    pub name: String,
    pub role: Role,
}

/// Status of the central node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StatusView {
    /// Name of the site.
    pub site: String,
    /// Version and commit of the running meshd.
    pub version: String,
    pub pid: u32,
    /// SHA-256 of the certificate of `[admin.https]`, for `--server-fingerprint`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https_fingerprint: Option<String>,
    /// True if no problem keeps machines from booting.
    #[serde(default)]
    pub ready: bool,
    /// Number of nodes.
    #[serde(default)]
    pub nodes: usize,
    /// Number of nodes in each phase; phases without nodes are absent.
    pub phases: BTreeMap<String, usize>,
    /// Number of nodes that need an operator, as `attention=true` lists them.
    #[serde(default)]
    pub attention: usize,
    /// Counts of the units for VMs.
    #[serde(default)]
    pub units: UnitCount,
    /// Counts of the replicas of containers.
    #[serde(default)]
    pub replicas: ReplicaCount,
    /// Number of nodes with each condition; conditions without nodes are absent.
    #[serde(default)]
    pub conditions: BTreeMap<String, usize>,
    /// Problems that do not keep machines from booting.
    #[serde(default)]
    pub warnings: Vec<Finding>,
    /// Problems that keep machines from booting.
    #[serde(default)]
    pub errors: Vec<Finding>,
}

/// Counts of the units of all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UnitCount {
    /// Number of units that are ready on online nodes.
    pub ready: usize,
    /// Number of units that nodes report.
    pub total: usize,
}

/// Counts of the replicas of containers. Those of a stopped container do not count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReplicaCount {
    /// Number of replicas that run and are not unhealthy.
    pub running: usize,
    pub total: usize,
}

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// No problem.
    Ok,
    /// Machines boot, but an operator needs to check the finding.
    Warn,
    /// Machines do not boot, or will soon stop booting.
    Fail,
}

/// Result of a health check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Finding {
    /// Subject of the check, in one or two words.
    pub check: String,
    pub status: Status,
    pub found: String,
    /// Advice on the next step; empty if no action is needed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub next: String,
}

impl Finding {
    /// Creates a finding without a problem.
    pub fn ok(check: impl Into<String>, found: impl Into<String>) -> Self {
        Finding {
            check: check.into(),
            status: Status::Ok,
            found: found.into(),
            next: String::new(),
        }
    }

    /// Creates a warning, which needs the attention of an operator.
    pub fn warn(
        check: impl Into<String>,
        found: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Finding {
            check: check.into(),
            status: Status::Warn,
            found: found.into(),
            next: next.into(),
        }
    }

    /// Creates a finding that keeps machines from booting.
    pub fn fail(
        check: impl Into<String>,
        found: impl Into<String>,
        next: impl Into<String>,
    ) -> Self {
        Finding {
            check: check.into(),
            status: Status::Fail,
            found: found.into(),
            next: next.into(),
        }
    }

    /// Creates a failure from an error.
    pub fn fail_of(check: impl Into<String>, error: &impl Hint) -> Self {
        let next = error.hint().unwrap_or_else(|| "see the log of meshd".to_owned());
        Finding::fail(check, error.message(), next)
    }
}

/// Unfinished activities of the site: failed ones first, then the oldest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActivitiesView {
    pub activities: Vec<ActivityView>,
    /// Number of activities that the response omits.
    pub rest: usize,
}

/// An unfinished activity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ActivityView {
    pub kind: ActivityKind,
    pub object: ObjectKind,
    /// Node ID, MAC address, UUID, slot ID or task ID.
    pub id: String,
    /// Name of the object; its ID if it has none.
    pub name: String,
    /// Node on which the activity runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<NodeId>,
    /// The requested action.
    pub request: String,
    /// Time of the order, or of the last reported change; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// `requested`: no node has confirmed the activity. `accepted`: a node works on it. `failed`:
    /// it needs an operator, or is retried.
    pub state: ActivityState,
    /// Progress of the activity.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub progress: String,
    /// Reason for which the activity does not proceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl From<Activity> for ActivityView {
    fn from(activity: Activity) -> Self {
        let Activity { kind, object, id, name, node, request, since, state, progress, reason } =
            activity;
        ActivityView { kind, object, id, name, node, request, since, state, progress, reason }
    }
}

/// A time series of the site, with its newest sample.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesView {
    pub name: String,
    /// Unit of the values, such as `nodes`, `seconds` or `bytes`.
    pub unit: String,
    /// Meaning of the values.
    pub about: String,
    /// Metric of Prometheus with the same values.
    pub metric: String,
    /// Newest value; absent if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub newest: Option<f64>,
    /// Time of the newest value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Timestamp>,
}

impl SeriesView {
    /// Returns all series of the site with their newest samples.
    pub fn all(newest: &[Option<SeriesPoint>]) -> Vec<Self> {
        let view = |(spec, point): (&SeriesSpec, &Option<SeriesPoint>)| SeriesView {
            name: spec.name.clone(),
            unit: spec.unit.to_owned(),
            about: spec.about.clone(),
            metric: spec.metric.clone(),
            newest: point.map(|point| point.value),
            at: point.map(|point| point.at),
        };
        SITE_SERIES.iter().zip(newest).map(view).collect()
    }
}

/// The values of a time series in a range.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesPointsView {
    pub name: String,
    /// Unit of the values.
    pub unit: String,
    /// Begin of the range.
    pub from: Timestamp,
    /// End of the range.
    pub to: Timestamp,
    /// Seconds between two points.
    pub step_s: u64,
    /// One point for each step with a sample, oldest first; steps without a sample have none.
    pub points: Vec<SeriesPointView>,
}

/// The mean of a time series in one step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesPointView {
    /// Begin of the step.
    pub at: Timestamp,
    pub value: f64,
}

impl From<SeriesPoint> for SeriesPointView {
    fn from(SeriesPoint { at, value }: SeriesPoint) -> Self {
        SeriesPointView { at, value }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::ParseError;

    #[test]
    fn finding_of_an_error_keeps_the_whole_message_beside_the_hint() {
        let error = ParseError::new("fan broken; ask Ada", "enable it");
        let expected = Finding::fail("slot", "fan broken; ask Ada", "enable it");
        assert_eq!(Finding::fail_of("slot", &error), expected);
    }
}
