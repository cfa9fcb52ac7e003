//! `meshd node list`: nodes as a table, once or at each change.

use super::{generations, stage, text};
use crate::cli::{
    Failure,
    client::{AdminClient, segment},
    output::print::{Format, Output, ago, now, table, write},
};
use crate::serve::admin::view::NodeView;
use clap::Args;
use meshd_model::fleet::{Selector, label_words};
use meshd_types::Timestamp;
use std::{io::IsTerminal as _, time::Duration};

/// Time between two questions of `--watch`.
const WATCH_INTERVAL: Duration = Duration::from_secs(2);
/// Clears a terminal and begins at its first line.
const CLEAR: &str = "\u{1b}[H\u{1b}[2J";

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Include removed nodes
    #[arg(long)]
    removed: bool,
    /// Add a column with the labels
    #[arg(long)]
    labels: bool,
    /// Select nodes by labels, such as rack=a,feed!=2
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
    /// Print the list again at each change, until interrupted
    #[arg(long)]
    watch: bool,
    #[command(flatten)]
    output: Output,
}

impl List {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let path = listing(self.removed, self.selector.as_ref());
        let mut last: Option<Vec<NodeView>> = None;
        loop {
            let nodes: Vec<NodeView> = client.get(&path).await?;
            if last.as_ref() != Some(&nodes) {
                self.print(&nodes)?;
            }
            if !self.watch {
                return Ok(());
            }
            last = Some(nodes);
            tokio::time::sleep(WATCH_INTERVAL).await;
        }
    }

    fn print(&self, nodes: &Vec<NodeView>) -> Result<(), Failure> {
        if self.watch && self.output.format() == Format::Table && std::io::stdout().is_terminal() {
            write(CLEAR)?;
        }
        match &self.selector {
            Some(selector) if nodes.is_empty() => eprintln!("no node matches the selector `{selector}`"),
            None if nodes.is_empty() => eprintln!("no machine has been seen yet: power one on"),
            _ => {}
        }
        self.output.print(nodes, |nodes| list(nodes, now(), self.labels))
    }
}

fn listing(removed: bool, selector: Option<&Selector>) -> String {
    let label = selector.map(|selector| format!("&label={}", segment(&selector.to_string())));
    format!("/v1/nodes?removed={removed}{}", label.unwrap_or_default())
}

fn conditions(node: &NodeView) -> String {
    node.conditions.iter().map(|condition| condition.kind.as_str()).collect::<Vec<_>>().join(" ")
}

pub(crate) fn list(nodes: &[NodeView], now: Timestamp, with_labels: bool) -> String {
    let rows = nodes.iter().map(|node| {
        [
            node.id.to_string(),
            node.name.clone(),
            node.profile.to_string(),
            node.phase.to_string(),
            conditions(node),
            text(node.address),
            node.mac.to_string(),
            text(node.generation.map(|generation| generation.0.short())),
            generations::held(node.pinned, node.rolled_back).unwrap_or_default(),
            stage(node),
            ago(node.last_seen, now),
        ]
    });
    let labels = nodes.iter().map(|node| label_words(&node.labels));
    let head =
        ["id", "name", "profile", "phase", "conditions", "address", "mac", "generation", "held", "stage", "seen"];
    if with_labels {
        let [a, b, c, d, e, f, g, h, i, j, k] = head;
        let rows = rows.zip(labels).map(|([a, b, c, d, e, f, g, h, i, j, k], l)| [a, b, c, d, e, f, g, h, i, j, k, l]);
        return table([a, b, c, d, e, f, g, h, i, j, k, "labels"], rows);
    }
    table(head, rows)
}
