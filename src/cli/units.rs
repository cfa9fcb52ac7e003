//! What a node can give to virtual machines: the end of `node show`.

use super::print::table;
use crate::serve::admin::view::NodeDetail;
use crate::wire::{CheckStatus, UnitFacts, units_ready};

/// A line for each unit, and `N/M GPU unit(s) ready` last; nothing for a node whose profile gives no devices away.
pub(super) fn show(detail: &NodeDetail) -> String {
    let wanted = detail.checks.iter().any(|check| check.name == "units" && check.status != CheckStatus::Skip);
    let units = detail.facts.as_ref().map(|facts| facts.units.as_slice()).unwrap_or_default();
    if !wanted && units.is_empty() {
        return String::new();
    }
    let rows = if units.is_empty() { String::new() } else { format!("\n{}", listed(units)) };
    format!("{rows}\n{}\n", units_ready(units))
}

fn listed(units: &[UnitFacts]) -> String {
    let rows = units.iter().map(|unit| {
        let members =
            unit.members.iter().map(|member| format!("{} {}:{}", member.address, member.vendor, member.device));
        let group = unit.group.map(|group| group.to_string()).unwrap_or_default();
        let numa = unit.numa_node.map(|node| node.to_string()).unwrap_or_default();
        [group, members.collect::<Vec<_>>().join(", "), numa, unit.state.as_str().to_owned(), unit.reason.clone()]
    });
    table(["group", "devices", "numa", "state", "reason"], rows)
}
