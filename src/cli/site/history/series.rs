//! `meshd series`: time series of the site.

use crate::cli::{
    Context, Failure,
    output::list::{ListOutput, parse_time},
    output::print::{ago, now, table},
    wait,
};
use clap::Subcommand;
use meshd_api::{SeriesPointsView, SeriesView, routes as api};
use meshd_config::parse_duration;
use meshd_types::Timestamp;

/// Show how counts and times changed over 90 days
#[derive(Debug, Subcommand)]
pub(crate) enum SeriesCommand {
    /// List the series with their newest values
    List {
        #[command(flatten)]
        output: ListOutput,
    },
    /// Print the values of a series
    Show {
        /// Name of the series, such as nodes_online
        name: String,
        /// Begin: 2h, or 2026-01-31T12:00:00Z [default: 1 day ago]
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        since: Option<Timestamp>,
        /// End [default: now]
        #[arg(long, value_name = "TIME", value_parser = parse_time)]
        until: Option<Timestamp>,
        /// Interval of a value, such as 10m [default: 1m or 1h]
        #[arg(long, value_name = "SPAN", value_parser = step)]
        step: Option<u64>,
        #[command(flatten)]
        output: ListOutput,
    },
}

fn step(text: &str) -> Result<u64, String> {
    parse_duration(text)
        .map(|span| span.as_secs())
        .ok_or_else(|| "write a number and one of s, m, h, d, such as 10m".to_owned())
}

impl SeriesCommand {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        match self {
            SeriesCommand::List { output } => {
                let series = wait(client.get(api::LIST_SERIES.path([])))?;
                output.print(&series, |series| list(series))
            }
            SeriesCommand::Show { name, since, until, step, output } => {
                let path = api::GET_SERIES.path([&name]).with_optional("from", since);
                let path = path.with_optional("to", until).with_optional("step", step);
                output.print(&wait(client.get(path))?, points)
            }
        }
    }
}

fn number(value: f64) -> String {
    format!("{}", (value * 1000.0).round() / 1000.0)
}

fn list(series: &[SeriesView]) -> String {
    let rows = series.iter().map(|series| {
        [
            series.name.clone(),
            series.newest.map(number).unwrap_or_default(),
            series.unit.clone(),
            series.at.map(|at| ago(at, now())).unwrap_or_default(),
            series.about.clone(),
        ]
    });
    table(["name", "newest", "unit", "at", "about"], rows)
}

fn points(series: &SeriesPointsView) -> String {
    let rows = series.points.iter().map(|point| [point.at.to_string(), number(point.value)]);
    table(["at", series.unit.as_str()], rows)
}
