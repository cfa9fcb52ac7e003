//! `meshd task`: runs and cancels programs on nodes, and prints their output.

use super::{
    Context, Failure,
    client::AdminClient,
    output::{
        print::{self, Output, ago, clean, fields, now, table},
        writer::{ForeignOutput, RawOutput},
    },
    wait,
};
use clap::{Args, Subcommand, ValueEnum};
use meshd_api::{RunTask, TaskOutput, TaskView, routes as api};
use meshd_config::reader::parse_duration;
use meshd_model::work::task::{Launcher, TaskCause, TaskState};
use meshd_proto::task::{Stream, TaskUser};
use meshd_types::TaskId;
use std::time::{Duration, Instant};

/// Time for a restart of the central node while a task is followed.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Exit code after an interrupt: the task continues.
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
        #[command(flatten)]
        raw: RawOutput,
    },
    /// Cancel a task on all its nodes
    Cancel {
        /// Task ID
        task: TaskId,
    },
}

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
    launcher: Option<LauncherArg>,
    /// User ID from 1000 on, or root (role admin)
    #[arg(long, value_name = "UID|root", value_parser = user)]
    user: Option<TaskUser>,
    /// Print the task ID and return
    #[arg(long)]
    detach: bool,
    /// Cancel the task on Ctrl-C
    #[arg(long, conflicts_with = "detach")]
    cancel_on_interrupt: bool,
    #[command(flatten)]
    raw: RawOutput,
    /// Program and arguments, without a shell
    #[arg(last = true, required = true, value_name = "ARGV")]
    argv: Vec<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LauncherArg {
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
                let all = wait(client.get(api::LIST_TASKS.path([])))?;
                output.print(&all, |all| list(all))
            }
            Task::Show { task, output } => {
                let task = wait(client.get(api::GET_TASK.path([&task])))?;
                output.print(&task, show)
            }
            Task::Logs { task, follow, raw } => wait(async {
                let mut output = TaskStream::new(task, raw);
                output.print(&client, follow).await?;
                output.output.end();
                Ok(())
            }),
            Task::Cancel { task } => {
                match wait(client.post(api::CANCEL_TASK.path([&task]), &()))? {
                    Some(task) => message!("task {} is {}", task.id, task.state.as_str()),
                    None => message!("task {task} is not on record; the nodes that run it were told to end it"),
                }
                Ok(())
            }
        }
    }
}

impl RunCommand {
    fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let launcher = self.launcher.map(|launcher| match launcher {
            LauncherArg::Mpich => Launcher::Mpich,
            LauncherArg::None => Launcher::None,
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
            let task = wait(client.post(api::RUN_TASK.path([]), &order))?;
            return print::write(&format!("{}\n", task.id));
        }
        wait(submit(client, &order, self.cancel_on_interrupt, self.raw))
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
    #[command(flatten)]
    raw: RawOutput,
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
        submit(client, &order, true, self.raw).await
    }
}

/// Starts a task and shows its output until it ends or the user interrupts.
async fn submit(
    client: &AdminClient,
    order: &RunTask,
    cancel_on_interrupt: bool,
    raw: RawOutput,
) -> Result<(), Failure> {
    let task = client.post(api::RUN_TASK.path([]), order).await?;
    let nodes: Vec<String> = task.nodes.iter().map(|node| node.node.to_string()).collect();
    message!("task {} on {}", task.id, nodes.join(" "));
    let mut output = TaskStream::new(task.id, raw);
    let done = tokio::select! {
        task = output.follow(client) => Some(task?),
        _ = tokio::signal::ctrl_c() => None,
    };
    let ended = match done {
        Some(task) => exit_result(&task),
        None => interrupted(client, &mut output, cancel_on_interrupt).await,
    };
    output.output.end();
    ended
}

async fn interrupted(client: &AdminClient, output: &mut TaskStream, cancel: bool) -> Result<(), Failure> {
    let task = output.task;
    if cancel {
        client.post(api::CANCEL_TASK.path([&task]), &()).await?;
        return exit_result(&output.follow(client).await?);
    }
    message!("task {task} goes on\n  hint: meshd task logs --follow {task}; meshd task cancel {task}");
    Err(Failure::of_program(DETACHED))
}

/// The output of a task, printed from its beginning.
struct TaskStream {
    task: TaskId,
    /// Offset of the first byte that is not printed.
    from: u64,
    output: ForeignOutput,
}

impl TaskStream {
    fn new(task: TaskId, raw: RawOutput) -> Self {
        TaskStream { task, from: 0, output: ForeignOutput::new(raw) }
    }

    /// Prints the output until the task ends, across restarts of the central node.
    async fn follow(&mut self, client: &AdminClient) -> Result<TaskView, Failure> {
        let mut last_response = Instant::now();
        loop {
            let before = self.from;
            let complete = match self.print(client, true).await {
                Err(failure) if failure.is_of_output() => return Err(failure),
                printed => printed.is_ok(),
            };
            match client.get(api::GET_TASK.path([&self.task])).await {
                Ok(view) if view.state.is_final() && complete => return Ok(view),
                Ok(_) => last_response = Instant::now(),
                Err(failure) if last_response.elapsed() > RECONNECT_TIMEOUT => return Err(failure),
                Err(_) => {}
            }
            if before == self.from {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// Prints new output.
    async fn print(&mut self, client: &AdminClient, follow: bool) -> Result<(), Failure> {
        let path = api::GET_TASK_OUTPUT.path([&self.task]).with("follow", follow).with("from", self.from);
        let lines = client.lines(path, |output, length| {
            match output {
                TaskOutput::Dropped { dropped } => {
                    self.from += dropped;
                    message!("meshd: {} of output were not kept here", print::bytes(dropped));
                }
                TaskOutput::Piece(line) => {
                    self.from += length as u64;
                    let bytes = line.data.into_bytes().unwrap_or_default();
                    match line.stream {
                        Stream::Out => self.output.out(&bytes)?,
                        Stream::Err => self.output.err(&bytes),
                    }
                }
            }
            Ok(())
        });
        lines.await
    }
}

/// Returns the exit code of the program, else 1.
fn exit_result(task: &TaskView) -> Result<(), Failure> {
    match (task.state, task.code) {
        (TaskState::Succeeded, _) => Ok(()),
        (_, Some(code)) if task.cause.as_deref() == Some(TaskCause::Exited.as_str()) => {
            message!("task {} ended with exit code {code}", task.id);
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

/// Returns the state with the exit code or the cause of a failure.
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
