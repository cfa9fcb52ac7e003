//! Gauges of workloads: VMs, tasks, slots, units and administrative tasks.

use super::page::MetricsPage;
use meshd_central::Central;
use meshd_model::work::{SlotState, task::TaskState};
use meshd_proto::{UnitState, vm::ReportedVmState};
use std::collections::BTreeMap;

/// State of a VM that no node has reported yet.
const UNREPORTED: &str = "unreported";

type Counts = BTreeMap<&'static str, usize>;

/// Counts all states of a kind, with 0 for absent ones, so that each series exists from the start
/// for rates and alerts.
fn counts(
    all: impl IntoIterator<Item = &'static str>,
    found: impl IntoIterator<Item = &'static str>,
) -> Counts {
    let mut counts: Counts = all.into_iter().map(|state| (state, 0)).collect();
    for state in found {
        *counts.entry(state).or_default() += 1;
    }
    counts
}

fn show(page: &mut MetricsPage, name: &str, help: &str, counts: &Counts) {
    page.gauges(name, help, counts.iter().map(|(state, count)| ([("state", *state)], *count)));
}

pub(super) fn workload_gauges(page: &mut MetricsPage, central: &Central) {
    let vms = central
        .vms
        .collect_vms(|vm| vm.last_report.as_ref().map_or(UNREPORTED, |seen| seen.state.as_str()));
    let vms =
        counts(ReportedVmState::ALL.iter().map(|state| state.as_str()).chain([UNREPORTED]), vms);
    let tasks = counts(
        TaskState::ALL.map(TaskState::as_str),
        central.tasks.collect(|task| task.state.as_str()),
    );
    let units = central.nodes.read(|fleet| {
        let units = fleet
            .nodes()
            .flat_map(|records| records.node.facts.iter().flat_map(|facts| &facts.units));
        counts(
            UnitState::ALL.iter().map(|state| state.as_str()),
            units.map(|unit| unit.state.as_str()),
        )
    });
    let slots = central.vms.slots();
    let slots =
        counts(SlotState::ALL.map(SlotState::as_str), slots.iter().map(|slot| slot.state.as_str()));
    show(page, "meshd_vms", "VMs, by last reported state.", &vms);
    show(page, "meshd_tasks", "Tasks in the store, by state.", &tasks);
    show(page, "meshd_slots", "Slots, by state.", &slots);
    show(page, "meshd_units", "Units of all nodes, by last reported state.", &units);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_state_is_counted_as_zero() {
        let counts = counts(["running", "failed"], ["running", "running"]);
        assert_eq!(counts, BTreeMap::from([("failed", 0), ("running", 2)]));
    }
}
