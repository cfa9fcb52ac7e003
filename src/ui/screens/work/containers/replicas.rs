//! Replicas of containers as a table.

use crate::{
    PREFIX,
    client::encoded,
    console::ConsoleTarget,
    html::{self, maybe, plain, time},
    names::NodeNames,
};
use maud::{Markup, html};
use meshd_api::ReplicaView;
use meshd_model::work::container::ReplicaPhase;
use meshd_trust::Role;

/// Renders replicas, of one container or of those of a node.
pub(in crate::screens) fn replica_table(
    replicas: &[&ReplicaView],
    names: &NodeNames,
    role: Role,
) -> Markup {
    let row = |replica: &&ReplicaView| {
        let container = format!("{PREFIX}/containers/{}", encoded(replica.id.container.as_str()));
        vec![
            html! { a href=(container) { (replica.id) } },
            html::badge(class(replica.phase), replica.phase.as_str()),
            names.maybe_link(replica.node),
            plain(replica.restarts),
            maybe(replica.code),
            replica.since.map(time).unwrap_or_default(),
            plain(&replica.detail),
            links(replica, role),
        ]
    };
    let rows: Vec<_> = replicas.iter().map(row).collect();
    let heads = ["Replica", "State", "Node", "Restarts", "Exit code", "Since", "Reason", "Open"];
    html::table(&heads, &rows, "There is no replica.")
}

/// Returns the colour class of a state.
fn class(phase: ReplicaPhase) -> &'static str {
    match phase {
        ReplicaPhase::Running | ReplicaPhase::Healthy => "good",
        ReplicaPhase::Ordered
        | ReplicaPhase::Fetching
        | ReplicaPhase::Starting
        | ReplicaPhase::Releasing => "busy",
        ReplicaPhase::Waiting | ReplicaPhase::Unconfirmed => "warn",
        ReplicaPhase::Unplaced
        | ReplicaPhase::Unhealthy
        | ReplicaPhase::Failed
        | ReplicaPhase::Unreachable => "bad",
        ReplicaPhase::Exited | ReplicaPhase::Stopped => "idle",
    }
}

/// Renders the links to what the role may open.
fn links(replica: &ReplicaView, role: Role) -> Markup {
    let has_process = replica.runs() || replica.phase == ReplicaPhase::Unhealthy;
    html! {
        @if role >= Role::Operator && replica.node.is_some() {
            a href=(super::log::page_of(replica)) { "Log" } " "
        }
        @if role >= Role::Admin && has_process {
            a href=(ConsoleTarget::Replica(replica.id.to_string()).page()) { "Shell" }
        }
    }
}
