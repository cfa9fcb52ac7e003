//! Names and labels that a rule of the site gives the nodes that it approves.

use crate::environment::{records::add_labels, site_snapshot::SiteSnapshot};
use meshd_config::{EnrollRule, NamePattern, NumberedNames};
use meshd_model::fleet::{AuditContext, Event, EventKind, Node, Phase};
use meshd_store::Tx;
use meshd_types::{LabelKey, NodeId, Timestamp, is_reserved_host_name};
use std::collections::{BTreeMap, BTreeSet};

/// Names that rules have given in one transaction, which the records before it do not have.
pub(crate) struct RuleNames<'s> {
    snapshot: &'s SiteSnapshot,
    /// All names of nodes, machines and reservations; read at the first use.
    taken: Option<BTreeSet<String>>,
    /// The next number of each pattern with its labels: lower ones are taken.
    next: BTreeMap<NumberedNames, u32>,
}

impl<'s> RuleNames<'s> {
    pub(crate) fn new(snapshot: &'s SiteSnapshot) -> Self {
        RuleNames { snapshot, taken: None, next: BTreeMap::new() }
    }

    /// Returns the first free name of a pattern.
    fn assign(&mut self, tx: &Tx<'_>, names: NumberedNames) -> Option<String> {
        let taken = self.taken.get_or_insert_with(|| taken_names(tx, self.snapshot));
        let from = self.next.get(&names).copied().unwrap_or(1);
        let is_taken = |name: &str| {
            taken.contains(name)
                || is_reserved_host_name(name)
                // An ID names its node.
                || name.strip_prefix("node-").unwrap_or(name).parse::<NodeId>().is_ok()
        };
        let (number, name) = names.first_free(from, is_taken)?;
        taken.insert(name.clone());
        self.next.insert(names, number + 1);
        Some(name)
    }
}

/// Names of nodes, of machines that have not booted, and of reservations.
fn taken_names(tx: &Tx<'_>, snapshot: &SiteSnapshot) -> BTreeSet<String> {
    let nodes = tx.before().nodes().filter(|node| node.phase != Phase::Removed);
    let machines = tx.before().expected_machines().filter_map(|machine| machine.name.clone());
    let reserved = snapshot.site.node_names.values().cloned();
    nodes.map(|node| node.name.clone()).chain(machines).chain(reserved).collect()
}

/// Gives an approved node the labels and the name of its rule. What the node has stays.
pub(super) fn apply_rule(
    tx: &mut Tx<'_>,
    node: &mut Node,
    rule: &EnrollRule,
    names: &mut RuleNames<'_>,
    audit: &AuditContext,
    now: Timestamp,
) {
    add_labels(tx, node, &rule.labels, audit, now);
    let Some(pattern) = rule.node_name.as_ref().filter(|_| node.has_generated_name()) else {
        return;
    };
    match name_of(tx, node, pattern, names) {
        Ok(name) => {
            let detail = format!("{} -> {name}", node.name);
            node.name = name;
            tx.event(Event::new(now, audit, EventKind::Renamed, detail).of_node(node.id));
        }
        Err(reason) => {
            tracing::warn!(node = %node.id, rule = %rule.name, %pattern, reason, "the rule gives the node no name");
        }
    }
}

fn name_of(
    tx: &Tx<'_>,
    node: &Node,
    pattern: &NamePattern,
    names: &mut RuleNames<'_>,
) -> Result<String, String> {
    let label = |key: &LabelKey| node.labels.get(key).map(ToString::to_string);
    let numbered = pattern.names(label).map_err(|key| format!("the node has no label `{key}`"))?;
    let name = names.assign(tx, numbered);
    name.ok_or_else(|| "no name is free, or a label makes no host name".to_owned())
}
