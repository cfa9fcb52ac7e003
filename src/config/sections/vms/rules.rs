//! Site-wide rules of `[vms]`: limits, placement and slot policies of virtual machines.

use crate::{
    EnrollPolicy, Site, check,
    parse::or,
    reader::{Document, Table},
    vm::{VmTemplates, template},
};
use meshd_types::TemplateName;
use std::ops::RangeInclusive;

/// Virtual processors to a thread where the site does not say: enough that small machines, which idle most of the time, do not leave a
/// node empty, and few enough that a busy one still has a quarter of a thread.
const DEFAULT_OVERCOMMIT: u32 = 4;
/// Bounds of it.
const OVERCOMMIT: RangeInclusive<i64> = 1..=64;
/// Most templates of a site.
const MAX_TEMPLATES: usize = 256;

/// What holds for all machines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRules {
    /// Who says that a unit may be given to a machine; `None`: as machines are let in.
    pub slots: Option<SlotPolicy>,
    /// Virtual processors of machines that share threads, to one thread of their node.
    pub cpu_overcommit: u32,
    /// What vm.tomls need not say.
    pub templates: VmTemplates,
}

/// Who says that a unit may be given to a virtual machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPolicy {
    /// An operator, of each slot.
    Approve,
    /// Nobody has to, on a node whose checks prove what they can.
    Auto,
}

impl Default for VmRules {
    fn default() -> Self {
        VmRules { slots: None, cpu_overcommit: DEFAULT_OVERCOMMIT, templates: VmTemplates::new() }
    }
}

impl Site {
    /// Who says that a unit may be given: `[vms].slots`, else whoever lets machines in.
    pub fn slot_policy(&self) -> SlotPolicy {
        self.vms.rules.slots.unwrap_or(match self.enroll.policy {
            EnrollPolicy::Approve => SlotPolicy::Approve,
            EnrollPolicy::Auto => SlotPolicy::Auto,
        })
    }
}

/// Reads it from `[vms]`.
pub(crate) fn read(document: &Document, table: &Table<'_>) -> Option<VmRules> {
    let words = [("approve", SlotPolicy::Approve), ("auto", SlotPolicy::Auto)];
    let slots = or(table, "slots", table.choice("slots", &words).map(|word| word.map(Some)), None);
    let ratio = table.integer("cpu_overcommit", OVERCOMMIT);
    let ratio = ratio.map(|ratio| ratio.map(|ratio| u32::try_from(ratio).unwrap_or(DEFAULT_OVERCOMMIT)));
    let cpu_overcommit = or(table, "cpu_overcommit", ratio, DEFAULT_OVERCOMMIT);
    let templates = templates(document, table);
    Some(VmRules { slots: slots?, cpu_overcommit: cpu_overcommit?, templates })
}

/// Each `[vms.templates.NAME]`.
fn templates(document: &Document, vms: &Table<'_>) -> VmTemplates {
    let mut templates = VmTemplates::new();
    let entries = vms.table("templates").map(|table| table.entries()).unwrap_or_default();
    if entries.len() > MAX_TEMPLATES {
        vms.fault("templates", format!("{} templates", entries.len()), format!("at most {MAX_TEMPLATES}"));
    }
    for entry in entries {
        let read = template(&entry.table);
        match entry.name.parse::<TemplateName>() {
            Ok(name) => drop(templates.insert(name, read)),
            Err(error) => check::fault(document, &entry.name, &error),
        }
    }
    templates
}
