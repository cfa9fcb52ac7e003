//! Site-wide rules of `[vms]`: limits, placement and slot policies of VMs.

use crate::{
    EnrollPolicy, Site,
    reader::{Document, Table, or},
    vm::{VmTemplates, template},
};
use meshd_types::TemplateName;
use std::ops::RangeInclusive;

/// CPUs per thread: small VMs are mostly idle, and a busy one still has a quarter of a thread.
const DEFAULT_OVERCOMMIT: u32 = 4;
/// Bounds of `cpu_overcommit`.
const OVERCOMMIT: RangeInclusive<u32> = 1..=64;
const MAX_TEMPLATES: usize = 256;

/// Site-wide rules for VMs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmRules {
    /// Approval of slots; `None` follows the enrolment policy.
    pub slots: Option<SlotPolicy>,
    /// Maximum ratio of shared CPUs of VMs to threads of their node.
    pub cpu_overcommit: u32,
    pub templates: VmTemplates,
}

/// Approval of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotPolicy {
    /// An operator approves each slot.
    Approve,
    /// No approval is needed on a node without unproven checks.
    Auto,
}

impl Default for VmRules {
    fn default() -> Self {
        VmRules { slots: None, cpu_overcommit: DEFAULT_OVERCOMMIT, templates: VmTemplates::new() }
    }
}

impl Site {
    /// Returns `[vms].slots`, else the policy that corresponds to the enrolment policy.
    pub fn slot_policy(&self) -> SlotPolicy {
        self.vms.rules.slots.unwrap_or(match self.enroll.policy {
            EnrollPolicy::Approve => SlotPolicy::Approve,
            EnrollPolicy::Auto => SlotPolicy::Auto,
        })
    }
}

/// Reads the rules from `[vms]`.
pub(crate) fn read(document: &Document, table: &Table<'_>) -> Option<VmRules> {
    let words = [("approve", SlotPolicy::Approve), ("auto", SlotPolicy::Auto)];
    let slots = or(table, "slots", table.choice("slots", &words).map(|word| word.map(Some)), None);
    let ratio = table.integer("cpu_overcommit", OVERCOMMIT);
    let cpu_overcommit = or(table, "cpu_overcommit", ratio, DEFAULT_OVERCOMMIT);
    let templates = templates(document, table);
    Some(VmRules { slots: slots?, cpu_overcommit: cpu_overcommit?, templates })
}

/// Reads each `[vms.templates.NAME]`.
fn templates(document: &Document, vms: &Table<'_>) -> VmTemplates {
    let mut templates = VmTemplates::new();
    let entries = vms.entries_of("templates");
    vms.is_within("templates", MAX_TEMPLATES, entries.len(), "templates");
    for entry in entries {
        let read = template(&entry.table);
        match entry.name.parse::<TemplateName>() {
            Ok(name) => drop(templates.insert(name, read)),
            Err(error) => document.error(&entry.name, &error),
        }
    }
    templates
}
