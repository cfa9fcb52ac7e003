//! The sections of this node: each has one reconciler, which takes entries of the desired state and
//! reports what it finds.

use super::drain::DrainHooks;
use crate::{task::Tasks, vm::VmManager};
use meshd_proto::{FromAgent, NodeReport, NodeSpec, SectionReport, SpecEntry};

/// The reconcilers of all sections.
pub struct Sections {
    pub vms: VmManager,
    pub tasks: Tasks,
    pub drain: DrainHooks,
}

impl Sections {
    /// Passes an entry of the desired state to the reconciler of its section.
    pub fn apply(&mut self, NodeSpec { generation, entry }: NodeSpec) {
        match entry {
            SpecEntry::Vms(entry) => self.vms.apply(generation, entry),
            SpecEntry::Tasks(entry) => self.tasks.apply(generation, entry),
            // No reconciler yet: the central node sees that nothing took the entry.
            SpecEntry::Containers(_) => {}
            SpecEntry::Drain(entry) => self.drain.apply(generation, entry),
        }
    }

    /// Reports all sections again: the link is new, and its generations begin anew.
    pub fn begin_link(&mut self) {
        self.vms.begin_link();
        self.tasks.begin_link();
        self.drain.begin_link();
    }

    /// Waits for the next report or piece of output. Cancel-safe.
    pub async fn next(&mut self) -> FromAgent {
        tokio::select! {
            (observed, update) = self.vms.next_update() => {
                FromAgent::Report(NodeReport { observed, state: SectionReport::Vms(update) })
            }
            message = self.tasks.next() => message,
            (observed, report) = self.drain.next() => {
                FromAgent::Report(NodeReport { observed, state: SectionReport::Drain(report) })
            }
        }
    }

    /// Returns the number of VMs and tasks that run or start.
    pub fn workloads(&self) -> u32 {
        self.vms.workloads().saturating_add(self.tasks.count())
    }
}
