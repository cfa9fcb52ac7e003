//! Where the time of a boot goes, in JSON.

use super::timeline::{duration_ms, running_until};
use meshd_model::fleet::{
    BootComparison, BootDelay, BootPath, BootStatus, BootStep, BootStepTime, DelayKind, Node,
};
use meshd_types::{BootSessionId, MacAddr, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use utoipa::ToSchema;

/// The steps of a boot, compared with other boots, and what costs the time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BootTimesView {
    pub node: NodeId,
    pub name: String,
    pub session: BootSessionId,
    /// MAC address of the NIC that booted.
    pub mac: MacAddr,
    /// Manufacturer and product.
    pub model: String,
    /// State of the boot session, or its result after the end.
    pub result: BootStatus,
    /// The order that began the boot, such as `power cycle`; absent if meshd gave none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub order: Option<String>,
    /// Time of the order, else of the first packet.
    pub begun_at: Timestamp,
    /// Time from the begin to the last step, in milliseconds, with the wait for approval; of an
    /// unfinished boot, to the time of the response.
    pub total_ms: u64,
    /// Number of earlier boots of the machine that came online, with which the boot is compared.
    pub own_boots: usize,
    /// Number of other machines of the model, with whose newest boots the boot is compared.
    pub model_boots: usize,
    /// Steps in the order in which the machine reached them.
    pub steps: Vec<BootStepView>,
    /// What costs time, the largest cost first.
    pub delays: Vec<BootDelayView>,
}

/// A step of a boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BootStepView {
    /// `firmware`: from the order to the first packet. `attempts`: attempts that failed before this
    /// boot, of other NICs or protocols. `approval`, or a stage of the boot chain.
    pub step: String,
    /// End of the step.
    pub at: Timestamp,
    /// Time from the step before, in milliseconds, without the wait for approval.
    pub duration_ms: u64,
    /// Median of earlier boots of the machine, in milliseconds; absent if none has the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub own_median_ms: Option<u64>,
    /// Median of other machines of the model, in milliseconds; absent if none has the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_median_ms: Option<u64>,
}

/// What costs time in a boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BootDelayView {
    pub kind: DelayKind,
    /// The step that has the delay.
    pub step: String,
    /// Cost in milliseconds.
    pub cost_ms: u64,
    /// Observation of meshd, for people.
    pub detail: String,
    /// Advice, for people.
    pub setting: String,
}

impl BootTimesView {
    /// Compares a boot at the time `now`. `over`: a newer boot of the machine exists.
    pub fn new(
        node: &Node,
        path: &BootPath<'_>,
        comparison: &BootComparison,
        over: bool,
        now: Timestamp,
    ) -> Self {
        let boot = path.boot;
        let result = boot.standing(over);
        let until = running_until(result, over, now);
        let step = |time: BootStepTime| BootStepView::new(time, comparison);
        let steps: Vec<_> = path.steps(until).into_iter().map(step).collect();
        let begun_at = path.begun_at();
        let last = steps.iter().map(|step| step.at).chain(until).max().unwrap_or(begun_at);
        let print = &node.fingerprint;
        BootTimesView {
            node: node.id,
            name: node.name.clone(),
            session: boot.id,
            mac: boot.mac,
            model: format!("{} {}", print.manufacturer, print.product).trim().to_owned(),
            result,
            order: path.order.as_ref().map(|order| order.order.clone()),
            begun_at,
            total_ms: duration_ms(last.since(begun_at)),
            own_boots: comparison.own.boots,
            model_boots: comparison.model.boots,
            steps,
            delays: comparison.delays(path, until).into_iter().map(BootDelayView::new).collect(),
        }
    }

    /// Returns the largest delay of a step.
    pub fn delay_of(&self, step: &str) -> Option<&BootDelayView> {
        self.delays.iter().find(|delay| delay.step == step)
    }
}

impl BootStepView {
    fn new(time: BootStepTime, comparison: &BootComparison) -> Self {
        let median = |median: Option<Duration>| median.map(duration_ms);
        let step: BootStep = time.step;
        BootStepView {
            step: step.as_str().to_owned(),
            at: time.at,
            duration_ms: duration_ms(time.duration),
            own_median_ms: median(comparison.own.median(step)),
            model_median_ms: median(comparison.model.median(step)),
        }
    }
}

impl BootDelayView {
    fn new(delay: BootDelay) -> Self {
        BootDelayView {
            kind: delay.kind,
            step: delay.step.as_str().to_owned(),
            cost_ms: duration_ms(delay.cost),
            detail: delay.detail,
            setting: delay.setting.to_owned(),
        }
    }
}
