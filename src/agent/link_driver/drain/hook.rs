//! Runs one drain hook: a program that takes `drain` or `resume` as its argument, without a shell.

use super::orphans;
use meshd_proto::{DrainOrder, HookState, MAX_HOOK_DETAIL};
use rustix::process::{Pid, Signal, kill_process_group};
use std::{
    path::PathBuf,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    time::timeout,
};

/// Time after which a hook is killed, with all processes that it started.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of bytes that are read of each output.
const MAX_OUTPUT: u64 = 16 * 1024;
/// Exit code of a hook with work left: `EX_TEMPFAIL` of sysexits.h.
const WORK_LEFT: i32 = 75;
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The result of one run of a hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookResult {
    pub state: HookState,
    pub detail: String,
}

impl HookResult {
    pub fn failed(detail: String) -> Self {
        HookResult { state: HookState::Failed, detail }
    }

    fn ended(status: ExitStatus, stdout: &[u8], stderr: &[u8]) -> Self {
        let state = match status.code() {
            Some(0) => HookState::Done,
            Some(WORK_LEFT) => HookState::Waiting,
            _ => HookState::Failed,
        };
        let detail = match state {
            HookState::Failed => {
                let message = last_line(stderr).or_else(|| last_line(stdout));
                message.map_or_else(|| status.to_string(), |line| format!("{status}: {line}"))
            }
            _ => last_line(stdout).unwrap_or_default(),
        };
        HookResult { state, detail: detail.chars().take(MAX_HOOK_DETAIL).collect() }
    }
}

/// Kills the process group of a hook when it is dropped.
struct Group(Option<Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

/// Runs a hook to its end: `drain` with an order, else `resume`.
pub async fn run(program: PathBuf, order: Option<DrainOrder>) -> HookResult {
    run_within(program, order, TIME_LIMIT).await
}

async fn run_within(program: PathBuf, order: Option<DrainOrder>, limit: Duration) -> HookResult {
    let mut command = Command::new(&program);
    let (marker, folder) = orphans::marker(&program);
    command
        .arg(if order.is_some() { "drain" } else { "resume" })
        .env_clear()
        .env("PATH", PATH)
        .env(marker, folder)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    if let Some(DrainOrder { reason, stop_work, grace_s }) = order {
        command
            .env("MESHD_REASON", reason)
            .env("MESHD_WORKLOADS", if stop_work { "stop" } else { "wait" });
        if let Some(grace_s) = grace_s {
            command.env("MESHD_GRACE_S", grace_s.to_string());
        }
    }
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return HookResult::failed(format!("cannot start: {error}")),
    };
    let id = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let mut group = Group(id);
    let streams = (child.stdout.take(), child.stderr.take());
    let ended = async { tokio::join!(read(streams.0), read(streams.1), child.wait()) };
    match timeout(limit, ended).await {
        Ok((stdout, stderr, Ok(status))) => {
            // Its number may be another process's by now.
            group.0 = None;
            HookResult::ended(status, &stdout, &stderr)
        }
        Ok((_, _, Err(error))) => HookResult::failed(format!("cannot wait: {error}")),
        Err(_) => HookResult::failed(format!("no end within {} s", limit.as_secs())),
    }
}

/// Reads what a hook writes. A hook that writes more is ended by a broken pipe.
async fn read(stream: Option<impl AsyncRead + Unpin>) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(stream) = stream {
        // What was read before an error counts.
        let _ = stream.take(MAX_OUTPUT).read_to_end(&mut bytes).await;
    }
    bytes
}

/// The last line that is not blank, without control characters.
fn last_line(output: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    let line = text.lines().map(str::trim).rev().find(|line| !line.is_empty())?;
    Some(line.chars().map(|c| if c.is_control() { '?' } else { c }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    async fn result(script: &str, order: Option<DrainOrder>, limit: Duration) -> HookResult {
        let dir = tempfile::tempdir().expect("a folder");
        let program = dir.path().join("hook");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("executable");
        loop {
            // Another test may have the file open for writing, in a process that it starts.
            let result = run_within(program.clone(), order.clone(), limit).await;
            if !result.detail.contains("Text file busy") {
                return result;
            }
            tokio::task::yield_now().await;
        }
    }

    fn order() -> Option<DrainOrder> {
        let reason = "meshd: $(reboot) `x`; \"y\"".to_owned();
        Some(DrainOrder { reason, stop_work: true, grace_s: Some(7) })
    }

    #[tokio::test]
    async fn exit_code_decides_the_state_and_last_line_is_the_detail() {
        let cases = [
            ("echo first; echo done", HookState::Done, "done"),
            ("printf 'job \\0337\\n\\n'; exit 75", HookState::Waiting, "job ?7"),
            (
                "echo out; echo no controller >&2; exit 1",
                HookState::Failed,
                "exit status: 1: no controller",
            ),
            ("exit 2", HookState::Failed, "exit status: 2"),
            ("kill -9 $$", HookState::Failed, "signal: 9 (SIGKILL)"),
        ];
        for (script, state, detail) in cases {
            let ended = result(script, None, TIME_LIMIT).await;
            assert_eq!(ended, HookResult { state, detail: detail.to_owned() }, "{script}");
        }
    }

    #[tokio::test]
    async fn hook_gets_reason_and_policy_as_data() {
        let script = r#"echo "$1 $MESHD_REASON $MESHD_WORKLOADS $MESHD_GRACE_S $HOME""#;
        let drain = result(script, order(), TIME_LIMIT).await;
        assert_eq!(drain.detail, "drain meshd: $(reboot) `x`; \"y\" stop 7");
        assert_eq!(result(script, None, TIME_LIMIT).await.detail, "resume");
    }

    #[tokio::test]
    async fn hanging_hook_is_killed_with_its_processes() {
        let dir = tempfile::tempdir().expect("a folder");
        let pid = dir.path().join("pid");
        let script = format!("sleep 1000 & echo $! >{}; wait", pid.display());
        let ended = result(&script, None, Duration::from_secs(1)).await;
        assert_eq!(ended, HookResult::failed("no end within 1 s".to_owned()));
        let child = fs::read_to_string(&pid).expect("it ran");
        let state = || fs::read_to_string(format!("/proc/{}/stat", child.trim()));
        let deadline = std::time::Instant::now() + TIME_LIMIT;
        // A zombie is dead: nobody may collect it here.
        while state().is_ok_and(|stat| !stat.contains(") Z ")) {
            assert!(std::time::Instant::now() < deadline, "its child lives");
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn endless_output_is_bounded() {
        let ended = result("yes meshd", None, TIME_LIMIT).await;
        assert_eq!(ended.state, HookState::Failed, "{ended:?}");
        let ended = result("head -c 9000 /dev/zero | tr '\\0' x", None, TIME_LIMIT).await;
        assert_eq!((ended.state, ended.detail.len()), (HookState::Done, MAX_HOOK_DETAIL));
    }

    #[tokio::test]
    async fn missing_hook_fails() {
        let ended = run_within(PathBuf::from("/nowhere/hook"), None, TIME_LIMIT).await;
        assert_eq!(ended.state, HookState::Failed);
        assert!(ended.detail.starts_with("cannot start: "), "{ended:?}");
    }
}
