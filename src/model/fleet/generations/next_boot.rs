//! The generation that a node would boot next, and its effect on the conditions of the node.
//! Detects drift: a running generation that meshd never delivered.

use super::generation::Generation;
use crate::fleet::{ConditionKind, EventKind, Node, Phase};
use meshd_types::{ProfileName, Timestamp};

/// The result of planning a node's next boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NextBoot {
    /// The node would boot this generation.
    Boots(Generation, ProfileName),
    /// The node would not boot: its image cannot be served.
    ImageMissing(String),
    /// The node would not boot: its overlay cannot be rendered.
    RenderFailed(String),
}

/// Changes of a node's conditions, with causes.
pub type ConditionChanges = Vec<(EventKind, String)>;

/// Updates the conditions of a node for the generation that it would boot now.
pub fn update_boot_conditions(
    node: &mut Node,
    outlook: &NextBoot,
    now: Timestamp,
) -> ConditionChanges {
    use ConditionKind as C;
    let mut changes = ConditionChanges::new();
    match outlook {
        NextBoot::Boots(generation, profile) => {
            node.generation = Some(*generation);
            update_condition(node, C::ImageMissing, None, now, &mut changes);
            update_condition(node, C::RenderFailed, None, now, &mut changes);
            // Other phases need no reboot: a node that is off or booting receives the new
            // generation at its boot.
            use Phase::{Degraded, Draining, Enrolling, Maintenance, Online};
            if !matches!(node.phase, Enrolling | Degraded | Online | Draining | Maintenance) {
                return changes;
            }
            let other = node.booted.filter(|booted| booted != generation);
            let detail = other.map(|booted| {
                let runs = booted.0.short();
                let boots = generation.0.short();
                format!("runs generation {runs}, would boot {boots} of profile {profile}")
            });
            update_condition(node, C::RebootRequired, detail, now, &mut changes);
        }
        NextBoot::ImageMissing(why) => {
            update_condition(node, C::ImageMissing, Some(why.clone()), now, &mut changes)
        }
        NextBoot::RenderFailed(why) => {
            update_condition(node, C::RenderFailed, Some(why.clone()), now, &mut changes)
        }
    }
    changes
}

/// Updates the drift condition. `known`: the running generation was delivered to the node.
pub fn update_drift(node: &mut Node, known: bool, now: Timestamp) -> ConditionChanges {
    let mut changes = ConditionChanges::new();
    let unknown = node.booted.filter(|_| !known);
    let detail = unknown
        .map(|booted| format!("runs generation {}, which meshd never delivered", booted.0.short()));
    update_condition(node, ConditionKind::Drift, detail, now, &mut changes);
    changes
}

/// Raises or clears a condition.
fn update_condition(
    node: &mut Node,
    kind: ConditionKind,
    reason: Option<String>,
    now: Timestamp,
    changes: &mut ConditionChanges,
) {
    match reason {
        Some(detail) => {
            if node.raise(kind, detail.clone(), now) {
                changes.push((EventKind::Raised { condition: kind }, detail));
            }
        }
        None => {
            if node.clear(kind) {
                changes.push((EventKind::Cleared { condition: kind }, String::new()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Digest;

    fn node(phase: Phase, booted: Option<u8>) -> Node {
        let mut node = Node::fixture(1);
        node.conditions.clear();
        (node.phase, node.booted) = (phase, booted.map(generation));
        node
    }

    fn generation(number: u8) -> Generation {
        Generation(Digest([number; 32]))
    }

    fn boots(number: u8) -> NextBoot {
        NextBoot::Boots(generation(number), "p".parse().expect("a name"))
    }

    fn words(changes: &ConditionChanges) -> Vec<&str> {
        changes.iter().map(|(kind, _)| kind.word()).collect()
    }

    #[test]
    fn reboot_is_required_while_another_generation_would_boot() {
        let at = Timestamp::EPOCH;
        let mut node = node(Phase::Online, Some(1));
        assert!(update_boot_conditions(&mut node, &boots(1), at).is_empty());
        assert_eq!(words(&update_boot_conditions(&mut node, &boots(2), at)), ["reboot_required"]);
        assert!(
            update_boot_conditions(&mut node, &boots(3), at).is_empty(),
            "once, whatever it would boot"
        );
        assert!(
            node.conditions[0].detail.contains(&generation(3).0.short()),
            "{:?}",
            node.conditions
        );
        assert_eq!(words(&update_boot_conditions(&mut node, &boots(1), at)), ["cleared"]);
        assert_eq!(node.generation, Some(generation(1)));
    }

    #[test]
    fn booting_node_and_unknown_generation_raise_no_condition() {
        for (phase, booted) in
            [(Phase::Booting, Some(1)), (Phase::Offline, Some(1)), (Phase::Online, None)]
        {
            let mut node = node(phase, booted);
            assert!(
                update_boot_conditions(&mut node, &boots(2), Timestamp::EPOCH).is_empty(),
                "{phase}"
            );
            assert_eq!(node.generation, Some(generation(2)));
        }
    }

    #[test]
    fn missing_image_is_a_condition_until_it_can_be_served() {
        let at = Timestamp::EPOCH;
        let mut node = node(Phase::Online, Some(1));
        assert_eq!(
            words(&update_boot_conditions(&mut node, &NextBoot::ImageMissing("why".into()), at)),
            ["image_missing"]
        );
        assert_eq!(
            words(&update_boot_conditions(&mut node, &NextBoot::RenderFailed("why".into()), at)),
            ["render_failed"]
        );
        assert_eq!(
            words(&update_boot_conditions(&mut node, &boots(1), at)),
            ["cleared", "cleared"]
        );
    }

    #[test]
    fn undelivered_generation_raises_drift_condition() {
        let at = Timestamp::EPOCH;
        let mut node = node(Phase::Online, Some(1));
        assert!(update_drift(&mut node, true, at).is_empty());
        assert_eq!(words(&update_drift(&mut node, false, at)), ["drift"]);
        assert_eq!(words(&update_drift(&mut node, true, at)), ["cleared"]);
    }
}
