//! `meshd status`: prints the state of the site.

use crate::cli::{
    Context, Failure,
    output::print::{Output, clean, fields, wrapped},
    wait,
};
use clap::Args;
use meshd_api::{Finding, StatusView, routes as api};
use std::collections::BTreeMap;

/// Exit code 1 when machines cannot boot; warnings are no failure.
#[derive(Debug, Args)]
pub(crate) struct StatusCommand {
    #[command(flatten)]
    output: Output,
}

impl StatusCommand {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let mut status = wait(context.client()?.get(api::GET_STATUS.path([])))?;
        status.warnings.extend(context.next_reload());
        self.output.print(&status, render)?;
        if status.ready {
            return Ok(());
        }
        Err(Failure::new(
            "machines cannot boot",
            "follow the hint below each error; `meshd doctor` runs more checks",
        ))
    }
}

pub(crate) fn render(status: &StatusView) -> String {
    let counts = |of: &BTreeMap<String, usize>| {
        of.iter().map(|(word, count)| format!("{count} {word}")).collect::<Vec<_>>().join(", ")
    };
    let units = match status.units.total {
        0 => String::new(),
        total => format!("{}/{total} ready", status.units.ready),
    };
    let nodes = if status.nodes == 0 {
        "none".to_owned()
    } else {
        format!("{}: {}", status.nodes, counts(&status.phases))
    };
    let attention = match status.attention {
        0 => String::new(),
        1 => "1 node: meshd node list --attention".to_owned(),
        many => format!("{many} nodes: meshd node list --attention"),
    };
    let head = fields([
        ("site", status.site.clone()),
        ("meshd", format!("{}, process {}", status.version, status.pid)),
        (
            "https",
            status
                .https_fingerprint
                .as_ref()
                .map(|sha256| format!("SHA-256 {sha256}"))
                .unwrap_or_default(),
        ),
        ("ready", if status.ready { "yes" } else { "no" }.to_owned()),
        ("nodes", nodes),
        ("attention", attention),
        ("conditions", counts(&status.conditions)),
        ("units", units),
    ]);
    let list = |word, findings: &[Finding]| -> String {
        let line = |finding: &Finding| {
            let next = if finding.next.is_empty() {
                String::new()
            } else {
                wrapped(&format!("-> {}", finding.next), 4)
            };
            format!("{word}  {}: {}\n{next}", finding.check, clean(&finding.found))
        };
        findings.iter().map(line).collect()
    };
    format!("{head}{}{}", list("warning", &status.warnings), list("error", &status.errors))
}
