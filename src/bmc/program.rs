//! Runs a program with limits of time and output.

use meshd_model::operations::BmcFailure;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{process::Stdio, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
    time::timeout,
};

/// Maximum number of bytes that are read of each output.
const MAX_OUTPUT: u64 = 64 * 1024;
/// Maximum length of a message in an error, in characters.
const MAX_MESSAGE: usize = 200;

/// The end of a program.
pub(crate) struct Output {
    /// Exit code; `None` after a signal.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Output {
    /// Returns the last line of the error output, for an error.
    pub(crate) fn message(&self) -> String {
        let line = self.stderr.lines().rev().find(|line| !line.trim().is_empty());
        let line = line.unwrap_or("no message").trim();
        line.chars().map(|c| if c.is_control() { '?' } else { c }).take(MAX_MESSAGE).collect()
    }
}

/// Kills the process group of a program, with all processes that it started.
pub(crate) struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs a program to its end. A program that takes too long is killed.
///
/// # Errors
/// The program cannot be started, or takes too long: then its request may have an effect.
pub(crate) async fn run(mut command: Command, limit: Duration) -> Result<Output, BmcFailure> {
    let name = command.as_std().get_program().to_string_lossy().into_owned();
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let failed = |cause: String| BmcFailure::Failed(format!("{name}: {cause}"));
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let mut group = group_of(&child);
    let streams = (child.stdout.take(), child.stderr.take());
    let ended = async {
        let (stdout, stderr, status) = tokio::join!(read(streams.0), read(streams.1), child.wait());
        status.map(|status| Output { code: status.code(), stdout, stderr })
    };
    let output = match timeout(limit, ended).await {
        Ok(ended) => ended.map_err(|error| failed(error.to_string()))?,
        Err(_) => {
            let cause = format!("{name}: no end within {} s", limit.as_secs());
            return Err(BmcFailure::Unanswered(cause));
        }
    };
    // Its number may be another process's by now.
    group.0 = None;
    Ok(output)
}

/// Returns the process group of a program that leads one.
pub(crate) fn group_of(child: &Child) -> Group {
    Group(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw))
}

async fn read(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What was read before an error counts.
        let _ = stream.take(MAX_OUTPUT).read_to_end(&mut bytes).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
