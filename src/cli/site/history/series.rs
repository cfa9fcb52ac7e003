//! `meshd series`: time series of the site and its nodes.

use crate::cli::{
    Context, Failure,
    output::list::{ListOutput, parse_time},
    output::print::{ago, now, table},
    wait,
};
use clap::Subcommand;
use meshd_api::{SeriesPointsView, SeriesView, routes as api};
use meshd_config::{parse_duration, suggest};
use meshd_model::series::NodeSeries;
use meshd_types::Timestamp;
use std::time::Duration;

/// Show how counts and times changed within 90 days
#[derive(Debug, Subcommand)]
pub(crate) enum SeriesCommand {
    /// List the series with their newest values
    List {
        /// List those of a node, of the last hour
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        #[command(flatten)]
        output: ListOutput,
    },
    /// Print the values of a series
    Show {
        /// Name of the series, such as nodes_online
        name: String,
        /// Show the series of a node, such as cpu
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
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
            SeriesCommand::List { node: Some(node), output } => {
                let hour = now().before(Duration::from_secs(3600));
                let path = api::LIST_NODE_SERIES.path([&node]).with("from", hour);
                let series = wait(client.get(path))?;
                output.print(&series, |series| node_list(series))
            }
            SeriesCommand::List { node: None, output } => {
                let series = wait(client.get(api::LIST_SERIES.path([])))?;
                output.print(&series, |series| list(series))
            }
            SeriesCommand::Show { name, node: Some(node), since, until, step, output } => {
                let path = api::LIST_NODE_SERIES.path([&node]).with_optional("from", since);
                let path = path.with_optional("to", until).with_optional("step", step);
                let all = wait(client.get(path))?;
                let known = all.iter().map(|series| series.name.as_str());
                let Some(series) = all.iter().find(|series| series.name == name) else {
                    let message = format!("a node has no time series `{name}`");
                    return Err(Failure::new(message, suggest(&name, known)));
                };
                output.print(series, points)
            }
            SeriesCommand::Show { name, node: None, since, until, step, output } => {
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

fn node_list(all: &[SeriesPointsView]) -> String {
    let rows = all.iter().map(|series| {
        let newest = series.points.last();
        let about = NodeSeries::ALL.into_iter().find(|known| known.as_str() == series.name);
        [
            series.name.clone(),
            newest.map(|point| number(point.value)).unwrap_or_default(),
            series.unit.clone(),
            newest.map(|point| ago(point.at, now())).unwrap_or_default(),
            about.map(|series| series.meaning().to_owned()).unwrap_or_default(),
        ]
    });
    table(["name", "newest", "unit", "at", "about"], rows)
}

fn points(series: &SeriesPointsView) -> String {
    let rows = series.points.iter().map(|point| [point.at.to_string(), number(point.value)]);
    table(["at", series.unit.as_str()], rows)
}
