//! Tasks on this node: programs on bare metal, each with all its processes in one control group.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `rank_runner` | runs one task: prepare, start, wait, kill, clean up |
//! | `exec` | the process that becomes the program: control group, limits, user |
//! | `storage` | the file system of a task, bounded, in memory |
//! | `mounts` | the mounts of a task: /dev/shm, /tmp, read-only control groups |
//! | `hydra_launch_parser` | parses the launch commands of `mpiexec`; pure |
//! | `output` | forwards the output, one acknowledged piece at a time |
//! | `cgroup` | the control group, which ends all processes together |
//!
//! An agent that ends kills its tasks, and an agent that starts kills the remains of an earlier one. The central node records them as failed.

mod cgroup;
pub mod exec;
mod hydra_launch_parser;
mod output;
mod storage;
mod mounts;
mod rank_runner;

use self::{cgroup::Cgroups, output::AckedOffsets, rank_runner::JobRunner};
use meshd_proto::job::{
    JobFault, JobNews, JobNodeState, JobOrder, JobReport, JobWant, MAX_DETAIL, MAX_JOBS, Output, OutputKept,
};
use meshd_types::{JobId, NodeId};
use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};

/// Length of the queue to the driver.
const BACKLOG: usize = 16;
/// Released tasks that are remembered, so that a late order does not start them again.
const REMEMBERED: usize = 256;

/// Timeout for the end of all tasks when the agent stops.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// A message of a task's runner.
#[derive(Debug)]
pub(crate) enum JobEvent {
    State(JobId, JobNodeState),
    Output(Output),
    Released(JobId),
}

/// All tasks of this node.
pub struct Jobs {
    folder: PathBuf,
    cgroups: Result<Cgroups, String>,
    jobs: BTreeMap<JobId, RunningJob>,
    released: VecDeque<JobId>,
    tasks: JoinSet<()>,
    words: mpsc::Sender<JobEvent>,
    inbox: mpsc::Receiver<JobEvent>,
    news: VecDeque<JobNews>,
}

struct RunningJob {
    state: JobNodeState,
    kept: watch::Sender<AckedOffsets>,
    gone: watch::Sender<bool>,
    /// A runner works on it.
    alive: bool,
}

impl Jobs {
    /// Opens the folder of tasks and kills what an earlier agent left. `cgroups` is the mount point of the control groups if the system has
    /// none.
    pub fn open(folder: &Path, cgroups: &Path, node: NodeId) -> Self {
        let (words, inbox) = mpsc::channel(BACKLOG);
        let cgroups = Cgroups::open(node, cgroups);
        let (folder, tasks) = (folder.to_owned(), JoinSet::new());
        let (jobs, released, news) = Default::default();
        let mut jobs = Jobs { folder, cgroups, jobs, released, tasks, words, inbox, news };
        jobs.clean();
        jobs
    }

    /// Remains of an earlier agent.
    fn clean(&mut self) {
        let folders = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let mut left: Vec<JobId> = folders.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        if let Ok(cgroups) = &self.cgroups {
            left.extend(cgroups.jobs());
        }
        left.sort_unstable();
        left.dedup();
        for job in left {
            tracing::warn!(%job, "a job of an earlier agent is killed");
            let (gone, goes) = watch::channel(false);
            let (group, folder) = (self.cgroups.clone().ok(), self.folder.join(job.to_string()));
            // In its own task: processes that hang in the kernel must not block the link.
            self.tasks.spawn(remains(job, group, folder, goes, self.words.clone()));
            let detail = "the agent was started anew while the task ran; what was left of it is killed".to_owned();
            let state = JobNodeState::Failed { kind: JobFault::AgentRestarted, detail };
            self.jobs.insert(job, RunningJob { gone, alive: true, ..RunningJob::ended(state) });
        }
    }

    /// Processes the desired state of a task.
    pub fn order(&mut self, JobOrder { job, want }: JobOrder) {
        match want {
            JobWant::Gone => match self.jobs.get(&job) {
                Some(entry) if entry.alive => drop(entry.gone.send_replace(true)),
                _ => self.release(job),
            },
            JobWant::Run(_) if self.jobs.contains_key(&job) => {}
            // A late order for a task that was released.
            JobWant::Run(_) if self.released.contains(&job) => self.news.push_back(JobNews::Released { job }),
            JobWant::Run(run) => {
                let (kept, keeps) = watch::channel(AckedOffsets::default());
                let (gone, goes) = watch::channel(false);
                let group = self.cgroups.as_ref().map_err(Clone::clone);
                let group = group.and_then(|groups| groups.make(job));
                let entry = match group {
                    Ok(cgroup) => {
                        let (folder, words) = (self.folder.join(job.to_string()), self.words.clone());
                        let work = JobRunner { job, run: *run, cgroup, folder, words, kept: keeps, gone: goes };
                        self.tasks.spawn(work.run());
                        RunningJob { state: JobNodeState::Starting, kept, gone, alive: true }
                    }
                    Err(detail) => RunningJob::ended(JobNodeState::Failed { kind: JobFault::CgroupMissing, detail }),
                };
                self.jobs.insert(job, entry);
                self.news.push_back(self.all());
            }
        }
    }

    /// The central node acknowledged a piece of output.
    pub fn kept(&mut self, OutputKept { job, stream, upto }: OutputKept) {
        let Some(entry) = self.jobs.get(&job) else { return };
        entry.kept.send_modify(|kept| {
            let known = kept.upto.entry(stream).or_default();
            *known = upto.max(*known);
        });
    }

    /// The central node welcomed a new link: repeat all reports.
    pub fn welcome(&mut self) {
        self.news.push_back(self.all());
        for entry in self.jobs.values() {
            entry.kept.send_modify(|kept| kept.welcome += 1);
        }
    }

    /// Returns the number of tasks that run or whose end is not acknowledged.
    pub fn count(&self) -> u32 {
        u32::try_from(self.jobs.len()).unwrap_or(u32::MAX)
    }

    /// Waits for the next message. Cancel-safe.
    pub async fn next(&mut self) -> JobNews {
        loop {
            if let Some(news) = self.news.pop_front() {
                return news;
            }
            tokio::select! {
                // The channel never closes, because this value holds a sender.
                Some(word) = self.inbox.recv() => self.heard(word),
                Some(ended) = self.tasks.join_next() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "the task of a job has ended");
                    }
                }
            }
        }
    }

    fn heard(&mut self, word: JobEvent) {
        match word {
            JobEvent::Output(output) => self.news.push_back(JobNews::Output(output)),
            JobEvent::Released(job) => self.release(job),
            JobEvent::State(job, mut state) => {
                let Some(entry) = self.jobs.get_mut(&job) else { return };
                if let JobNodeState::Failed { detail, .. } = &mut state {
                    *detail = detail.chars().take(MAX_DETAIL).collect();
                }
                tracing::info!(%job, ?state, "job");
                entry.state = state;
                self.news.push_back(self.all());
            }
        }
    }

    fn release(&mut self, job: JobId) {
        self.jobs.remove(&job);
        if !self.released.contains(&job) {
            self.released.push_back(job);
            if self.released.len() > REMEMBERED {
                self.released.pop_front();
            }
        }
        self.news.push_back(JobNews::Released { job });
    }

    fn all(&self) -> JobNews {
        let report = |(job, entry): (&JobId, &RunningJob)| JobReport { job: *job, state: entry.state.clone() };
        JobNews::All { jobs: self.jobs.iter().take(MAX_JOBS).map(report).collect() }
    }

    /// Ends all tasks without reports when the agent stops.
    pub async fn end(self) {
        let Jobs { mut tasks, cgroups, jobs, inbox, folder, .. } = self;
        drop(inbox);
        if let Ok(cgroups) = &cgroups {
            let all = async {
                for job in jobs.keys() {
                    cgroups.of(*job).end().await;
                    mounts::end(&rank_runner::shm(&folder.join(job.to_string()))).await;
                }
            };
            // A later agent cleans up the rest.
            let _ = timeout(END_PATIENCE, all).await;
        }
        tasks.shutdown().await;
    }
}

/// Ends what an earlier agent left of a task.
async fn remains(
    job: JobId,
    groups: Option<Cgroups>,
    folder: PathBuf,
    mut gone: watch::Receiver<bool>,
    words: mpsc::Sender<JobEvent>,
) {
    if let Some(groups) = groups {
        groups.of(job).end().await;
    }
    mounts::end(&rank_runner::shm(&folder)).await;
    rank_runner::leave(folder).await;
    if gone.wait_for(|gone| *gone).await.is_ok() {
        let _ = words.send(JobEvent::Released(job)).await;
    }
}

impl RunningJob {
    fn ended(state: JobNodeState) -> Self {
        RunningJob { state, kept: watch::Sender::default(), gone: watch::Sender::new(false), alive: false }
    }
}

#[cfg(test)]
mod tests;
