//! Where the driver touches the world beside its socket: clock, randomness, log, and the program that restarts the machine.

use crate::{
    agent::machine::Event,
    id::Timestamp,
    wire::{CheckStatus, FromCentral, PendingReply},
};
use std::{process::Stdio, time::SystemTime};
use tokio::process::Command;

/// Spreads the pauses of many agents.
pub fn random() -> u32 {
    let mut bytes = [0; 4];
    // Without randomness the pauses of a rack are alike, and nothing worse.
    let _ = getrandom::fill(&mut bytes);
    u32::from_ne_bytes(bytes)
}

/// This node's wall clock.
pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// What an operator wants to see of an event. Never a secret.
pub fn log(event: &Event) {
    match event {
        Event::Refused(reason) => tracing::warn!(reason, "refused"),
        Event::Lost(reason) => tracing::warn!(reason, "no connection"),
        Event::Heard(FromCentral::Goodbye { reason, .. }) => {
            tracing::warn!(reason, "the central node says goodbye")
        }
        Event::Heard(FromCentral::Task(task)) => tracing::info!(task = task.task.0, action = ?task.action, "task"),
        Event::Pending(PendingReply::Waiting { reason }) => tracing::info!(reason, "waiting for approval"),
        Event::Pending(PendingReply::Rejected { reason }) => tracing::warn!(reason, "rejected"),
        Event::RebootFailed(reason) => tracing::error!(reason, "the machine was not restarted"),
        Event::Checked(checks) => {
            for check in checks.iter().filter(|check| check.status == CheckStatus::Fail) {
                tracing::warn!(check = check.name, detail = check.detail, "check fails");
            }
        }
        _ => {}
    }
}

/// The reason behind an error, for a log line.
pub fn source(error: &dyn std::error::Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}

/// Runs a program by its arguments, never through a shell (AG-10).
pub async fn run_program(arguments: &[String]) -> std::io::Result<std::process::ExitStatus> {
    let (program, rest) = arguments.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    Command::new(program).args(rest).stdin(Stdio::null()).status().await
}
