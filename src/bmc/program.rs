//! Runs a program with limits of time and output.

use meshd_model::operations::BmcFailure;
use rustix::process::{Pid, Signal, kill_process_group};
use std::{path::PathBuf, process::Stdio, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::{Child, Command},
    time::timeout,
};

/// Maximum number of bytes that are read of each output.
const MAX_OUTPUT: u64 = 64 * 1024;
/// Maximum length of a message in an error, in characters.
const MAX_MESSAGE: usize = 200;

/// A program of the site, with its first arguments.
#[derive(Clone, Debug)]
pub struct CommandLine {
    pub program: PathBuf,
    pub args: Vec<String>,
}

impl CommandLine {
    /// Returns the command, without a shell, whose only variable is PATH.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
        command
    }

    /// Runs the program to its end with further variables. A program that takes too long is killed,
    /// with all processes that it started. Returns its exit code, `None` after a signal, and the
    /// last line of its error output.
    ///
    /// # Errors
    /// The program cannot be started, or takes too long.
    pub async fn run(
        &self,
        vars: &[(&str, String)],
        limit: Duration,
    ) -> Result<(Option<i32>, String), BmcFailure> {
        let mut command = self.command();
        command.envs(vars.iter().map(|(name, value)| (name, value)));
        let output = run(command, limit).await?;
        Ok((output.code, output.message()))
    }
}

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
        self.message_or("no message")
    }

    /// Returns the last line of the error output, or `silent` if there is none.
    pub(crate) fn message_or(&self, silent: &str) -> String {
        let line = self.stderr.lines().rev().find(|line| !line.trim().is_empty());
        let line = line.unwrap_or(silent).trim();
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
        let (stdout, stderr, status) =
            tokio::join!(read_head(streams.0), read_tail(streams.1), child.wait());
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

/// Reads an output to its end, and keeps its begin: a closed pipe would end the program.
async fn read_head(stream: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        let mut stream = stream.take(MAX_OUTPUT);
        // What was read before an error counts.
        if stream.read_to_end(&mut bytes).await.is_ok() {
            let _ = tokio::io::copy(&mut stream.into_inner(), &mut tokio::io::sink()).await;
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads an output to its end, and keeps its last part.
async fn read_tail(stream: Option<impl AsyncRead + Unpin>) -> String {
    let most = usize::try_from(MAX_OUTPUT).unwrap_or(usize::MAX);
    let mut bytes = Vec::new();
    let mut part = [0; 8192];
    if let Some(mut stream) = stream {
        while let Ok(count @ 1..) = stream.read(&mut part).await {
            bytes.extend_from_slice(&part[..count]);
            let surplus = bytes.len().saturating_sub(most);
            bytes.drain(..surplus);
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn program_that_prints_much_runs_to_its_end_and_its_last_line_is_the_reason() {
        let script = "head -c 1000000 /dev/zero; head -c 1000000 /dev/zero >&2 || exit 9; \
                      echo >&2; echo slow jobs >&2; exit 3";
        let line = CommandLine {
            program: "/bin/sh".into(),
            args: vec!["-c".to_owned(), script.to_owned()],
        };
        let ended = line.run(&[], Duration::from_secs(20)).await.expect("an end");
        assert_eq!(ended, (Some(3), "slow jobs".to_owned()));
        let mut command = line.command();
        command.args(["x"]);
        let output = run(command, Duration::from_secs(20)).await.expect("an end");
        let most = usize::try_from(MAX_OUTPUT).expect("small");
        assert_eq!((output.stdout.len(), output.stderr.len()), (most, most));
    }
}
