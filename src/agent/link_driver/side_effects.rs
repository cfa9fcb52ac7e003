//! Side effects of the driver other than its socket: clock, randomness, log, limits, programs.

use crate::link_state::Event;
use meshd_proto::{AgentConfig, BootPart, CheckStatus, FromCentral, PendingReply};
use meshd_types::Timestamp;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::{process::Stdio, time::SystemTime};
use tokio::process::Command;

/// Returns a random number that spreads the retries of many agents.
pub fn random() -> u32 {
    // Without randomness the agents of a rack only retry at the same time.
    getrandom::u32().unwrap_or_default()
}

pub fn wall() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_millis(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}

/// OOM score: the kernel kills the agent last when memory runs out, because only the agent can
/// report the cause.
const OOM_SCORE: &str = "-900";

/// Sets the OOM score, and raises the limit of open files: each VM takes four.
pub fn raise_limits() {
    if let Err(error) = std::fs::write("/proc/self/oom_score_adj", OOM_SCORE) {
        tracing::debug!(%error, "cannot set the OOM score");
    }
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
}

pub fn log_start(config: &AgentConfig, boot: &BootPart) {
    let node = config.node;
    let session = boot.session;
    let profile = &config.profile;
    tracing::info!(%node, %session, profile, version = crate::version(), "mesh-agent started");
}

/// Logs an event without secrets. `has_ticket`: this machine does not netboot.
pub fn log(event: &Event, has_ticket: bool) {
    match event {
        Event::Refused(reason) => tracing::warn!(reason, "the central node refused a request"),
        Event::StaleCa(reason) => tracing::error!("{reason}"),
        Event::ConnectionLost(reason) => tracing::warn!(reason, "connection failed"),
        Event::Message(FromCentral::Goodbye { reason, .. }) => {
            tracing::warn!(reason, "the central node closes the link")
        }
        Event::Message(FromCentral::Action(order)) => {
            tracing::info!(id = order.id.0, action = ?order.action, "action ordered")
        }
        Event::Pending(PendingReply::Waiting { reason }) => {
            tracing::warn!(reason, "waiting for approval")
        }
        Event::Pending(PendingReply::Rejected { reason }) => {
            let hint = if has_ticket {
                "create a ticket with `meshd token create`, and start mesh-agent with it"
            } else {
                "boot this node again once it is approved"
            };
            tracing::warn!(reason, hint, "approval refused");
        }
        Event::RebootFailed(reason) => tracing::error!(reason, "cannot reboot"),
        Event::ChecksDone(report) => {
            for check in report.checks.iter().filter(|check| check.status == CheckStatus::Fail) {
                tracing::warn!(check = check.name, detail = check.detail, "check fails");
            }
        }
        _ => {}
    }
}

/// Returns the source of an error, for the log.
pub fn source(error: &dyn std::error::Error) -> String {
    error.source().map(ToString::to_string).unwrap_or_default()
}

/// Runs a program by its arguments, never through a shell (AG-10).
pub async fn run_program(arguments: &[String]) -> std::io::Result<std::process::ExitStatus> {
    let (program, rest) = arguments.split_first().ok_or(std::io::ErrorKind::InvalidInput)?;
    Command::new(program).args(rest).stdin(Stdio::null()).status().await
}
