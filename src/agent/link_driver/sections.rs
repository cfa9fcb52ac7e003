//! The sections of this node: each has one reconciler, which takes entries of the desired state and
//! reports what it finds.

use super::drain::DrainHooks;
use crate::{container::Containers, task::Tasks, vm::VmManager};
use meshd_proto::{FromAgent, NodeReport, NodeSpec, SectionReport, SpecEntry};

/// The reconcilers of all sections.
pub struct Sections {
    pub vms: VmManager,
    pub tasks: Tasks,
    pub containers: Containers,
    pub drain: DrainHooks,
}

impl Sections {
    /// Passes an entry of the desired state to the reconciler of its section.
    pub fn apply(&mut self, NodeSpec { generation, entry }: NodeSpec) {
        match entry {
            SpecEntry::Vms(entry) => self.vms.apply(generation, entry),
            SpecEntry::Tasks(entry) => self.tasks.apply(generation, entry),
            SpecEntry::Containers(entry) => self.containers.apply(generation, entry),
            SpecEntry::Drain(entry) => self.drain.apply(generation, entry),
        }
    }

    /// Reports all sections again: the link is new, and its generations begin anew.
    pub fn begin_link(&mut self) {
        self.vms.begin_link();
        self.tasks.begin_link();
        self.containers.begin_link();
        self.drain.begin_link();
    }

    /// Waits for the next report or piece of output. Cancel-safe.
    pub async fn next(&mut self) -> FromAgent {
        tokio::select! {
            (observed, update) = self.vms.next_update() => {
                FromAgent::Report(NodeReport { observed, state: SectionReport::Vms(update) })
            }
            message = self.tasks.next() => message,
            (observed, update) = self.containers.next_update() => {
                let state = SectionReport::Containers(update);
                FromAgent::Report(NodeReport { observed, state })
            }
            (observed, report) = self.drain.next() => {
                FromAgent::Report(NodeReport { observed, state: SectionReport::Drain(report) })
            }
        }
    }

    /// Returns the number of VMs, tasks and replicas of containers that run or start.
    pub fn workloads(&self) -> u32 {
        let tasks = self.tasks.count().saturating_add(self.containers.workloads());
        self.vms.workloads().saturating_add(tasks)
    }
}
