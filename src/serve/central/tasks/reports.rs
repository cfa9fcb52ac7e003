//! What nodes report of their tasks: state, output, release.

use crate::serve::central::{enrolment::enrol::PlaneError, links::LinkId, tasks::Tasks};
use meshd_model::{
    fleet::{Actor, Event, EventKind},
    work::job::NodeObservation,
};
use meshd_proto::{
    FromCentral,
    job::{JobNews, JobOrder, JobReport, JobWant, MAX_JOBS, Output, OutputKept},
};
use meshd_types::{BootSessionId, JobId, NodeId};
use std::sync::Arc;

impl Tasks {
    /// Handles a report about tasks.
    pub(crate) async fn job_news(&self, link: LinkId, news: JobNews) -> Result<Option<FromCentral>, PlaneError> {
        let (node, now) = (link.node(), self.env.now());
        match news {
            JobNews::Output(output) => return Ok(self.keep_output(node, output).await),
            JobNews::Released { job } => {
                self.edit_jobs(&[job], |job| job.released(node, now)).await?;
                self.orphans.jobs.forget(node, job);
            }
            JobNews::All { jobs } => self.jobs_told(node, jobs).await?,
        }
        Ok(None)
    }

    /// Processes the report of all tasks of a node.
    async fn jobs_told(&self, node: NodeId, mut jobs: Vec<JobReport>) -> Result<(), PlaneError> {
        jobs.truncate(MAX_JOBS);
        let now = self.env.now();
        let own = self.env.store.read(|model| model.job_on(node).map(|job| job.id));
        if let Some(own) = own {
            let state = jobs.iter().find(|report| report.job == own).map(|report| &report.state);
            self.edit_jobs(&[own], |job| job.told(node, state, now)).await?;
        }
        let (over, strange): (Vec<JobId>, Vec<JobId>) = self.env.store.read(|model| {
            let others = jobs.iter().map(|report| report.job).filter(|job| Some(*job) != own);
            others.partition(|job| model.job(*job).is_some())
        });
        // The task is on record, but no longer on this node, which was considered lost and has returned.
        for job in over {
            self.order_gone(node, job);
        }
        // The task has ended on record: the node may release it.
        let ended = jobs.iter().filter(|report| report.state.has_ended() && strange.contains(&report.job));
        ended.for_each(|report| self.order_gone(node, report.job));
        let names: Vec<String> = strange.iter().map(JobId::to_string).collect();
        let is_news = self.orphans.jobs.are(node, strange.into_iter().collect());
        // A node that invents tasks must not evict events of others.
        if is_news && self.env.allows(&format!("strange tasks of {node}")) {
            let detail = format!("the node runs {}, not on record; `meshd task cancel` ends it", names.join(" "));
            self.env.record(Event::new(now, Actor::Node, EventKind::Job, detail).of_node(node)).await;
        }
        Ok(())
    }

    /// Processes the start of a link, in the same boot or in another one.
    pub(crate) async fn job_node_linked(&self, node: NodeId, session: BootSessionId) {
        let now = self.env.now();
        let Some(job) = self.env.store.read(|model| model.job_on(node).map(|job| job.id)) else { return };
        if let Err(error) = self.edit_jobs(&[job], |job| job.seen(node, NodeObservation::Linked(session), now)).await {
            tracing::error!(error = &error as &dyn std::error::Error, "cannot record what became of a task");
        }
        self.tell_of_work(node);
    }

    /// Ends a task that is not on record; true if a node has it.
    pub(crate) fn release_orphan(&self, job: JobId) -> bool {
        let nodes = self.orphans.jobs.with(job);
        nodes.iter().for_each(|node| self.order_gone(*node, job));
        !nodes.is_empty()
    }

    fn order_gone(&self, node: NodeId, job: JobId) {
        // If this message is lost, the next welcome repeats it.
        self.links.try_send(node, FromCentral::Job(JobOrder { job, want: JobWant::Gone }));
    }

    /// Stores a piece of output if the task has the node. If that fails, no acknowledgement is sent, and the node repeats the piece.
    async fn keep_output(&self, node: NodeId, output: Output) -> Option<FromCentral> {
        let (job, stream, when) = (output.job, output.stream, self.env.now());
        if !self.env.store.read(|model| model.job(job).is_some_and(|job| job.holds(node))) {
            // Output of an unknown or ended task is acknowledged and dropped, so that the node stops repeating it.
            return Some(FromCentral::JobKept(OutputKept { job, stream, upto: u64::MAX }));
        }
        let outputs = Arc::clone(&self.outputs);
        let kept = tokio::task::spawn_blocking(move || outputs.append(node, output, when)).await;
        match kept.map_err(std::io::Error::other).and_then(|kept| kept) {
            Ok(upto) => Some(FromCentral::JobKept(OutputKept { job, stream, upto })),
            Err(error) => {
                tracing::error!(%job, %node, %error, "the output of a task is not kept; check the disk");
                None
            }
        }
    }
}
