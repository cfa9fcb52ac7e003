//! `meshd node doctor`: runs the readiness checks of a node and prints the results.

use super::{
    details::warm_result,
    targets::{NodeSelection, SeveralNodes, Targets, bulk},
};
use crate::cli::{
    Failure,
    client::AdminClient,
    output::{
        print::{ago, clean, json, now, wrapped, write, yaml},
        writer::write_message,
    },
};
use clap::{Args, ValueEnum};
use meshd_api::{DoctorView, WarmRebootView, routes as api};
use meshd_proto::DoctorReport;
use meshd_types::Timestamp;
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct NodeDoctor {
    #[command(flatten)]
    targets: Targets,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: DoctorFormat,
    /// Print JSON, as -o json does
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum DoctorFormat {
    /// For people; may change in any release
    #[default]
    Table,
    /// For programs
    Json,
    /// For programs and people
    Yaml,
    /// One MESH_CHECK line for each check, for scripts
    Lines,
}

impl DoctorFormat {
    /// Formats a value as YAML for [`DoctorFormat::Yaml`], else as JSON.
    fn document(self, value: &impl Serialize) -> Result<String, Failure> {
        match self {
            DoctorFormat::Yaml => yaml(value),
            _ => json(value),
        }
    }
}

impl NodeDoctor {
    /// Runs the checks. Fails with exit code 1 if a check fails or a node does not answer.
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let format = if self.json { DoctorFormat::Json } else { self.output };
        match self.targets.select(client).await? {
            NodeSelection::One(node) => check_node(client, &node, format).await,
            NodeSelection::Several(nodes) => check_nodes(client, &nodes, format).await,
            NodeSelection::Listed => Ok(()),
        }
    }
}

async fn check_node(client: &AdminClient, node: &str, format: DoctorFormat) -> Result<(), Failure> {
    let view = match client.post(api::RUN_NODE_CHECKS.path([&node]), &()).await {
        Ok(view) => view,
        Err(failure) => {
            last_known(client, node).await;
            return Err(failure);
        }
    };
    let report = &view.report;
    write(&match format {
        DoctorFormat::Table => {
            let warm = view.warm_reboot.as_ref().map(|reboot| cold_boot(reboot, now()));
            report.text() + &warm.unwrap_or_default()
        }
        DoctorFormat::Lines => report.lines(),
        DoctorFormat::Json | DoctorFormat::Yaml => format.document(&view)?,
    })?;
    match report.failures {
        0 => Ok(()),
        count => {
            let hint = format!(
                "each check says what to do; `meshd node show {}` shows the machine",
                view.node
            );
            Err(Failure::new(format!("{count} of {} checks fail", report.checks.len()), hint))
        }
    }
}

/// Returns why the node booted through its firmware, with the remedy.
fn cold_boot(reboot: &WarmRebootView, now: Timestamp) -> String {
    let remedy = reboot.cold.as_ref().map(|cold| wrapped(&format!("-> {}", cold.remedy), 6));
    let head = wrapped(&format!("warm reboot: {}", warm_result(reboot, now)), 0);
    format!("\n{head}{}", remedy.unwrap_or_default())
}

/// Prints reports to standard output, and nodes without a report to standard error.
async fn check_nodes(
    client: &AdminClient,
    several: &SeveralNodes,
    format: DoctorFormat,
) -> Result<(), Failure> {
    let nodes = &several.nodes;
    let absent = several.report_absent();
    let done = bulk(client, nodes, &api::RUN_NODES_CHECKS, &()).await?;
    let mut views = Vec::new();
    let mut text = String::new();
    let mut failing = absent;
    for result in done.results {
        let name =
            nodes.iter().find(|node| node.id == result.id).map_or("", |node| node.name.as_str());
        let Some(report) = result.report else {
            let error = result.error.map(|error| Failure::new(error.message, error.hint));
            message!(
                "{name} ({}): {}",
                result.id,
                error.map_or_else(|| "no report".to_owned(), |error| error.to_string())
            );
            failing += 1;
            continue;
        };
        failing += usize::from(report.failures > 0);
        let body = if format == DoctorFormat::Lines { report.lines() } else { report.text() };
        text += &format!("# {} ({})\n{body}", clean(name), result.id);
        views.push(DoctorView { node: result.id, report, warm_reboot: None });
    }
    write(&match format {
        DoctorFormat::Table | DoctorFormat::Lines => text,
        DoctorFormat::Json | DoctorFormat::Yaml => format.document(&views)?,
    })?;
    match failing {
        0 => Ok(()),
        count => {
            let message =
                format!("{count} of {} nodes fail a check or do not answer", nodes.len() + absent);
            Err(Failure::new(message, "see the checks of each node above"))
        }
    }
}

/// Prints the last checks of a node that does not answer to standard error.
async fn last_known(client: &AdminClient, node: &str) {
    let Ok(detail) = client.get(api::GET_NODE.path([&node])).await else { return };
    let Some(evidence) = detail.evidence else { return };
    let which =
        if detail.checks_count { "of this boot" } else { "of an earlier boot, no longer valid" };
    let units = detail.facts.as_ref().map(|facts| facts.units.as_slice()).unwrap_or_default();
    let report = DoctorReport::new(evidence.at, Some(evidence.session), detail.checks, units);
    write_message(&format!(
        "last known checks, {}, {which}:\n{}",
        ago(evidence.at, now()),
        report.text()
    ));
}
