//! `meshd events`: prints recorded events, and follows new ones with `--follow`.

use crate::cli::{
    Context, Failure,
    client::NodeNames,
    output::list::TimeFilter,
    output::print::{Output, clean, wrapped},
    wait,
};
use clap::Args;
use meshd_api::{EventView, routes as api};
use meshd_types::Timestamp;

/// Width of the column of nodes: a name that meshd chose, with the ID.
const NODE_WIDTH: usize = 24;

/// JSON is one object a line, with `kind`, `node` and `at`.
#[derive(Debug, Args)]
pub(crate) struct Events {
    /// Follow new events
    #[arg(long, short)]
    follow: bool,
    /// Show events of this node only
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Show these kinds only, separated by commas
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    kind: Vec<String>,
    /// Show at most N, the newest [default: 100, or by --since]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: Option<u16>,
    #[command(flatten)]
    time: TimeFilter,
    #[command(flatten)]
    output: Output,
}

impl Events {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let kinds = (!self.kind.is_empty()).then(|| self.kind.join(","));
        let time = self.time;
        let limit = time.limit(self.limit);
        let path = api::LIST_EVENTS.path([]).with("follow", self.follow).with("limit", limit);
        let path = path.with_optional("node", self.node).with_optional("kind", kinds);
        let client = context.client()?;
        let output = self.output;
        wait(async {
            let names = client.node_names_for(output).await;
            client
                .lines(path, |event, _| match time.includes(event.at) {
                    true => output.print_one(&event, |event| line(event, &names)),
                    false => Ok(()),
                })
                .await
        })?;
        if self.follow {
            return Err(Failure::new(
                "meshd ended the stream of events",
                "it is stopping; retry after its start",
            ));
        }
        Ok(())
    }
}

/// Formats the number of occurrences and the time of the first one.
pub(crate) fn times(count: u32, first: Option<Timestamp>) -> String {
    first.map_or_else(
        || format!("({count} times)"),
        |first| format!("({count} times since {first})"),
    )
}

fn line(event: &EventView, names: &NodeNames) -> String {
    let node = event.node.map_or_else(|| "-".to_owned(), |node| names.label(node));
    let more = match (event.stage, event.from.zip(event.to), event.condition) {
        (Some(stage), ..) => stage.as_str().to_owned(),
        (_, Some((from, to)), _) => format!("{from} -> {to}"),
        // A raised condition is already named by the kind.
        (.., Some(condition)) if event.kind != condition.as_str() => condition.as_str().to_owned(),
        _ => String::new(),
    };
    // The detail of a change of phase or stage may repeat it.
    let detail = if event.detail == more { String::new() } else { clean(&event.detail) };
    let by = event.by.as_ref().map(|by| match &by.reason {
        Some(reason) => format!("({}: {})", by.principal, clean(reason)),
        None => format!("({})", by.principal),
    });
    let times = event.count.map(|count| times(count, event.first_at));
    let more = [more, detail, by.unwrap_or_default(), times.unwrap_or_default()]
        .into_iter()
        .filter(|text| !text.is_empty())
        .collect::<Vec<_>>()
        .join("  ");
    let head = format!("{}  {node:<NODE_WIDTH$}  {:<20}", event.at, event.kind);
    match wrapped(&more, 4) {
        // A detail that needs several lines starts below the event.
        long if long.lines().count() > 1 => format!("{}\n{}", head.trim_end(), long.trim_end()),
        _ => format!("{head} {more}").trim_end().to_owned(),
    }
}
