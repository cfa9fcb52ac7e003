//! `meshd task`: runs and cancels programs on nodes, and prints their output.

use super::{
    Context, Failure,
    client::AdminClient,
    output::print::{self, Output, ago, clean, fields, now, table},
    wait,
};
use clap::{Args, Subcommand, ValueEnum};
use meshd_api::{RunTask, TaskOutput, TaskView};
use meshd_config::reader::parse_duration;
use meshd_model::work::task::{Launcher, TaskCause, TaskState};
use meshd_proto::task::{Stream, TaskUser};
use meshd_types::TaskId;
use std::{
    io::Write as _,
    time::{Duration, Instant},
};

/// How long a central node that went away is waited for while a task is followed.
const PATIENCE: Duration = Duration::from_secs(120);
/// Between two tries.
const PAUSE: Duration = Duration::from_secs(1);
/// Exit code when the operator stopped looking: the task goes on.
const DETACHED: u8 = 130;

/// A task has its nodes for itself, and ends on all of them.
#[derive(Debug, Subcommand)]
pub(super) enum Task {
    /// Run a program on a group and return its exit code
    Run(RunCommand),
    /// List tasks, the newest last
    List {
        #[command(flatten)]
        output: Output,
    },
    /// Show a task and its nodes
    Show {
        /// Task ID
        task: TaskId,
        #[command(flatten)]
        output: Output,
    },
    /// Show the output of a task
    Logs {
        /// Task ID
        task: TaskId,
        /// Follow the output until the task ends
        #[arg(long, short)]
        follow: bool,
    },
    /// Cancel a task on all its nodes
    Cancel {
        /// Task ID
        task: TaskId,
    },
}

/// What is run, and where.
#[derive(Debug, Args)]
pub(super) struct RunCommand {
    /// Group of nodes
    #[arg(long, value_name = "GROUP")]
    group: String,
    /// Number of nodes [default: all of the group]
    #[arg(long, value_name = "N")]
    nodes: Option<usize>,
    /// Ranks per node
    #[arg(long, value_name = "R", default_value_t = 1)]
    ranks_per_node: u16,
    /// Time limit, such as 90s or 12h
    #[arg(long, value_name = "TIME", value_parser = span)]
    timeout: Option<Duration>,
    /// Launcher of the ranks [default: mpich for several]
    #[arg(long, value_enum)]
    launcher: Option<How>,
    /// User ID from 1000 on, or root (role admin)
    #[arg(long, value_name = "UID|root", value_parser = user)]
    user: Option<TaskUser>,
    /// Print the task ID and return
    #[arg(long)]
    detach: bool,
    /// Cancel the task on Ctrl-C
    #[arg(long, conflicts_with = "detach")]
    cancel_on_interrupt: bool,
    /// Program and arguments, without a shell
    #[arg(last = true, required = true, value_name = "ARGV")]
    argv: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum How {
    /// MPICH's Hydra, without ssh
    Mpich,
    /// Start the program on each node; it reads MESHD_RANK
    None,
}

fn span(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a number and one of s, m, h, d, such as 90s".to_owned())
}

fn user(text: &str) -> Result<TaskUser, String> {
    match text {
        "root" => Ok(TaskUser::Root),
        text => text.parse().map(TaskUser::Uid).map_err(|_| "write a user ID, or root".to_owned()),
    }
}

impl Task {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        match self {
            Task::Run(run) => run.run(&client),
            Task::List { output } => {
                let all: Vec<TaskView> = wait(client.get("/v1/tasks"))?;
                output.print(&all, |all| list(all))
            }
            Task::Show { task, output } => {
                let task: TaskView = wait(client.get(&format!("/v1/tasks/{task}")))?;
                output.print(&task, show)
            }
            Task::Logs { task, follow } => wait(async { pour(&client, task, follow, &mut 0).await }),
            Task::Cancel { task } => {
                let cancelled: Option<TaskView> = wait(client.post(&format!("/v1/tasks/{task}/cancel"), &()))?;
                match cancelled {
                    Some(task) => eprintln!("task {} is {}", task.id, task.state.as_str()),
                    None => eprintln!("task {task} is not on record; the nodes that run it were told to end it"),
                }
                Ok(())
            }
        }
    }
}

impl RunCommand {
    fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let launcher = self.launcher.map(|how| match how {
            How::Mpich => Launcher::Mpich,
            How::None => Launcher::None,
        });
        let order = RunTask {
            group: Some(self.group),
            node: None,
            argv: self.argv,
            nodes: self.nodes,
            ranks_per_node: Some(self.ranks_per_node),
            launcher,
            user: self.user.unwrap_or_default(),
            timeout_s: self.timeout.map(|limit| limit.as_secs()),
        };
        if self.detach {
            let task: TaskView = wait(client.post("/v1/tasks", &order))?;
            return print::write(&format!("{}\n", task.id));
        }
        wait(submit(client, &order, self.cancel_on_interrupt))
    }
}

/// `meshd node exec`: a task on one node.
#[derive(Debug, Args)]
pub(super) struct Exec {
    /// Node ID or name
    node: String,
    /// Time limit, such as 90s or 12h
    #[arg(long, value_name = "TIME", value_parser = span)]
    timeout: Option<Duration>,
    /// User ID from 1000 on, or root (role admin)
    #[arg(long, value_name = "UID|root", value_parser = user)]
    user: Option<TaskUser>,
    /// Program and arguments, without a shell
    #[arg(last = true, required = true, value_name = "ARGV")]
    argv: Vec<String>,
}

impl Exec {
    /// Runs the program, prints its output and ends with its exit code. An interrupt cancels the task.
    pub(super) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let order = RunTask {
            group: None,
            node: Some(self.node),
            argv: self.argv,
            nodes: Some(1),
            ranks_per_node: Some(1),
            launcher: Some(Launcher::None),
            user: self.user.unwrap_or_default(),
            timeout_s: self.timeout.map(|limit| limit.as_secs()),
        };
        submit(client, &order, true).await
    }
}

/// Starts a task and shows its output until it ends or the user interrupts.
async fn submit(client: &AdminClient, order: &RunTask, cancel_on_interrupt: bool) -> Result<(), Failure> {
    let task: TaskView = client.post("/v1/tasks", order).await?;
    let nodes: Vec<String> = task.nodes.iter().map(|node| node.node.to_string()).collect();
    eprintln!("task {} on {}", task.id, nodes.join(" "));
    tokio::select! {
        over = follow(client, task.id) => ended(&over?),
        _ = tokio::signal::ctrl_c() => interrupted(client, task.id, cancel_on_interrupt).await,
    }
}

async fn interrupted(client: &AdminClient, task: TaskId, cancel: bool) -> Result<(), Failure> {
    if cancel {
        let _: Option<TaskView> = client.post(&format!("/v1/tasks/{task}/cancel"), &()).await?;
        return ended(&follow(client, task).await?);
    }
    eprintln!("task {task} goes on\n  hint: meshd task logs --follow {task}; meshd task cancel {task}");
    Err(Failure::of_program(DETACHED))
}

/// Shows what a task writes until it is over, across restarts of the central node.
async fn follow(client: &AdminClient, task: TaskId) -> Result<TaskView, Failure> {
    let (mut from, mut heard) = (0, Instant::now());
    loop {
        let before = from;
        let whole = match pour(client, task, true, &mut from).await {
            Err(failure) if failure.is_broken_pipe() => return Err(failure),
            poured => poured.is_ok(),
        };
        match client.get::<TaskView>(&format!("/v1/tasks/{task}")).await {
            Ok(view) if view.state.is_final() && whole => return Ok(view),
            Ok(_) => heard = Instant::now(),
            Err(failure) if heard.elapsed() > PATIENCE => return Err(failure),
            Err(_) => {}
        }
        if before == from {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Writes what a task wrote from a place on; the place goes on with it.
async fn pour(client: &AdminClient, task: TaskId, follow: bool, from: &mut u64) -> Result<(), Failure> {
    let path = format!("/v1/tasks/{task}/output?follow={follow}&from={from}");
    let lines = client.lines(&path, |text| {
        match serde_json::from_slice(text).map_err(|error| Failure::of(&error))? {
            TaskOutput::Dropped { dropped } => {
                *from += dropped;
                eprintln!("meshd: {} of output were not kept here", print::bytes(dropped));
            }
            TaskOutput::Piece(line) => {
                *from += text.len() as u64;
                let bytes = line.data.into_bytes().unwrap_or_default();
                match line.stream {
                    Stream::Out => {
                        let mut out = std::io::stdout().lock();
                        out.write_all(&bytes)?;
                        out.flush()?;
                    }
                    Stream::Err => std::io::stderr().lock().write_all(&bytes)?,
                }
            }
        }
        Ok(())
    });
    lines.await
}

/// What the command ends with: the exit code of the program, else 1.
fn ended(task: &TaskView) -> Result<(), Failure> {
    match (task.state, task.code) {
        (TaskState::Succeeded, _) => Ok(()),
        (_, Some(code)) if task.cause.as_deref() == Some(TaskCause::Exited.as_str()) => {
            eprintln!("task {} ended with exit code {code}", task.id);
            Err(Failure::of_program(code))
        }
        _ => {
            let node = task.node.map(|node| format!(" (node {node})")).unwrap_or_default();
            let cause = task.cause.as_deref().unwrap_or_default();
            let message = format!("task {} {}: {cause}: {}{node}", task.id, task.state.as_str(), clean(&task.detail));
            Err(Failure::new(message, format!("meshd task show {}", task.id)))
        }
    }
}

fn list(all: &[TaskView]) -> String {
    let rows = all.iter().map(|task| {
        let program = task.argv.join(" ").chars().take(50).collect();
        let nodes = task.nodes.len().to_string();
        [task.id.to_string(), state_text(task), task.group.clone(), nodes, ago(task.created_at, now()), program]
    });
    table(["task", "state", "group", "nodes", "since", "program"], rows)
}

/// The state, with what ended it where that is no plain exit.
fn state_text(task: &TaskView) -> String {
    let state = task.state.as_str();
    match (task.code, task.cause.as_deref()) {
        (Some(code), _) if code != 0 => format!("{state} ({code})"),
        (None, Some(cause)) if task.state == TaskState::Failed => format!("{state} ({cause})"),
        _ => state.to_owned(),
    }
}

fn show(task: &TaskView) -> String {
    let time = |at: Option<meshd_types::Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let user = match task.user {
        TaskUser::Default => "job".to_owned(),
        TaskUser::Root => "root".to_owned(),
        TaskUser::Uid(uid) => uid.to_string(),
    };
    let head = fields([
        ("task", task.id.to_string()),
        ("state", state_text(task)),
        ("detail", task.detail.clone()),
        ("node", task.node.map(|node| node.to_string()).unwrap_or_default()),
        ("program", task.argv.join(" ")),
        ("group", task.group.clone()),
        ("launcher", format!("{}, {} ranks on each node", task.launcher.as_str(), task.ranks_per_node)),
        ("user", user),
        ("limit", task.timeout_s.map(|limit| print::span(Duration::from_secs(limit))).unwrap_or_default()),
        ("owner", task.owner.clone()),
        ("created", task.created_at.to_string()),
        ("started", time(task.started_at)),
        ("ended", time(task.ended_at)),
    ]);
    let rows = task.nodes.iter().map(|node| {
        let lost = if node.lost { "lost" } else { "" };
        let claimed = if node.claimed { "claimed" } else { "free" };
        let code = node.code.map(|code| code.to_string()).unwrap_or_default();
        [node.node.to_string(), node.address.to_string(), node.state.clone(), code, claimed.to_owned(), lost.to_owned()]
    });
    format!("{head}\n{}", table(["node", "address", "state", "exit", "claim", ""], rows))
}
