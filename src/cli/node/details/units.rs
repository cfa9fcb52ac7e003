//! The VFIO units of a node, printed by `meshd node show`.

use crate::cli::output::print::table;
use meshd_api::NodeDetail;
use meshd_proto::{CheckStatus, UnitFacts, units_ready, whole_node};

/// Returns a line for each unit and the number of ready units as the last line. Returns nothing if
/// the profile selects no devices.
pub(crate) fn show(detail: &NodeDetail) -> String {
    let is_checked = detail
        .checks
        .iter()
        .any(|check| check.name == "units" && check.status != CheckStatus::Skip);
    let units = detail.facts.as_ref().map(|facts| facts.units.as_slice()).unwrap_or_default();
    if is_checked || !units.is_empty() { render(units) } else { String::new() }
}

fn render(units: &[UnitFacts]) -> String {
    let whole = match (units, whole_node(units)) {
        ([] | [_], _) => String::new(),
        (_, Ok(_)) => "the whole node can be assigned\n".to_owned(),
        (_, Err(why)) => format!("the whole node cannot be assigned: {why}\n"),
    };
    let rows = if units.is_empty() { String::new() } else { format!("\n{}", list_units(units)) };
    format!("{rows}\n{whole}{}\n", units_ready(units))
}

fn list_units(units: &[UnitFacts]) -> String {
    let rows = units.iter().map(|unit| {
        let members = unit
            .members
            .iter()
            .map(|member| format!("{} {}:{}", member.address, member.vendor, member.device));
        let group = unit.group.map(|group| group.to_string()).unwrap_or_default();
        let numa = unit.numa_node.map(|node| node.to_string()).unwrap_or_default();
        [
            group,
            members.collect::<Vec<_>>().join(", "),
            numa,
            unit.state.as_str().to_owned(),
            unit.reason.clone(),
        ]
    });
    table(["group", "devices", "numa", "state", "reason"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_proto::{PciFacts, UnitState};

    #[test]
    fn units_table_has_reasons_and_ready_count() {
        let function = |address: &str| PciFacts {
            address: address.into(),
            vendor: "10de".into(),
            device: "2335".into(),
            ..PciFacts::default()
        };
        let unit = |group, address, state, reason: &str| UnitFacts {
            group: Some(group),
            members: vec![function(address)],
            state,
            reason: reason.into(),
            ..UnitFacts::default()
        };
        let good = unit(40, "0000:1b:00.0", UnitState::Ready, "");
        let bad = unit(41, "0000:43:00.0", UnitState::Wedged, "it\u{1b}[2J fell off");
        let lines = [
            "",
            "GROUP  DEVICES                 NUMA  STATE   REASON",
            "40     0000:1b:00.0 10de:2335  -     ready   -",
            "41     0000:43:00.0 10de:2335  -     wedged  it\u{fffd}[2J fell off",
            "",
            "the whole node cannot be assigned: unit 41 (0000:43:00.0) is wedged",
            "1/2 GPU unit(s) ready",
        ];
        assert_eq!(
            render(&[good.clone(), bad]).lines().map(str::trim_end).collect::<Vec<_>>(),
            lines
        );
        assert!(render(&[good]).ends_with("\n\n1/1 GPU unit(s) ready\n"));
        assert_eq!(render(&[]), "\n0/0 GPU unit(s) ready\n");
    }
}
