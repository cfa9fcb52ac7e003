//! `meshd task`: runs and cancels programs on nodes, and prints their output.
//!
//! | module | content |
//! | --- | --- |
//! | `attached` | a task whose output the command prints until it ends: signals, a closed output |
//! | `input` | standard input of the command as that of a task |
//! | `shell` | `meshd node shell`, `meshd vm shell`: the user's terminal as that of a shell |

mod attached;
mod input;
mod shell;

pub(super) use attached::{OnInterrupt, run_attached};
pub(super) use shell::{Shell, open_shell};

use super::{
    Context, Failure,
    client::{AdminClient, NodeNames},
    output::{
        list::{ListOutput, TimeFilter},
        print::{self, Output, ago, fields, now, table},
        writer::RawOutput,
    },
    wait,
};
use attached::TaskStream;
use clap::{Args, Subcommand, ValueEnum};
use meshd_api::{RunTask, TaskView, routes as api};
use meshd_config::reader::parse_duration;
use meshd_model::work::task::{Launcher, TaskState};
use meshd_proto::task::TaskUser;
use meshd_types::TaskId;
use std::time::Duration;

/// A task has its nodes for itself, and ends on all of them.
#[derive(Debug, Subcommand)]
pub(super) enum Task {
    /// Run a program on a group and return its exit code
    Run(RunCommand),
    /// List tasks, the newest last
    List {
        #[command(flatten)]
        output: ListOutput,
        #[command(flatten)]
        time: TimeFilter,
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
    /// Cancel the task on a signal or a closed output
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

pub(super) fn span(text: &str) -> Result<Duration, String> {
    parse_duration(text)
        .ok_or_else(|| "write a number and one of s, m, h, d, such as 90s".to_owned())
}

pub(super) fn user(text: &str) -> Result<TaskUser, String> {
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
            Task::List { output, time } => {
                let mut all = wait(client.get(api::LIST_TASKS.path([])))?;
                all.retain(|task| time.includes(task.created_at));
                output.print(&all, |all| list(all))
            }
            Task::Show { task, output } => {
                let task = wait(client.get(api::GET_TASK.path([&task])))?;
                let names = wait(async { Ok(client.node_names_for(output).await) })?;
                output.print(&task, |task| show(task, &names))
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
                    None => message!("task {task} has no record; its nodes were ordered to end it"),
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
            has_input: false,
        };
        if self.detach {
            let task = wait(client.post(api::RUN_TASK.path([]), &order))?;
            return print::write(&format!("{}\n", task.id))
                .inspect_err(|_| message!("task {} runs", task.id));
        }
        let on_interrupt =
            if self.cancel_on_interrupt { OnInterrupt::Cancel } else { OnInterrupt::Detach };
        wait(run_attached(client, &order, on_interrupt, self.raw))
    }
}

fn list(all: &[TaskView]) -> String {
    let rows = all.iter().map(|task| {
        let program = task.argv.join(" ").chars().take(50).collect();
        let nodes = task.nodes.len().to_string();
        [
            task.id.to_string(),
            state_text(task),
            task.group.clone(),
            nodes,
            ago(task.created_at, now()),
            program,
        ]
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

fn show(task: &TaskView, names: &NodeNames) -> String {
    let time = |at: Option<meshd_types::Timestamp>| at.map(|at| at.to_string()).unwrap_or_default();
    let user = match task.user {
        TaskUser::Default => "default".to_owned(),
        TaskUser::Root => "root".to_owned(),
        TaskUser::Uid(uid) => uid.to_string(),
    };
    let head = fields([
        ("task", task.id.to_string()),
        ("state", state_text(task)),
        ("detail", task.detail.clone()),
        ("node", names.maybe_label(task.node)),
        ("program", task.argv.join(" ")),
        ("group", task.group.clone()),
        (
            "launcher",
            format!("{}, ranks on each node: {}", task.launcher.as_str(), task.ranks_per_node),
        ),
        ("user", user),
        (
            "limit",
            task.timeout_s.map(|limit| print::span(Duration::from_secs(limit))).unwrap_or_default(),
        ),
        ("owner", task.owner.clone()),
        ("created", task.created_at.to_string()),
        ("started", time(task.started_at)),
        ("ended", time(task.ended_at)),
    ]);
    let rows = task.nodes.iter().map(|node| {
        let lost = if node.lost { "lost" } else { "" };
        let claimed = if node.claimed { "claimed" } else { "free" };
        let code = node.code.map(|code| code.to_string()).unwrap_or_default();
        let name = names.label(node.node);
        let address = node.address.to_string();
        [name, address, node.state.clone(), code, claimed.to_owned(), lost.to_owned()]
    });
    format!("{head}\n{}", table(["node", "address", "state", "exit", "claim", ""], rows))
}
