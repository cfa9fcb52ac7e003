//! Rows of the page of operations: activities, orders, rollouts and bisections, by group.

use super::{class_of, progress_of};
use crate::{
    PREFIX,
    client::encoded,
    html::{self, display_text, maybe, plain, time},
    names::NodeNames,
    screens::{
        actions::count_text,
        changes::{bisections, progress, rollouts},
    },
};
use maud::{Markup, html};
use meshd_api::{ActivityView, BisectionView, OperationView, RolloutView};
use meshd_model::{
    activities::{ActivityKind, ActivityState, ObjectKind},
    bisections::BisectionState,
    operations::OperationState,
    rollouts::RolloutState,
};
use meshd_types::Timestamp;

/// Groups of the page, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkGroup {
    /// A node works on it.
    Runs,
    /// Nothing happens before a node or an operator acts.
    Waits,
    Failed,
    Done,
}

impl WorkGroup {
    pub(super) const ALL: [WorkGroup; 4] =
        [WorkGroup::Runs, WorkGroup::Waits, WorkGroup::Failed, WorkGroup::Done];

    /// Name of the group in the address.
    pub(super) fn word(self) -> &'static str {
        match self {
            WorkGroup::Runs => "runs",
            WorkGroup::Waits => "waits",
            WorkGroup::Failed => "failed",
            WorkGroup::Done => "done",
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            WorkGroup::Runs => "In progress",
            WorkGroup::Waits => "Waiting",
            WorkGroup::Failed => "Failed",
            WorkGroup::Done => "Done",
        }
    }

    pub(super) fn class(self) -> &'static str {
        match self {
            WorkGroup::Runs => "busy",
            WorkGroup::Waits => "warn",
            WorkGroup::Failed => "bad",
            WorkGroup::Done => "good",
        }
    }

    /// Text of an empty group.
    fn empty(self) -> &'static str {
        match self {
            WorkGroup::Runs => "Nothing is in progress.",
            WorkGroup::Waits => "Nothing waits.",
            WorkGroup::Failed => "Nothing failed.",
            WorkGroup::Done => "Nothing is done yet.",
        }
    }
}

/// One row of the page.
pub(super) struct Work {
    pub(super) group: WorkGroup,
    pub(super) since: Option<Timestamp>,
    title: Markup,
    object: Markup,
    state: Markup,
    progress: Markup,
    reason: Markup,
    by: Markup,
}

impl Work {
    /// An activity links to what it is about: the reason of a failure is there.
    pub(super) fn of_activity(activity: &ActivityView, names: &NodeNames) -> Self {
        let (group, class) = match activity.state {
            ActivityState::Failed => (WorkGroup::Failed, "bad"),
            ActivityState::Requested => (WorkGroup::Waits, "warn"),
            ActivityState::Accepted => (WorkGroup::Runs, "busy"),
        };
        let is_elsewhere = activity.object != ObjectKind::Node;
        let kind = html::word(&activity.kind);
        let title = match activity.request == kind {
            true => plain(kind),
            false => html! { (kind) ": " (display_text(&activity.request)) },
        };
        Work {
            group,
            since: activity.since,
            title,
            object: html! {
                (object(activity))
                @if let Some(node) = activity.node.filter(|_| is_elsewhere) { " on " (names.link(node)) }
            },
            state: html::badge(class, activity.state.as_str()),
            progress: plain(&activity.progress),
            reason: maybe(activity.reason.as_ref()),
            by: Markup::default(),
        }
    }

    pub(super) fn of_operation(operation: &OperationView) -> Self {
        let group = match operation.state {
            OperationState::Running if operation.running == 0 && operation.done == 0 => {
                WorkGroup::Waits
            }
            OperationState::Running => WorkGroup::Runs,
            OperationState::Failed => WorkGroup::Failed,
            OperationState::Done | OperationState::Cancelled => WorkGroup::Done,
        };
        let progress = progress_of(operation);
        let to = format!("{PREFIX}/operations/{}", operation.id);
        Work {
            group,
            since: Some(operation.accepted_at),
            title: html! { a href=(to) { (display_text(&operation.verb)) " " (operation.id) } },
            object: plain(count_text(operation.nodes as usize)),
            state: html::badge(class_of(operation.state), operation.state.as_str()),
            progress: html! { (progress::bar(progress)) (progress.words()) },
            reason: maybe(operation.by.reason.as_ref()),
            by: plain(&operation.by.principal),
        }
    }

    pub(super) fn of_rollout(rollout: &RolloutView) -> Self {
        let group = match rollout.state {
            RolloutState::Running | RolloutState::Aborting => WorkGroup::Runs,
            RolloutState::Paused => WorkGroup::Waits,
            RolloutState::Failing | RolloutState::Failed => WorkGroup::Failed,
            RolloutState::Done | RolloutState::Aborted => WorkGroup::Done,
        };
        Work {
            group,
            since: Some(rollout.started_at),
            title: html! { a href=(format!("{PREFIX}/rollouts/{}", rollout.id)) { "rollout " (rollout.id) } },
            object: html! { (count_text(rollout.nodes as usize)) " to " (display_text(&rollout.target.to_string())) },
            state: rollouts::badge(rollout.state),
            progress: rollouts::progress_cell(rollout),
            reason: maybe(rollout.reason.as_ref().or(rollout.waits.as_ref())),
            by: plain(&rollout.by.principal),
        }
    }

    pub(super) fn of_bisection(bisection: &BisectionView) -> Self {
        let group = match bisection.state {
            BisectionState::Running | BisectionState::Returning => WorkGroup::Runs,
            BisectionState::Failed => WorkGroup::Failed,
            BisectionState::Done | BisectionState::Aborted => WorkGroup::Done,
        };
        Work {
            group,
            since: Some(bisection.started_at),
            title: html! { a href=(format!("{PREFIX}/bisections/{}", bisection.id)) { "bisection " (bisection.id) } },
            object: html! { "generations of profile " (bisection.profile) },
            state: bisections::badge(bisection.state),
            progress: plain(bisections::progress_words(bisection)),
            reason: maybe(bisection.reason.as_ref()),
            by: plain(&bisection.by.principal),
        }
    }
}

/// Renders one group.
pub(super) fn table(all: &[Work], group: WorkGroup) -> Markup {
    let rows: Vec<Vec<Markup>> = all
        .iter()
        .filter(|work| work.group == group)
        .map(|work| {
            let since = work.since.map(time).unwrap_or_default();
            let [title, object, state, progress, reason, by] =
                [&work.title, &work.object, &work.state, &work.progress, &work.reason, &work.by]
                    .map(Clone::clone);
            vec![title, object, state, progress, since, reason, by]
        })
        .collect();
    html::table(
        &["Change", "Object", "State", "Progress", "Since", "Reason", "By"],
        &rows,
        group.empty(),
    )
}

/// Renders the object of an activity. A node opens at the part that explains the activity.
fn object(activity: &ActivityView) -> Markup {
    let id = encoded(&activity.id);
    let name = display_text(&activity.name);
    let page = match (activity.object, activity.kind) {
        (ObjectKind::Node, ActivityKind::Boot | ActivityKind::Reboot) => {
            format!("/nodes/{id}?tab=boot")
        }
        (ObjectKind::Node, _) => format!("/nodes/{id}?tab=work"),
        (ObjectKind::Vm, _) => format!("/vms/{id}"),
        (ObjectKind::Task, _) => format!("/tasks/{id}"),
        (ObjectKind::Slot, _) => "/slots".to_owned(),
        (ObjectKind::Machine, _) => return plain(name),
    };
    // The UUID of a VM would push the other columns away; the name of a VM is unique.
    let has_short_id = activity.object == ObjectKind::Node && activity.id != activity.name;
    html! { a href=(format!("{PREFIX}{page}")) { (name) } @if has_short_id { " " (html::id_in_brackets(&activity.id)) } }
}
