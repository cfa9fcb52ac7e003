//! The list of the nodes that need an operator.

use super::wall_node::{Severity, WallNode, begin, class, worst_condition};
use crate::{
    PREFIX,
    html::{self, display_text, time},
};
use maud::{Markup, html};
use meshd_model::fleet::{Condition, Phase};
use std::collections::BTreeSet;

/// Number of nodes in the list; a link leads to the others.
const ROWS: usize = 8;
/// The filter of the node list for the phases of trouble.
const TROUBLE_PHASES: &str = "offline,degraded,quarantined";

/// Renders the nodes that need an operator, the most urgent and newest first. `group_of` returns
/// the name of the group in which the wall shows a node.
pub(super) fn list(nodes: &[WallNode], group_of: impl Fn(&WallNode) -> String) -> Markup {
    let mut troubled: Vec<_> =
        nodes.iter().filter(|node| Severity::of(node).needs_attention()).collect();
    troubled.sort_by_key(|node| (Severity::of(node), std::cmp::Reverse(begin(node))));
    html! {
        @if !troubled.is_empty() {
            h2 { (troubled.len()) @if troubled.len() == 1 { " node needs attention" } @else { " nodes need attention" } }
            ul.troubles {
                @for node in troubled.iter().take(ROWS) { (row(node, &group_of(node))) }
            }
            @if troubled.len() > ROWS { (links(&troubled)) }
        }
    }
}

/// Renders links to lists with all nodes that need an operator: a list selects by phase or by
/// condition.
fn links(troubled: &[&WallNode]) -> Markup {
    let conditions = troubled.iter().filter_map(|node| worst_condition(node));
    let kinds: BTreeSet<_> = conditions.map(|condition| condition.kind.as_str()).collect();
    let kinds: Vec<_> = kinds.into_iter().collect();
    html! {
        p {
            a href=(format!("{PREFIX}/nodes?phase={TROUBLE_PHASES}")) { "All nodes in trouble by phase" }
            @if !kinds.is_empty() {
                " " a href=(format!("{PREFIX}/nodes?condition={}", kinds.join(","))) { "All nodes with these conditions" }
            }
        }
    }
}

fn row(node: &WallNode, group: &str) -> Markup {
    let condition = worst_condition(node);
    html! {
        li class=(class(node)) {
            a href=(format!("{PREFIX}/nodes/{}", node.id)) { strong { (display_text(&node.name)) } }
            " " span.quiet { (group) }
            " " span.state { (node.phase) @if let Some(condition) = condition { ", " (condition.kind.as_str()) } }
            " " span.reason { (reason(node, condition)) }
            " " (time(begin(node)))
        }
    }
}

fn reason(node: &WallNode, condition: Option<&Condition>) -> Markup {
    match condition.filter(|condition| !condition.detail.is_empty()) {
        Some(condition) => html::plain(&condition.detail),
        None if node.phase == Phase::Offline => html::plain("no message from the node"),
        None if node.phase == Phase::Quarantined => html::plain("held until it is released"),
        None => Markup::default(),
    }
}
