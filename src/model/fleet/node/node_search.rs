//! Finds the nodes that an operator names: by ID, by name, by the beginning of one of them, or by a
//! hostlist.

use meshd_types::{Hostlist, NodeId, NodePattern, matches_glob};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
    ops::Bound,
};

/// Maximum number of candidates in the error for an ambiguous name.
pub const MAX_CANDIDATES: usize = 5;

/// Why names do not select nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeSearchError {
    /// Names without a node, and wildcard patterns that match none.
    #[error("{}", missing_text(.names))]
    Missing { names: Vec<String> },
    #[error("`{name}` is ambiguous, {count} nodes match: {candidates}")]
    Ambiguous {
        name: String,
        count: usize,
        /// The first matches, as `ID (name)`.
        candidates: String,
    },
}

meshd_types::hints!(NodeSearchError {
    NodeSearchError::Missing { .. } => "`meshd node list` lists all nodes, with --expected those that have not booted";
    NodeSearchError::Ambiguous { .. } => "write more of the name, or use the node ID";
});

/// Maximum number of missing names that an error shows.
const MAX_SHOWN: usize = 32;

fn missing_text(names: &[String]) -> String {
    if let [name] = names {
        return format!("there is no node `{name}`");
    }
    let mut text = "there are no nodes".to_owned();
    for (number, name) in names.iter().take(MAX_SHOWN).enumerate() {
        let comma = if number == 0 { "" } else { "," };
        let _ = write!(text, "{comma} `{name}`");
    }
    if let Some(more @ 1..) = names.len().checked_sub(MAX_SHOWN) {
        let _ = write!(text, " and {more} more");
    }
    text
}

/// Nodes by ID and by name.
struct NodeIndex<'a> {
    /// Whether the node is present, that is, not removed.
    by_id: BTreeMap<String, (NodeId, bool)>,
    /// Present nodes.
    by_name: BTreeMap<&'a str, Vec<NodeId>>,
}

impl<'a> NodeIndex<'a> {
    fn new(nodes: impl Iterator<Item = (NodeId, &'a str, bool)>) -> Self {
        let mut index = NodeIndex { by_id: BTreeMap::new(), by_name: BTreeMap::new() };
        for (id, name, is_present) in nodes {
            index.by_id.insert(id.to_string(), (id, is_present));
            if is_present {
                index.by_name.entry(name).or_default().push(id);
            }
        }
        index
    }

    /// Returns the node with this ID, else the nodes with this name. A removed node has no name.
    fn exact(&self, text: &str) -> Vec<NodeId> {
        match self.by_id.get(text) {
            Some((id, _)) => vec![*id],
            None => self.by_name.get(text).cloned().unwrap_or_default(),
        }
    }

    /// Returns the present nodes whose ID or name begins with a text.
    fn beginning_with(&self, text: &str) -> Vec<NodeId> {
        if text.is_empty() {
            return Vec::new();
        }
        let from = (Bound::Included(text), Bound::Unbounded);
        let ids = self.by_id.range::<str, _>(from).take_while(|(id, _)| id.starts_with(text));
        let ids = ids.filter(|(_, (_, is_present))| *is_present).map(|(_, (id, _))| *id);
        let names =
            self.by_name.range::<str, _>(from).take_while(|(name, _)| name.starts_with(text));
        let found: BTreeSet<NodeId> = ids.chain(names.flat_map(|(_, ids)| ids.clone())).collect();
        found.into_iter().collect()
    }

    /// Returns the present nodes whose names match a pattern, in the order of their names.
    fn matching(&self, pattern: &str) -> Vec<NodeId> {
        let names = self.by_name.iter().filter(|(name, _)| matches_glob(pattern, name));
        names.flat_map(|(_, ids)| ids.clone()).collect()
    }

    fn ambiguous(&self, name: &str, ids: &[NodeId]) -> NodeSearchError {
        let name_of = |id: &NodeId| {
            let named = self.by_name.iter().find(|(_, ids)| ids.contains(id));
            named.map_or("", |(name, _)| *name)
        };
        let candidates = ids.iter().take(MAX_CANDIDATES);
        let candidates: Vec<String> =
            candidates.map(|id| format!("{id} ({})", name_of(id))).collect();
        NodeSearchError::Ambiguous {
            name: name.to_owned(),
            count: ids.len(),
            candidates: candidates.join(", "),
        }
    }
}

/// Finds a node by ID, else by name, else by the beginning of an ID or name. A removed node (third
/// element `false`) is found only by its complete ID.
///
/// # Errors
/// No node or several nodes match.
pub fn find_node<'a>(
    text: &str,
    nodes: impl Iterator<Item = (NodeId, &'a str, bool)>,
) -> Result<NodeId, NodeSearchError> {
    let found = find_patterns(&[NodePattern::Word(text.to_owned())], nodes)?;
    found.first().copied().ok_or_else(|| NodeSearchError::Missing { names: vec![text.to_owned()] })
}

/// Finds all nodes of a hostlist. Returns each node once, in the order of the list. Words are found
/// as by [`find_node`]; names from brackets must be complete; wildcards match names only.
///
/// # Errors
/// Some names match no node: the error has all of them. Or a word matches several nodes.
pub fn find_nodes<'a>(
    hostlist: &Hostlist,
    nodes: impl Iterator<Item = (NodeId, &'a str, bool)>,
) -> Result<Vec<NodeId>, NodeSearchError> {
    find_patterns(hostlist.patterns(), nodes)
}

fn find_patterns<'a>(
    patterns: &[NodePattern],
    nodes: impl Iterator<Item = (NodeId, &'a str, bool)>,
) -> Result<Vec<NodeId>, NodeSearchError> {
    let index = NodeIndex::new(nodes);
    let mut found = Vec::new();
    let mut seen = BTreeSet::new();
    let mut missing = Vec::new();
    let mut ambiguous = None;
    for pattern in patterns {
        let (text, ids, takes_several) = match pattern {
            NodePattern::Glob(text) => (text, index.matching(text), true),
            NodePattern::Name(text) => (text, index.exact(text), false),
            NodePattern::Word(text) => {
                let exact = index.exact(text);
                let ids = if exact.is_empty() { index.beginning_with(text) } else { exact };
                (text, ids, false)
            }
        };
        if ids.is_empty() {
            missing.push(text.clone());
        } else if ids.len() > 1 && !takes_several {
            ambiguous = ambiguous.or_else(|| Some(index.ambiguous(text, &ids)));
        }
        found.extend(ids.into_iter().filter(|id| seen.insert(*id)));
    }
    if !missing.is_empty() {
        return Err(NodeSearchError::Missing { names: missing });
    }
    ambiguous.map_or(Ok(found), Err)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u8) -> NodeId {
        meshd_types::Basis::Mac(meshd_types::MacAddr([2, 0, 0, 0, 0, number])).node_id()
    }

    fn nodes() -> [(NodeId, &'static str, bool); 5] {
        [
            (id(1), "web-1", true),
            (id(2), "web-10", true),
            (id(3), "db", true),
            (id(4), "old", false),
            (id(5), "gpu050", true),
        ]
    }

    fn missing(names: &[&str]) -> NodeSearchError {
        NodeSearchError::Missing { names: names.iter().map(|&name| name.to_owned()).collect() }
    }

    #[test]
    fn node_is_found_by_id_name_or_unique_prefix_and_several_are_named() {
        let find = |text: &str| find_node(text, nodes().into_iter());
        assert_eq!(find("web-1"), Ok(id(1)), "a complete name precedes a beginning");
        assert_eq!(find("d"), Ok(id(3)));
        assert_eq!(find(&id(4).to_string()), Ok(id(4)));
        assert_eq!(find("old"), Err(missing(&["old"])), "a removed node has no name");
        assert_eq!(find("x"), Err(missing(&["x"])));
        assert_eq!(find(""), Err(missing(&[""])));
        assert_eq!(find(&id(3).to_string()[..6]), Ok(id(3)));
        let error = find("we").expect_err("two nodes match");
        let mut candidates = [format!("{} (web-1)", id(1)), format!("{} (web-10)", id(2))];
        candidates.sort();
        let expected = format!("`we` is ambiguous, 2 nodes match: {}", candidates.join(", "));
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn hostlist_selects_each_node_once_in_its_order() {
        let find = |text: &str| find_nodes(&text.parse().expect("a hostlist"), nodes().into_iter());
        assert_eq!(find("db,web-[1,10]"), Ok(vec![id(3), id(1), id(2)]));
        assert_eq!(find("web*,db,web-1"), Ok(vec![id(1), id(2), id(3)]));
        assert_eq!(find(&format!("{},gpu[050]", id(3))), Ok(vec![id(3), id(5)]));
        assert_eq!(find("gpu[050]"), find("gp"), "a word may be abbreviated");
        assert_eq!(find("web-?"), Ok(vec![id(1)]));
    }

    #[test]
    fn names_without_a_node_are_all_in_the_error() {
        let find = |text: &str| find_nodes(&text.parse().expect("a hostlist"), nodes().into_iter());
        assert_eq!(find("gpu[049-051],db,x*,w"), Err(missing(&["gpu049", "gpu051", "x*"])));
        let error = find("gpu[049-051]").expect_err("two are missing");
        assert_eq!(error.to_string(), "there are no nodes `gpu049`, `gpu051`");
        let error = find("n[1-200]").expect_err("all are missing").to_string();
        assert!(error.ends_with(", `n32` and 168 more"), "{error}");
        assert_eq!(find("o*,old"), Err(missing(&["o*", "old"])), "removed nodes have no names");
        assert_eq!(find("gpu[05]"), Err(missing(&["gpu05"])), "no beginning of gpu050");
        assert!(matches!(find("w,db"), Err(NodeSearchError::Ambiguous { count: 2, .. })));
    }
}
