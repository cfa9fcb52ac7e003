//! The wall: one cell for each node, in groups. Groups with trouble come first; within a group the
//! order is that of the names, so that a cell stays in its place.

use super::wall_node::{Boot, LEGEND, WallNode, class, worst_condition};
use crate::{
    PREFIX,
    client::encoded,
    form::Fields,
    html::{self, badge, display_text, time},
};
use maud::{Markup, html};
use meshd_model::fleet::{Severity, Stage};
use meshd_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// Up to this number of nodes, each has a tile with name, phase and progress.
pub(super) const MAX_TILES: usize = 60;
/// Maximum number of cells. Beyond it, nodes without trouble are a number of their group.
const MAX_CELLS: usize = 1500;
/// Maximum number of groups: a label may have another value on each node.
const MAX_GROUPS: usize = 500;
/// Maximum number of characters in a cell.
const CELL_CHARS: usize = 3;
/// Maximum number of labels in the choice of groups.
const MAX_LABELS: usize = 12;
/// The label that groups the wall, if nodes have it and the address chooses no other.
const DEFAULT_LABEL: &str = "rack";

/// The property that groups the nodes of the wall.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Grouping {
    Label(String),
    Profile,
    Segment,
    Nothing,
}

/// A group: name, and the address of the node list that shows it.
type GroupHead = (String, Option<String>);

impl Grouping {
    /// Returns the choice of the address. By default, racks.
    pub(super) fn read(query: &Fields, nodes: &[WallNode]) -> Self {
        match (query.text("label"), query.text("by")) {
            ("", "profile") => Grouping::Profile,
            ("", "segment") => Grouping::Segment,
            ("", "nothing") => Grouping::Nothing,
            ("", _) if label_keys(nodes).contains(DEFAULT_LABEL) => {
                Grouping::Label(DEFAULT_LABEL.to_owned())
            }
            ("", _) => Grouping::Nothing,
            (key, _) => Grouping::Label(display_text(key)),
        }
    }

    fn query(&self) -> String {
        match self {
            Grouping::Label(key) => format!("label={}", encoded(key)),
            Grouping::Profile => "by=profile".to_owned(),
            Grouping::Segment => "by=segment".to_owned(),
            Grouping::Nothing => "by=nothing".to_owned(),
        }
    }

    fn name(&self) -> &str {
        match self {
            Grouping::Label(key) => key,
            Grouping::Profile => "profile",
            Grouping::Segment => "segment",
            Grouping::Nothing => "nothing",
        }
    }

    /// Returns the group of a node.
    fn head(&self, node: &WallNode) -> GroupHead {
        let nodes = |filter: String| Some(format!("{PREFIX}/nodes?{filter}"));
        match self {
            Grouping::Label(key) => match value_of(node, key) {
                Some(value) => (
                    value.to_owned(),
                    nodes(format!("label={}", encoded(&format!("{key}={value}")))),
                ),
                None => {
                    (format!("no {key}"), nodes(format!("label={}", encoded(&format!("!{key}")))))
                }
            },
            Grouping::Profile => {
                (node.profile.to_string(), nodes(format!("profile={}", node.profile)))
            }
            Grouping::Segment => {
                (node.segment.clone().unwrap_or_else(|| "no segment".to_owned()), None)
            }
            Grouping::Nothing => ("all nodes".to_owned(), nodes(String::new())),
        }
    }

    /// Returns the group of a node in words; empty without groups.
    pub(super) fn words(&self, node: &WallNode) -> String {
        match self {
            Grouping::Nothing => String::new(),
            Grouping::Label(key) => {
                value_of(node, key).map(|value| format!("{key} {value}")).unwrap_or_default()
            }
            _ => self.head(node).0,
        }
    }
}

fn value_of<'n>(node: &'n WallNode, key: &str) -> Option<&'n str> {
    node.labels.get(key).map(String::as_str)
}

fn label_keys(nodes: &[WallNode]) -> BTreeSet<&str> {
    nodes.iter().flat_map(|node| node.labels.keys()).map(String::as_str).collect()
}

/// Returns a text that sorts numbers in names by their value.
fn natural_key(name: &str) -> String {
    let mut key = String::new();
    for part in name.split_inclusive(|c: char| !c.is_ascii_digit()) {
        let digits = part.trim_end_matches(|c: char| !c.is_ascii_digit());
        let rest = &part[digits.len()..];
        key += &format!("{digits:0>12}{rest}");
    }
    key
}

/// Returns the end of a name: its number, or its last characters.
fn short_name(name: &str) -> String {
    let shown: Vec<char> = display_text(name).chars().filter(|c| !c.is_whitespace()).collect();
    let digits = shown.iter().rev().take_while(|c| c.is_ascii_digit()).count();
    let count = if digits == 0 { CELL_CHARS } else { digits.min(CELL_CHARS) };
    shown[shown.len().saturating_sub(count)..].iter().collect()
}

/// One group of the wall.
struct Group<'n> {
    head: GroupHead,
    nodes: Vec<&'n WallNode>,
}

impl Group<'_> {
    fn troubled(&self) -> usize {
        self.nodes.iter().filter(|node| node.needs_attention()).count()
    }

    fn worst(&self) -> Severity {
        self.nodes.iter().map(|node| node.severity()).min().unwrap_or(Severity::Fine)
    }
}

/// Returns the groups in the order of the wall.
fn groups<'n>(nodes: &'n [WallNode], grouping: &Grouping) -> Vec<Group<'n>> {
    let mut by_head: BTreeMap<GroupHead, Vec<&WallNode>> = BTreeMap::new();
    for node in nodes {
        by_head.entry(grouping.head(node)).or_default().push(node);
    }
    let mut groups: Vec<_> =
        by_head.into_iter().map(|(head, nodes)| Group { head, nodes }).collect();
    groups.sort_by_cached_key(|group| {
        // Nodes that wait or boot are no reason to move a rack.
        (group.worst().min(Severity::Pending), natural_key(&group.head.0))
    });
    for group in &mut groups {
        group.nodes.sort_by_cached_key(|node| natural_key(&node.name));
    }
    groups
}

/// Renders the choice of groups as links, so that the address remembers it.
pub(super) fn choice(nodes: &[WallNode], chosen: &Grouping) -> Markup {
    let labels = label_keys(nodes);
    let labels = labels.iter().take(MAX_LABELS).map(|key| Grouping::Label((*key).to_owned()));
    let all = labels.chain([Grouping::Profile, Grouping::Segment, Grouping::Nothing]);
    html! {
        p.choice { "Group by "
            @for grouping in all {
                a href=(format!("{PREFIX}/?{}", grouping.query())) aria-current=[(grouping == *chosen).then_some("true")] { (grouping.name()) }
                " "
            }
        }
    }
}

/// Renders what the looks of cells mean. Tiles have words instead.
pub(super) fn legend() -> Markup {
    html! {
        ul.legend aria-label="Legend of the wall" {
            @for (class, meaning) in LEGEND { li { b class=(class) aria-hidden="true" { "17" } " " (meaning) } }
        }
    }
}

/// Renders all nodes. `boots` has the boots in progress.
pub(super) fn wall(
    nodes: &[WallNode],
    grouping: &Grouping,
    boots: &BTreeMap<NodeId, Boot>,
) -> Markup {
    let groups = groups(nodes, grouping);
    let has_heads = *grouping != Grouping::Nothing;
    if nodes.len() <= MAX_TILES {
        return html! {
            @for group in &groups {
                @if has_heads { h2 { (head(group)) } }
                div.tiles { @for node in &group.nodes { (tile(node, boots.get(&node.id))) } }
            }
        };
    }
    let hides_fine = nodes.len() > MAX_CELLS;
    let mut room = MAX_CELLS;
    let racks: Vec<_> = groups
        .iter()
        .map(|group| {
            let is_shown = |node: &&&WallNode| !hides_fine || node.needs_attention();
            let shown: Vec<_> = group.nodes.iter().filter(is_shown).take(room).collect();
            room -= shown.len();
            (group, shown)
        })
        .collect();
    html! {
        div.wall {
            @for (group, shown) in racks.iter().take(MAX_GROUPS) {
                div.rack {
                    @if has_heads { span.head { (head(group)) } }
                    @for node in shown { (cell(node)) }
                    @let rest = group.nodes.len() - shown.len();
                    @if rest > 0 { span.quiet { (rest) " others" } }
                }
            }
            @if racks.len() > MAX_GROUPS { p.quiet { (racks.len() - MAX_GROUPS) " more groups" } }
        }
    }
}

fn head(group: &Group<'_>) -> Markup {
    let (name, address) = &group.head;
    let troubled = group.troubled();
    html! {
        @match address {
            Some(address) => a href=(address) title=(name) { (name) },
            None => span title=(name) { (name) }
        }
        @if troubled > 0 { " " (badge("bad", &troubled.to_string())) }
    }
}

fn cell(node: &WallNode) -> Markup {
    let name = display_text(&node.name);
    let condition = worst_condition(node).map(|condition| condition.kind);
    let condition = condition.map(|kind| format!(", {} ({})", kind.words(), kind.as_str()));
    let title = format!("{name}: {}{}", node.phase, condition.unwrap_or_default());
    html! { a class=(class(node)) href=(format!("{PREFIX}/nodes/{}", node.id)) title=(title) aria-label=(title) { (short_name(&node.name)) } }
}

/// Renders one node; during a boot, with its progress and the time at which the boot began.
pub(super) fn tile(node: &WallNode, boot: Option<&Boot>) -> Markup {
    html! {
        a class=(format!("tile {}", class(node))) href=(format!("{PREFIX}/nodes/{}", node.id)) {
            strong { (display_text(&node.name)) }
            span { (node.phase) }
            @if let Some(boot) = boot {
                (progress(boot.stage))
                span.quiet { "began " (time(boot.opened_at)) }
            }
            @if let Some(condition) = worst_condition(node) { span.mark { (html::condition(condition.kind)) } }
        }
    }
}

/// Renders the position of a stage in the boot chain.
fn progress(stage: Stage) -> Markup {
    let position = Stage::ALL.iter().position(|other| *other == stage).map_or(0, |index| index + 1);
    html! {
        progress.boot value=(position) max=(Stage::ALL.len()) aria-label=(format!("boot: {}", stage.as_str())) {}
        span.quiet { (stage.as_str()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_by_their_numbers_and_are_shortened_to_them() {
        let mut names = ["gpu-10", "gpu-9", "a2b10", "a2b9", "a"];
        names.sort_by_cached_key(|name| natural_key(name));
        assert_eq!(names, ["a", "a2b9", "a2b10", "gpu-9", "gpu-10"]);
        let short =
            [("gpu-0017", "017"), ("gpu-7", "7"), ("node-3f9a1c0e", "c0e"), ("ab", "ab"), ("", "")];
        for (name, expected) in short {
            assert_eq!(short_name(name), expected);
        }
    }
}
