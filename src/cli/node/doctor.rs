//! `meshd node doctor`: runs the readiness checks of a node and prints the results.

use crate::cli::{
    Failure,
    client::AdminClient,
    output::print::{ago, now, write},
};
use clap::{Args, ValueEnum};
use meshd_api::routes as api;
use meshd_proto::DoctorReport;

#[derive(Debug, Args)]
pub(crate) struct NodeDoctor {
    /// Node ID or name
    node: String,
    /// Output format
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: DoctorFormat,
    /// Print JSON, as -o json does
    #[arg(long, conflicts_with = "output")]
    json: bool,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
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

impl NodeDoctor {
    /// Exit code 1 where a check fails, and where the node did not answer.
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let view = match client.post(api::RUN_NODE_CHECKS.path([&self.node]), &()).await {
            Ok(view) => view,
            Err(failure) => {
                self.last_known(client).await;
                return Err(failure);
            }
        };
        let report = &view.report;
        let odd = |error: &dyn std::error::Error| Failure::of(error);
        write(&match if self.json { DoctorFormat::Json } else { self.output } {
            DoctorFormat::Table => report.text(),
            DoctorFormat::Lines => report.lines(),
            DoctorFormat::Json => serde_json::to_string_pretty(&view).map_err(|error| odd(&error))? + "\n",
            DoctorFormat::Yaml => serde_norway::to_string(&view).map_err(|error| odd(&error))?,
        })?;
        match report.failures {
            0 => Ok(()),
            count => {
                let hint = format!("each check says what to do; `meshd node show {}` shows the machine", view.node);
                Err(Failure::new(format!("{count} of {} checks fail", report.checks.len()), hint))
            }
        }
    }

    /// To standard error: it is no answer to what was asked.
    async fn last_known(&self, client: &AdminClient) {
        let Ok(detail) = client.get(api::GET_NODE.path([&self.node])).await else { return };
        let Some(evidence) = detail.evidence else { return };
        let which = if detail.checks_count { "of this boot" } else { "of an earlier boot, which proves nothing now" };
        let units = detail.facts.as_ref().map(|facts| facts.units.as_slice()).unwrap_or_default();
        let report = DoctorReport::new(evidence.at, Some(evidence.session), detail.checks, units);
        eprint!("last known checks, {}, {which}:\n{}", ago(evidence.at, now()), report.text());
    }
}
