//! Filters and order of the node list.

use super::{
    page::{OrderKey, time_key},
    parameters::{ListSpec, ParameterError, Parameters},
    text::Needle,
};
use meshd_model::fleet::{ConditionKind, Node, Phase, Selector, Severity};
use meshd_types::{Hostlist, MacAddr, NodeId, ProfileName, Timestamp};
use std::{borrow::Cow, collections::BTreeSet, net::IpAddr};

/// Fields and orders of `GET /v1/nodes`.
pub(crate) const NODES: ListSpec = ListSpec {
    fields: &[
        "id",
        "name",
        "profile",
        "assigned",
        "phase",
        "conditions",
        "address",
        "mac",
        "model",
        "serial",
        "memory",
        "gpus",
        "segment",
        "circuit_id",
        "remote_id",
        "generation",
        "next_generation",
        "pinned",
        "rolled_back",
        "last_seen",
        "boot",
        "labels",
        "revision",
        "work",
    ],
    sorts: &["id", "name", "phase", "profile", "address", "mac", "last_seen", "discovered_at"],
};

/// Filter of the node list.
#[derive(Clone, Debug, Default)]
pub(crate) struct NodeFilter {
    /// Includes removed nodes.
    removed: bool,
    phases: Option<Vec<Phase>>,
    /// Selects nodes with one of these conditions.
    conditions: Option<Vec<&'static str>>,
    /// Selects nodes that need an operator.
    attention: bool,
    profiles: Option<Vec<ProfileName>>,
    /// Names of nodes, to resolve with [`NodeFilter::of_nodes`].
    pub(crate) hostlist: Option<Hostlist>,
    nodes: Option<BTreeSet<NodeId>>,
    label: Option<Selector>,
    text: Option<Needle>,
}

impl NodeFilter {
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, ParameterError> {
        let known = Phase::ALL.map(Phase::as_str);
        let phases = parameters.words("phase", &known)?.map(|words| {
            let is_named = |phase: &Phase| words.contains(&phase.as_str());
            Phase::ALL.into_iter().filter(is_named).collect::<Vec<_>>()
        });
        Ok(NodeFilter {
            // The filter `phase=removed` selects removed nodes without `removed=true`.
            removed: parameters.flag("removed")?
                || phases.as_ref().is_some_and(|phases| phases.contains(&Phase::Removed)),
            phases,
            conditions: parameters
                .words("condition", &ConditionKind::ALL.map(ConditionKind::as_str))?,
            attention: parameters.flag("attention")?,
            profiles: parameters.several("profile")?,
            hostlist: parameters.parsed("nodes")?,
            nodes: None,
            label: parameters.parsed("label")?,
            text: parameters.needle()?,
        })
    }

    /// Selects only these nodes. A named node may be removed.
    pub(crate) fn of_nodes(self, nodes: impl IntoIterator<Item = NodeId>) -> Self {
        NodeFilter { removed: true, nodes: Some(nodes.into_iter().collect()), ..self }
    }

    /// Returns true if the filter selects a node. `default` is the profile of a node without an
    /// assigned profile.
    pub(crate) fn takes(&self, node: &Node, default: &ProfileName) -> bool {
        (self.removed || node.phase != Phase::Removed)
            && self.phases.as_ref().is_none_or(|phases| phases.contains(&node.phase))
            && self.conditions.as_ref().is_none_or(|kinds| {
                node.conditions.iter().any(|condition| kinds.contains(&condition.kind.as_str()))
            })
            && (!self.attention || Severity::of(node.phase, &node.conditions).needs_attention())
            && self
                .profiles
                .as_ref()
                .is_none_or(|all| all.contains(node.profile.as_ref().unwrap_or(default)))
            && self.nodes.as_ref().is_none_or(|nodes| nodes.contains(&node.id))
            && self.label.as_ref().is_none_or(|label| label.matches(&node.labels))
            && self
                .text
                .as_ref()
                .is_none_or(|text| texts(node).any(|(_, found)| text.is_in(&found)))
    }
}

/// Returns the searchable texts of a node: the name of the field, and its text.
pub(crate) fn texts(node: &Node) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let print = &node.fingerprint;
    let plain = [
        ("name", node.name.as_str()),
        ("serial", &print.serial),
        ("board_serial", &print.board_serial),
    ];
    let plain = plain.into_iter().map(|(field, text)| (field, Cow::Borrowed(text)));
    let ids = std::iter::once(node.id).chain(node.former.iter().copied());
    let ids = ids.map(|id| ("id", Cow::Owned(id.to_string())));
    let others = print.macs.iter().copied().filter(|mac| *mac != node.mac);
    let macs = std::iter::once(node.mac)
        .chain(others)
        .map(|mac: MacAddr| ("mac", Cow::Owned(mac.to_string())));
    let uuid = print.uuid.map(|uuid| ("uuid", Cow::Owned(uuid.to_string())));
    let address = node.address.map(|address: IpAddr| ("address", Cow::Owned(address.to_string())));
    plain.chain(ids).chain(macs).chain(uuid).chain(address)
}

/// Returns the sort key of a node in an order of [`NODES`]. Only the order by time calls `seen`.
pub(crate) fn order_key(
    node: &Node,
    sort: &str,
    default: &ProfileName,
    seen: impl FnOnce(&Node) -> Timestamp,
) -> OrderKey {
    let key = match sort {
        "name" => node.name.clone(),
        "phase" => node.phase.as_str().to_owned(),
        "profile" => node.profile.as_ref().unwrap_or(default).to_string(),
        "address" => address_key(node.address),
        "mac" => node.mac.to_string(),
        "last_seen" => time_key(seen(node)),
        "discovered_at" => time_key(node.discovered_at),
        _ => String::new(),
    };
    (key, node.id.to_string())
}

/// Returns an address as a text that sorts by its bytes. Nodes without an address come first.
fn address_key(address: Option<IpAddr>) -> String {
    match address {
        None => String::new(),
        Some(IpAddr::V4(address)) => format!("4{:08x}", address.to_bits()),
        Some(IpAddr::V6(address)) => format!("6{:032x}", address.to_bits()),
    }
}
