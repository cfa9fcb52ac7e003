//! Capacity floors: how many nodes must serve. A node that does not serve counts against a floor,
//! for whatever reason.

use super::{Floor, Inventory};
use meshd_types::NodeId;
use std::{collections::BTreeSet, fmt};

/// A floor that a rollout would break.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FloorFault {
    pub floor: Floor,
    pub members: usize,
    pub serving: usize,
    pub required: usize,
    /// The group of the floor is not in the site, or has no nodes.
    pub has_no_nodes: bool,
}

impl std::error::Error for FloorFault {}

impl fmt::Display for FloorFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FloorFault { floor, members, serving, required, .. } = self;
        write!(f, "the floor {floor} forbids it: ")?;
        match &floor.group {
            Some(group) if self.has_no_nodes => write!(f, "group {group} has no nodes"),
            _ => write!(f, "{serving} of {members} nodes serve, {required} must"),
        }
    }
}

meshd_types::hints!(FloorFault {
    FloorFault { .. } => "lower the floor, or return nodes to service";
});

/// A floor with its nodes at present.
pub(super) struct CountedFloor<'a> {
    floor: &'a Floor,
    members: BTreeSet<NodeId>,
    serving: usize,
    required: usize,
    has_no_nodes: bool,
}

impl<'a> CountedFloor<'a> {
    /// Counts the nodes of a floor. `selected` are the nodes of the rollout; `is_active` is true
    /// for those in progress.
    fn new(
        floor: &'a Floor,
        selected: impl Iterator<Item = NodeId> + Clone,
        inventory: &dyn Inventory,
        is_active: impl Fn(NodeId) -> bool,
    ) -> Self {
        let group = floor.group.as_ref();
        let members = group.map(|group| inventory.group(group).unwrap_or_default());
        let mut members: BTreeSet<NodeId> =
            members.unwrap_or_else(|| selected.clone().collect()).into_iter().collect();
        members.retain(|id| inventory.exists(*id));
        if members.is_empty() {
            // A reload may rename or empty a group: its floor then forbids every node.
            let members: BTreeSet<NodeId> = selected.collect();
            return CountedFloor { floor, members, serving: 0, required: 0, has_no_nodes: true };
        }
        let serving = members.iter().filter(|id| inventory.serves(**id) && !is_active(**id));
        let required = floor.serving.rounded_up(members.len());
        let serving = serving.count();
        CountedFloor { floor, serving, required, members, has_no_nodes: false }
    }

    fn fault(&self) -> FloorFault {
        FloorFault {
            floor: self.floor.clone(),
            members: self.members.len(),
            serving: self.serving,
            required: self.required,
            has_no_nodes: self.has_no_nodes,
        }
    }
}

/// All floors of a rollout at present.
pub(super) struct Floors<'a>(Vec<CountedFloor<'a>>);

impl<'a> Floors<'a> {
    pub(super) fn new(
        floors: &'a [Floor],
        selected: impl Iterator<Item = NodeId> + Clone,
        inventory: &dyn Inventory,
        is_active: impl Fn(NodeId) -> bool,
    ) -> Self {
        let count = |floor| CountedFloor::new(floor, selected.clone(), inventory, &is_active);
        Floors(floors.iter().map(count).collect())
    }

    /// Takes a serving node out of service, unless a floor forbids it.
    pub(super) fn take(&mut self, id: NodeId) -> Result<(), FloorFault> {
        let mut own = self.0.iter().filter(|floor| floor.members.contains(&id));
        if let Some(broken) = own.find(|floor| floor.serving <= floor.required) {
            return Err(broken.fault());
        }
        for floor in self.0.iter_mut().filter(|floor| floor.members.contains(&id)) {
            floor.serving -= 1;
        }
        Ok(())
    }
}

/// Refuses a rollout that breaks a floor with its first node, or whose floor is broken already.
pub fn check_floors(
    floors: &[Floor],
    selected: &[NodeId],
    inventory: &dyn Inventory,
) -> Result<(), FloorFault> {
    let counted = Floors::new(floors, selected.iter().copied(), inventory, |_| false);
    for floor in &counted.0 {
        let serves = |id: &NodeId| floor.members.contains(id) && inventory.serves(*id);
        let leaves = usize::from(selected.iter().any(serves));
        if floor.serving < floor.required + leaves {
            return Err(floor.fault());
        }
    }
    Ok(())
}
