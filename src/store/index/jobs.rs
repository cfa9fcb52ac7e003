//! Tasks in memory: all, those that wait, and those of each node.

use crate::{MAX_JOBS, Model, tx::Change};
use meshd_model::work::job::Job;
use meshd_types::{JobId, NodeId};
use std::collections::{BTreeMap, BTreeSet};

/// All jobs on record, and what is derived of them.
#[derive(Default)]
pub(crate) struct Jobs {
    all: BTreeMap<JobId, Job>,
    /// The job that has a node for itself.
    claims: BTreeMap<NodeId, JobId>,
    /// Those that wait for something.
    open: BTreeSet<JobId>,
}

impl Jobs {
    pub(crate) fn put(&mut self, job: Job) {
        self.remove(job.id);
        self.claims.extend(job.holding().map(|node| (node, job.id)));
        if job.is_open() {
            self.open.insert(job.id);
        }
        self.all.insert(job.id, job);
    }

    pub(crate) fn apply(&mut self, changes: BTreeMap<JobId, Change<Job>>) {
        for (id, change) in changes {
            match change {
                Change::Put(job) => self.put(job),
                Change::Remove => self.remove(id),
            }
        }
    }

    fn remove(&mut self, id: JobId) {
        let Some(job) = self.all.remove(&id) else { return };
        self.open.remove(&id);
        for node in job.holding() {
            if self.claims.get(&node) == Some(&id) {
                self.claims.remove(&node);
            }
        }
    }

    /// Jobs that have to go when one more comes: the oldest that are over.
    pub(crate) fn surplus(&self) -> Vec<JobId> {
        let excess = (self.all.len() + 1).saturating_sub(MAX_JOBS);
        let mut over: Vec<_> =
            self.all.values().filter(|job| !job.is_open()).map(|job| (job.created_at, job.id)).collect();
        over.sort_unstable();
        over.into_iter().take(excess).map(|(_, id)| id).collect()
    }
}

impl Model {
    /// All jobs, by ID.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.all.values()
    }

    pub fn job(&self, id: JobId) -> Option<&Job> {
        self.jobs.all.get(&id)
    }

    /// The job that has a node for itself.
    pub fn job_on(&self, node: NodeId) -> Option<&Job> {
        self.jobs.claims.get(&node).and_then(|id| self.job(*id))
    }

    /// Jobs that wait for something: they run, end, or a node of theirs is not known to be free.
    pub fn open_jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.open.iter().filter_map(|id| self.job(*id))
    }
}
