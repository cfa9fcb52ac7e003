//! `meshd node timeline`: the stages of one boot, and a summary of earlier boots.

use crate::cli::output::print::{fields, span, table, wrapped};
use meshd_api::TimelineView;
use meshd_model::fleet::Wait;
use meshd_types::Timestamp;
use std::time::Duration;

pub(crate) fn timeline(boot: &TimelineView) -> String {
    let mut out = fields([
        ("node", format!("{} ({})", boot.name, boot.node)),
        ("boot session", boot.session.to_string()),
        ("mac", boot.mac.to_string()),
        ("address", boot.address.map(|address| address.to_string()).unwrap_or_default()),
        ("result", boot.result.as_str().to_owned()),
        ("took", span(Duration::from_millis(boot.total_ms))),
    ]);
    out += &format!("\n{}", stages(boot));
    for stall in &boot.stalls {
        let until = stall
            .ended
            .map_or_else(|| "and still stalled".to_owned(), |ended| format!("until {ended}"));
        out += &format!("\nstalled from {} {until}: {} is missing\n", stall.since, stall.missing);
        out += &wrapped(&stall.cause, 2);
    }
    for wait in &boot.waits {
        if let Some(detail) = &wait.detail {
            out += &format!("\nrefused from {} ({}):\n{}", wait.at, wait.code, wrapped(detail, 2));
        }
    }
    out += &failure(boot);
    if !boot.tasks.is_empty() {
        out += &format!("\n{}", tasks(boot));
    }
    if boot.boots.len() > 1 {
        out += &format!("\n{}", boots(boot));
    }
    out
}

/// Returns a table of stages and waits, sorted by start time.
fn stages(boot: &TimelineView) -> String {
    let millis = Duration::from_millis;
    let stage = boot.stages.iter().map(|stage| {
        let times = if stage.count > 1 { stage.count.to_string() } else { String::new() };
        let took = span(millis(stage.duration_ms));
        (
            stage.at,
            [
                stage.stage.clone(),
                stage.at.to_string(),
                took,
                span(millis(stage.elapsed_ms)),
                times,
            ],
        )
    });
    let wait = boot
        .waits
        .iter()
        .filter(|wait| wait.code != Wait::APPROVAL)
        .map(|wait| (wait.at, wait_row(wait, boot)));
    let mut rows: Vec<(Timestamp, [String; 5])> = stage.chain(wait).collect();
    rows.sort_by_key(|(at, _)| *at);
    table(["stage", "at", "took", "total", "count"], rows.into_iter().map(|(_, row)| row))
}

/// Returns the table row of a wait, with its duration.
fn wait_row(wait: &Wait, boot: &TimelineView) -> [String; 5] {
    let what = format!("(wait: {})", wait.code);
    let took = span(boot.wait_end(wait).since(wait.at));
    [what, wait.at.to_string(), took, span(wait.at.since(boot.opened_at)), String::new()]
}

/// Returns the failure reason of this boot, or that of the previous boot while this boot is not
/// online.
fn failure(boot: &TimelineView) -> String {
    let (what, reason) = match boot.last_failure() {
        Some((summary, reason)) if summary.session == boot.session => ("failed", reason),
        Some((_, reason)) => ("the boot before failed", reason),
        None => return String::new(),
    };
    format!("\n{what}:\n{}", wrapped(reason, 2))
}

/// Returns a table of the tasks in this boot session.
fn tasks(boot: &TimelineView) -> String {
    let duration = |millis: Option<u64>| {
        millis.map(|millis| span(Duration::from_millis(millis))).unwrap_or_default()
    };
    let rows = boot.tasks.iter().map(|task| {
        let program = task.argv.join(" ").chars().take(40).collect();
        let at = task.created_at.to_string();
        let state = task.state.as_str().to_owned();
        [task.id.to_string(), at, duration(task.start_ms), duration(task.run_ms), state, program]
    });
    table(["task", "at", "start", "ran", "state", "program"], rows)
}

fn boots(boot: &TimelineView) -> String {
    let rows = boot.boots.iter().map(|other| {
        let here = if other.session == boot.session { "*" } else { "" };
        [
            format!("{}{here}", other.session),
            other.opened_at.to_string(),
            other.result.as_str().to_owned(),
            other.stage.map(|stage| stage.to_string()).unwrap_or_default(),
            span(Duration::from_millis(other.total_ms)),
        ]
    });
    table(["boot session", "began", "result", "stage", "took"], rows)
}
