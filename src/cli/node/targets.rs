//! The nodes of a command: names and beginnings of names, several of them, or a selector.

use super::path;
use crate::cli::{Failure, client::AdminClient, output::print::confirm};
use clap::{Args, CommandFactory as _, error::ErrorKind};
use meshd_api::segment;
use meshd_api::{BulkDone, BulkRequest, BulkTarget, NodeView};
use meshd_model::fleet::{NamedNode, Phase, Selector, find_node};
use serde::Serialize;

/// Nodes that a command changes.
#[derive(Debug, Args)]
pub(crate) struct Targets {
    /// Node IDs, names or unique beginnings
    #[arg(value_name = "NODE", required_unless_present = "selector", conflicts_with = "selector")]
    nodes: Vec<String>,
    #[command(flatten)]
    pick: Pick,
}

/// A selector in place of names, and a preview.
#[derive(Debug, Args)]
pub(crate) struct Pick {
    /// Select nodes by labels, such as rack=a,feed!=2
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
    /// List the nodes and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// What a command changes.
pub(crate) enum Picked {
    /// One node, as it was typed.
    One(String),
    /// Several nodes as they are now.
    Several(Vec<NodeView>),
    /// Nothing: they were listed only.
    Listed,
}

impl Targets {
    pub(crate) async fn pick(self, client: &AdminClient) -> Result<Picked, Failure> {
        self.pick.pick(client, &self.nodes).await
    }
}

impl Pick {
    pub(crate) fn has_selector(&self) -> bool {
        self.selector.is_some()
    }

    /// The nodes of a command. A preview lists them.
    pub(crate) async fn pick(self, client: &AdminClient, words: &[String]) -> Result<Picked, Failure> {
        let nodes = match (&self.selector, words) {
            (Some(_), [_, ..]) => {
                return Err(Failure::new("nodes and a selector are named", "name nodes, or give --selector"));
            }
            (None, []) => return Err(Failure::new("no node is named", "name nodes, or give --selector")),
            (None, [one]) if !self.dry_run => return Ok(Picked::One(one.clone())),
            (None, words) => named(client, words).await?,
            (Some(selector), []) => selected(client, selector).await?,
        };
        if !self.dry_run {
            return Ok(Picked::Several(nodes));
        }
        eprintln!("{} would be changed:", count(nodes.len()));
        nodes.iter().for_each(|node| eprintln!("  {}", of(node)));
        Ok(Picked::Listed)
    }
}

async fn selected(client: &AdminClient, selector: &Selector) -> Result<Vec<NodeView>, Failure> {
    let path = format!("/v1/nodes?label={}", segment(&selector.to_string()));
    let nodes: Vec<NodeView> = client.get(&path).await?;
    if nodes.is_empty() {
        let message = format!("no node matches the selector `{selector}`");
        return Err(Failure::new(message, "list the labels with `meshd node list --labels`"));
    }
    Ok(nodes)
}

/// Each node once, in the order in which they were named.
async fn named(client: &AdminClient, words: &[String]) -> Result<Vec<NodeView>, Failure> {
    let all: Vec<NodeView> = client.get("/v1/nodes?removed=true").await?;
    let mut found: Vec<NodeView> = Vec::with_capacity(words.len());
    for word in words {
        let nodes = all.iter().map(|node| (node.id, node.name.as_str(), node.phase != Phase::Removed));
        let id = match find_node(word, nodes) {
            NamedNode::One(id) => id,
            NamedNode::None => {
                let message = format!("there is no node `{word}`");
                return Err(Failure::new(message, "`meshd node list` shows those that there are"));
            }
            NamedNode::Several(candidates, count) => {
                let message = format!("`{word}` is ambiguous, {count} nodes match: {}", candidates.join(", "));
                return Err(Failure::new(message, "write more of the name, or use the node ID"));
            }
        };
        if !found.iter().any(|node| node.id == id) {
            found.extend(all.iter().find(|node| node.id == id).cloned());
        }
    }
    Ok(found)
}

/// A node in a question.
pub(crate) fn of(node: &NodeView) -> String {
    format!("{} ({}, {})", node.id, node.name, node.phase)
}

fn count(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}

/// Asks before something ends. `what` follows the node, or the number of nodes.
pub(crate) async fn ask(client: &AdminClient, picked: &Picked, what: &str) -> Result<(), Failure> {
    match picked {
        Picked::One(name) => {
            let detail = client.get::<meshd_api::NodeDetail>(&path(name, "")).await?;
            confirm(&format!("{} {what}", of(&detail.node)))
        }
        Picked::Several(nodes) => {
            let list: Vec<String> = nodes.iter().map(of).collect();
            confirm(&format!("{}\n{}: each {what}", list.join("\n"), count(nodes.len())))
        }
        Picked::Listed => Ok(()),
    }
}

/// Gives an order: to one node by its own route, to several as they were seen. `said` is what it says of a node afterwards. Returns the
/// nodes that were changed, for a second order.
pub(crate) async fn order(
    client: &AdminClient,
    picked: Picked,
    verb: &str,
    body: &impl Serialize,
    said: impl Fn(&NodeView) -> String,
) -> Result<Picked, Failure> {
    let nodes = match picked {
        Picked::One(name) => {
            let node: NodeView = client.post(&path(&name, &format!("/{verb}")), body).await?;
            eprintln!("{}", said(&node));
            return Ok(Picked::One(node.id.to_string()));
        }
        Picked::Several(nodes) => nodes,
        Picked::Listed => return Ok(Picked::Listed),
    };
    let done = bulk(client, &nodes, verb, body).await?;
    for result in &done.results {
        match (&result.node, &result.error) {
            (Some(node), _) => eprintln!("{}", said(node)),
            (None, Some(error)) => eprintln!("{}: {}", result.id, Failure::new(&error.message, &error.hint)),
            (None, None) => eprintln!("{}: done", result.id),
        }
    }
    match done.failed {
        0 => Ok(Picked::Several(done.results.into_iter().filter_map(|result| result.node).collect())),
        failed => {
            let message = format!("{verb}: {failed} of {} failed", count(done.results.len()));
            Err(Failure::new(message, "see the error of each node above; the others are changed"))
        }
    }
}

/// Gives an order to several nodes as they were seen.
pub(crate) async fn bulk(
    client: &AdminClient,
    nodes: &[NodeView],
    verb: &str,
    body: &impl Serialize,
) -> Result<BulkDone, Failure> {
    let order = serde_json::to_value(body).map_err(|error| Failure::of(&error))?;
    let targets = nodes.iter().map(|node| BulkTarget { id: node.id, revision: node.revision.clone() }).collect();
    client.post(&format!("/v1/bulk/nodes/{verb}"), &BulkRequest { nodes: targets, order }).await
}

/// Ends the program as clap does when the command line lacks something.
pub(crate) fn missing(what: &str) -> ! {
    crate::cli::Cli::command().error(ErrorKind::MissingRequiredArgument, format!("{what} is missing")).exit()
}
