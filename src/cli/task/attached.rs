//! A task whose output the command prints until it ends. A signal, or an output that accepts
//! nothing, cancels the task or leaves it alone. Standard input is refused unless the task has one.

use super::input::send_input;
use crate::cli::{
    Failure,
    client::{AdminClient, NodeNames},
    output::{
        print::{bytes, clean},
        writer::{ForeignOutput, RawOutput},
    },
};
use meshd_api::{RunTask, TaskOutput, TaskView, routes as api};
use meshd_model::work::task::{TaskCause, TaskState};
use meshd_proto::task::Stream;
use meshd_types::TaskId;
use std::{
    io::{self, IsTerminal as _},
    time::{Duration, Instant},
};
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Time for a restart of the central node while a task is followed.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(120);
/// Interval between two attempts.
const PAUSE: Duration = Duration::from_secs(1);
/// Exit code of a command that a signal ends: this number and that of the signal.
const OF_SIGNAL: u8 = 128;
/// Exit code of a command whose reader closed the output, as if SIGPIPE had ended it.
const OF_BROKEN_PIPE: u8 = OF_SIGNAL + 13;

/// Effect on the task if the command is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::cli) enum OnInterrupt {
    Cancel,
    /// The task continues.
    Detach,
}

/// Signals that end a command: Ctrl-C, a closed terminal, `kill`.
pub(super) struct Interrupts([(u8, Signal); 3]);

impl Interrupts {
    pub(super) fn new() -> Result<Self, Failure> {
        let of = |number, kind| signal(kind).map(|signal| (number, signal));
        let all = (|| -> io::Result<_> {
            Ok([
                of(2, SignalKind::interrupt())?,
                of(1, SignalKind::hangup())?,
                of(15, SignalKind::terminate())?,
            ])
        })();
        let failed = |error| {
            Failure::new(format!("cannot watch signals: {error}"), "check the limits of this shell")
        };
        all.map(Interrupts).map_err(failed)
    }

    /// Returns the exit code for the next signal.
    pub(super) async fn next(&mut self) -> u8 {
        let [(first, a), (second, b), (third, c)] = &mut self.0;
        let number = tokio::select! {
            _ = a.recv() => first,
            _ = b.recv() => second,
            _ = c.recv() => third,
        };
        OF_SIGNAL + *number
    }
}

/// Starts a task and prints its output until it ends. Returns the exit code of the program.
pub(in crate::cli) async fn run_attached(
    client: &AdminClient,
    order: &RunTask,
    on_interrupt: OnInterrupt,
    raw: RawOutput,
) -> Result<(), Failure> {
    // From here on a signal waits until the task has an ID: a task that nobody knows of could not
    // be cancelled.
    let mut interrupts = Interrupts::new()?;
    if has_unused_input(order) {
        return Err(Failure::new(
            "standard input has data, but the task has no standard input",
            "pass it on by `node exec --stdin`; in a loop that reads its standard input, add `< /dev/null`",
        ));
    }
    let names = client.node_names().await;
    let task = client.post(api::RUN_TASK.path([]), order).await?;
    let nodes: Vec<String> = task.nodes.iter().map(|node| names.label(node.node)).collect();
    message!("task {} on {}", task.id, nodes.join(", "));
    let mut output = TaskStream::new(task.id, raw);
    let input = async {
        match order.has_input {
            true => send_input(client, task.id).await,
            false => std::future::pending().await,
        }
    };
    let interruption = tokio::select! {
        ended = output.follow_output(client) => match ended {
            Err(failure) if failure.is_of_output() => failure,
            ended => {
                output.output.end();
                if has_unused_input(order) {
                    message!("meshd: the data at standard input was not passed on\n  hint: `node exec --stdin` passes it on");
                }
                return exit_result(&ended?, &names);
            }
        },
        Err(failure) = input => failure,
        code = interrupts.next() => Failure::of_program(code),
    };
    end_or_leave(client, task.id, on_interrupt, &mut interrupts).await;
    Err(if interruption.is_broken_pipe() {
        Failure::of_program(OF_BROKEN_PIPE)
    } else {
        interruption
    })
}

/// Cancels a task and waits until its processes are gone, or leaves it alone. A second signal ends
/// the wait.
async fn end_or_leave(
    client: &AdminClient,
    task: TaskId,
    on_interrupt: OnInterrupt,
    interrupts: &mut Interrupts,
) {
    if on_interrupt == OnInterrupt::Detach {
        message!(
            "task {task} goes on\n  hint: meshd task logs --follow {task}; meshd task cancel {task}"
        );
        return;
    }
    let cancel = async {
        client.post(api::CANCEL_TASK.path([&task]), &()).await?;
        loop {
            let view = client.get(api::GET_TASK.path([&task])).await?;
            if view.state.is_final() {
                return Ok::<_, Failure>(view);
            }
            tokio::time::sleep(PAUSE / 5).await;
        }
    };
    tokio::select! {
        done = cancel => match done {
            Ok(view) => message!("task {task} is {}", view.state.as_str()),
            Err(failure) => message!("{failure}\n  hint: meshd task show {task}; meshd task cancel {task}"),
        },
        _ = interrupts.next() => message!("task {task} is being cancelled\n  hint: meshd task show {task}"),
    }
}

/// Returns true if the task has no standard input, and that of the command has data: a file or a
/// pipe, but no terminal.
fn has_unused_input(order: &RunTask) -> bool {
    let input = io::stdin();
    !order.has_input
        && !input.is_terminal()
        && rustix::io::ioctl_fionread(&input).is_ok_and(|bytes| bytes > 0)
}

/// The output of a task, printed from its beginning.
pub(super) struct TaskStream {
    task: TaskId,
    /// Offset of the first byte that is not printed.
    from: u64,
    pub(super) output: ForeignOutput,
}

impl TaskStream {
    pub(super) fn new(task: TaskId, raw: RawOutput) -> Self {
        TaskStream { task, from: 0, output: ForeignOutput::new(raw) }
    }

    /// Prints the output until the task ends, across restarts of the central node.
    async fn follow_output(&mut self, client: &AdminClient) -> Result<TaskView, Failure> {
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
    pub(super) async fn print(
        &mut self,
        client: &AdminClient,
        follow: bool,
    ) -> Result<(), Failure> {
        let path =
            api::GET_TASK_OUTPUT.path([&self.task]).with("follow", follow).with("from", self.from);
        let lines = client.lines(path, |output, length| {
            match output {
                TaskOutput::Dropped { dropped } => {
                    self.from += dropped;
                    message!("meshd: {} of output are missing", bytes(dropped));
                }
                TaskOutput::Piece(line) => {
                    self.from += length as u64;
                    let piece = line.data.into_bytes().unwrap_or_default();
                    match line.stream {
                        Stream::Out => self.output.out(&piece)?,
                        Stream::Err => self.output.err(&piece),
                    }
                }
            }
            Ok(())
        });
        lines.await
    }
}

/// Returns the exit code of the program, else 1.
fn exit_result(task: &TaskView, names: &NodeNames) -> Result<(), Failure> {
    match (task.state, task.code) {
        (TaskState::Succeeded, _) => Ok(()),
        (_, Some(code)) if task.cause.as_deref() == Some(TaskCause::Exited.as_str()) => {
            message!("task {} ended with exit code {code}", task.id);
            Err(Failure::of_program(code))
        }
        _ => {
            let node =
                task.node.map(|node| format!(", node {}", names.label(node))).unwrap_or_default();
            let cause = task.cause.as_deref().unwrap_or_default();
            let message = format!(
                "task {} {}: {cause}: {}{node}",
                task.id,
                task.state.as_str(),
                clean(&task.detail)
            );
            Err(Failure::new(message, format!("meshd task show {}", task.id)))
        }
    }
}
