//! The list of the nodes that need an operator.

use super::wall_node::{WallNode, begin, class, worst_condition};
use crate::{
    PREFIX,
    html::{self, display_text, time},
};
use maud::{Markup, html};
use meshd_model::fleet::{Condition, Phase};

/// Number of nodes in the list; a link leads to the others.
const ROWS: usize = 8;
/// Path of the list of all nodes that need an operator, below `/ui`.
const ALL: &str = "/nodes?attention=true";

/// Renders the nodes that need an operator, the most urgent and newest first. `group_of` returns
/// the name of the group in which the wall shows a node.
pub(super) fn list(nodes: &[WallNode], group_of: impl Fn(&WallNode) -> String) -> Markup {
    let mut troubled: Vec<_> = nodes.iter().filter(|node| node.needs_attention()).collect();
    troubled.sort_by_key(|node| (node.severity(), std::cmp::Reverse(begin(node))));
    let all = format!("{PREFIX}{ALL}");
    html! {
        @if !troubled.is_empty() {
            h2 { a href=(all) { (attention_text(troubled.len())) } }
            ul.troubles {
                @for node in troubled.iter().take(ROWS) { (row(node, &group_of(node))) }
            }
            @if troubled.len() > ROWS { p { a href=(all) { "All " (troubled.len()) " nodes that need attention" } } }
        }
    }
}

/// Returns `1 node needs attention` or `3 nodes need attention`.
fn attention_text(nodes: usize) -> String {
    match nodes {
        1 => "1 node needs attention".to_owned(),
        nodes => format!("{nodes} nodes need attention"),
    }
}

fn row(node: &WallNode, group: &str) -> Markup {
    let condition = worst_condition(node);
    html! {
        li class=(class(node)) {
            a href=(format!("{PREFIX}/nodes/{}", node.id)) { strong { (display_text(&node.name)) } }
            " " span.quiet { (group) }
            " " span.state { (node.phase) @if let Some(condition) = condition { ", " (html::condition(condition.kind)) } }
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
