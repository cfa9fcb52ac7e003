//! Divides nodes into waves.

use super::RolloutPolicy;
use crate::fleet::LabelValue;
use meshd_types::NodeId;

/// A node, as planning sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedNode {
    pub id: NodeId,
    pub name: String,
    pub serves: bool,
    /// Value of the label that names failure domains.
    pub domain: Option<LabelValue>,
}

/// Returns the waves: the canaries, then waves of the size of the policy. A canary is a healthy
/// node if there is one: its failure says something about the change. In further waves, nodes that
/// do not serve come first, because their reboot costs no capacity. A wave has one failure domain.
pub fn waves(policy: &RolloutPolicy, mut nodes: Vec<PlannedNode>) -> Vec<Vec<PlannedNode>> {
    let size = policy.wave.rounded_down(nodes.len()).max(1);
    nodes.sort_by(|one, other| {
        (!one.serves, &one.domain, &one.name).cmp(&(!other.serves, &other.domain, &other.name))
    });
    let canaries = (policy.canaries as usize).min(nodes.len());
    let mut rest = nodes.split_off(canaries);
    let mut waves = by_domain(policy, nodes, canaries.max(1));
    rest.sort_by(|one, other| (one.serves, &one.name).cmp(&(other.serves, &other.name)));
    if policy.domain.is_some() {
        rest.sort_by(|one, other| one.domain.cmp(&other.domain));
    }
    waves.extend(by_domain(policy, rest, size));
    waves
}

/// Cuts ordered nodes into waves of one failure domain each.
fn by_domain(
    policy: &RolloutPolicy,
    nodes: Vec<PlannedNode>,
    size: usize,
) -> Vec<Vec<PlannedNode>> {
    let mut waves: Vec<Vec<PlannedNode>> = Vec::new();
    for node in nodes {
        let fits = |wave: &&mut Vec<PlannedNode>| {
            let is_same = wave.first().is_none_or(|first| first.domain == node.domain);
            wave.len() < size && (policy.domain.is_none() || is_same)
        };
        match waves.last_mut().filter(fits) {
            Some(wave) => wave.push(node),
            None => waves.push(vec![node]),
        }
    }
    waves
}
