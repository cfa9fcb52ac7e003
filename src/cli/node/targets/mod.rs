//! Target nodes of a command: IDs, names, unique prefixes, hostlists or a label selector.
//!
//! | module | content |
//! | --- | --- |
//! | here | arguments, confirmation, and orders to the targets |
//! | `found` | nodes that names or a selector select |

mod found;

pub(crate) use found::SeveralNodes;

use crate::cli::{
    Failure,
    client::AdminClient,
    node::operation::{FollowUntil, follow_operation},
    output::print::{Output, clean, confirm, confirm_number},
};
use clap::{Args, Command, CommandFactory as _, error::ErrorKind};
use found::{find_named, find_present, find_selected, partly_failed};
use meshd_api::{BulkDone, BulkRequest, BulkTarget, NodeView, routes as api};
use meshd_model::fleet::{Selector, Verb};
use meshd_types::{Hostlist, NodeId, ParseError};
use serde::{Serialize, de::DeserializeOwned};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes that a command changes.
#[derive(Debug, Args)]
pub(crate) struct Targets {
    /// Node IDs, names, beginnings, or hostlists: gpu[01-40],n*
    #[arg(value_name = "NODE", required_unless_present = "selector", conflicts_with = "selector")]
    nodes: Vec<Hostlist>,
    #[command(flatten)]
    selector: SelectorArgs,
}

/// A selector in place of names, and a preview.
#[derive(Debug, Args)]
pub(crate) struct SelectorArgs {
    /// Select nodes by labels, such as rack=a,feed!=2
    #[arg(short = 'l', long, value_name = "SELECTOR")]
    selector: Option<Selector>,
    /// List the nodes and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Nodes as named, for a request whose nodes the server selects.
pub(crate) struct NamedTargets {
    pub(crate) hostlist: Option<Hostlist>,
    pub(crate) selector: Option<Selector>,
    /// The nodes are listed, and nothing is changed.
    pub(crate) dry_run: bool,
}

/// Selected nodes of a command.
pub(crate) enum NodeSelection {
    /// One node, as given in the argument.
    One(String),
    /// Several nodes, each in the revision that was read.
    Several(SeveralNodes),
    /// No node: `--dry-run` only lists the selected nodes.
    Listed,
}

impl NodeSelection {
    /// Returns an error if some machines are absent, after an order to the nodes.
    pub(crate) fn fail_if_absent(&self, verb: Verb) -> Result<(), Failure> {
        match self {
            NodeSelection::Several(several) => several.fail_if_absent(verb, Ok(())),
            NodeSelection::One(_) | NodeSelection::Listed => Ok(()),
        }
    }
}

impl Targets {
    /// Returns the names, for an order to something other than nodes.
    pub(crate) fn names(&self) -> Result<Hostlist, Failure> {
        joined(&self.nodes)
    }

    /// Returns the names if they are all that selects nodes, and the nodes are not only listed.
    pub(crate) fn plain_names(&self) -> Option<Result<Hostlist, Failure>> {
        let is_plain = self.selector.selector.is_none() && !self.selector.dry_run;
        is_plain.then(|| self.names())
    }

    pub(crate) async fn select(self, client: &AdminClient) -> Result<NodeSelection, Failure> {
        self.selector.select(client, &self.nodes).await
    }

    pub(crate) fn into_names(self) -> Result<NamedTargets, Failure> {
        let SelectorArgs { selector, dry_run } = self.selector;
        let hostlist = if self.nodes.is_empty() { None } else { Some(joined(&self.nodes)?) };
        Ok(NamedTargets { hostlist, selector, dry_run })
    }
}

impl SelectorArgs {
    pub(crate) fn has_selector(&self) -> bool {
        self.selector.is_some()
    }

    /// Selects the nodes of a command. With `--dry-run`, prints the nodes.
    pub(crate) async fn select(
        self,
        client: &AdminClient,
        names: &[Hostlist],
    ) -> Result<NodeSelection, Failure> {
        let nodes = match (&self.selector, names) {
            (Some(_), [_, ..]) => {
                return Err(Failure::new(
                    "nodes and a selector are named",
                    "name nodes, or use --selector",
                ));
            }
            (None, []) => {
                return Err(Failure::new("no node is named", "name nodes, or use --selector"));
            }
            (None, names) => match single_word(names) {
                Some(word) if !self.dry_run => return Ok(NodeSelection::One(word.to_owned())),
                _ => find_present(client, names).await?,
            },
            (Some(selector), []) => find_selected(client, selector).await?.into(),
        };
        if !self.dry_run {
            return Ok(NodeSelection::Several(nodes.or_absent()?));
        }
        message!("{} would be changed:", count_text(nodes.nodes.len()));
        nodes.nodes.iter().for_each(|node| message!("  {}", node_text(node)));
        nodes.report_absent();
        Ok(NodeSelection::Listed)
    }
}

/// Returns the word if the names are only one, without brackets and wildcards. The server finds
/// its node.
fn single_word(names: &[Hostlist]) -> Option<&str> {
    match names {
        [one] => one.as_word(),
        _ => None,
    }
}

/// Joins the hostlists of a command line.
pub(crate) fn joined(names: &[Hostlist]) -> Result<Hostlist, Failure> {
    Hostlist::join(names).map_err(|error| Failure::of(&error))
}

/// Nodes whose data a command prints, or that it changes one after another.
#[derive(Debug, Args)]
pub(crate) struct NamedNodes {
    /// Node IDs, names or hostlists, such as gpu[01-40]
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<Hostlist>,
}

/// A node in the path of a request, and its title for people.
pub(crate) struct NodePath {
    pub(crate) path: String,
    pub(crate) title: String,
}

impl NamedNodes {
    /// Returns the nodes in the order of their names. The server finds a single word.
    pub(crate) async fn paths(&self, client: &AdminClient) -> Result<Vec<NodePath>, Failure> {
        if let Some(word) = single_word(&self.nodes) {
            return Ok(vec![NodePath { path: word.to_owned(), title: word.to_owned() }]);
        }
        let path = |node: NodeView| {
            let title = format!("{} ({})", node.name, node.id);
            NodePath { path: node.id.to_string(), title }
        };
        Ok(find_named(client, &self.nodes).await?.into_iter().map(path).collect())
    }

    /// Prints a value of each node: of a single word the value alone, else a map by node ID.
    pub(crate) async fn print<T: Serialize>(
        &self,
        client: &AdminClient,
        output: Output,
        get: impl AsyncFn(&str) -> Result<T, Failure>,
        text: impl Fn(&T) -> String,
    ) -> Result<(), Failure> {
        if let Some(word) = single_word(&self.nodes) {
            return output.print(&get(word).await?, text);
        }
        let mut values = BTreeMap::new();
        let mut texts = Vec::new();
        for NodePath { path, title } in self.paths(client).await? {
            let value = get(&path).await?;
            texts.push(format!("# {}\n{}", clean(&title), text(&value)));
            values.insert(path, value);
        }
        output.print(&values, |_| texts.join("\n"))
    }
}

/// Returns the path of the only node of a hostlist, for a command that takes one node.
pub(crate) async fn one_node(client: &AdminClient, node: &Hostlist) -> Result<String, Failure> {
    if let Some(word) = node.as_word() {
        return Ok(word.to_owned());
    }
    match find_named(client, std::slice::from_ref(node)).await?.as_slice() {
        [node] => Ok(node.id.to_string()),
        nodes => Err(Failure::new(
            format!("`{node}` names {} nodes", nodes.len()),
            "name one node: this command changes what belongs to one",
        )),
    }
}

/// Parses the words that name nodes. Ends the program with a usage error for a malformed one.
pub(crate) fn hostlists(words: &[String]) -> Vec<Hostlist> {
    let parse = |word: &String| {
        word.parse().unwrap_or_else(|error: ParseError| {
            usage_error(ErrorKind::ValueValidation, &error.to_string())
        })
    };
    words.iter().map(parse).collect()
}

pub(crate) fn node_text(node: &NodeView) -> String {
    format!("{} ({}, {})", node.name, node.id, node.phase)
}

pub(crate) fn count_text(nodes: usize) -> String {
    if nodes == 1 { "1 node".to_owned() } else { format!("{nodes} nodes") }
}

/// Asks for confirmation. The text `consequence` follows the node name or the number of nodes.
pub(crate) async fn confirm_nodes(
    client: &AdminClient,
    selection: &NodeSelection,
    consequence: &str,
) -> Result<(), Failure> {
    let nodes = match selection {
        NodeSelection::One(name) => vec![client.get(api::GET_NODE.path([name])).await?.node],
        NodeSelection::Several(several) => several.nodes.clone(),
        NodeSelection::Listed => return Ok(()),
    };
    confirm_change(&nodes, &workloads(client).await?, consequence)
}

/// Asks for confirmation before an order that ends the work of nodes. A single node without work
/// needs none: the command names it, and nothing is lost.
pub(crate) async fn confirm_interruption(
    client: &AdminClient,
    selection: &NodeSelection,
    consequence: &str,
) -> Result<(), Failure> {
    let (nodes, is_named) = match selection {
        NodeSelection::One(name) => {
            (vec![client.get(api::GET_NODE.path([name])).await?.node], true)
        }
        NodeSelection::Several(several) => (several.nodes.clone(), false),
        NodeSelection::Listed => return Ok(()),
    };
    let work = workloads(client).await?;
    if is_named && nodes.iter().all(|node| !work.contains_key(&node.id)) {
        return Ok(());
    }
    confirm_change(&nodes, &work, consequence)
}

/// Asks for confirmation with each node and its work: for one node yes or no, for several nodes
/// their number.
fn confirm_change(nodes: &[NodeView], work: &Workloads, consequence: &str) -> Result<(), Failure> {
    let lines = nodes.iter().flat_map(|node| {
        let work = work.get(&node.id).into_iter().flatten();
        std::iter::once(node_text(node)).chain(work.map(|work| format!("  {work}")))
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    match nodes {
        [node] if !lines.contains('\n') => confirm(&format!("{} {consequence}", node_text(node))),
        [_] => confirm(&format!("{lines}\n1 node: it {consequence}")),
        nodes => confirm_number(
            &format!("{lines}\n{}: each {consequence}", count_text(nodes.len())),
            nodes.len(),
        ),
    }
}

/// VMs and tasks of each node, for operators.
type Workloads = BTreeMap<NodeId, Vec<String>>;

/// Returns the VMs with their disks, and the running tasks of all nodes.
async fn workloads(client: &AdminClient) -> Result<Workloads, Failure> {
    let mut work = Workloads::new();
    for vm in client.get(api::LIST_VMS.path([])).await? {
        let disks = vm.wiped_disks();
        let disks = if disks.is_empty() {
            String::new()
        } else {
            format!(", with disks {}", disks.join(", "))
        };
        if let Some(node) = vm.node {
            work.entry(node).or_default().push(format!(
                "VM {} ({}){disks}",
                vm.name,
                vm.state.as_str()
            ));
        }
    }
    for task in client.get(api::LIST_TASKS.path([])).await? {
        for member in task.nodes.iter().filter(|member| member.claimed) {
            work.entry(member.node).or_default().push(format!(
                "task {} ({})",
                task.id,
                task.argv.join(" ")
            ));
        }
    }
    Ok(work)
}

/// Route of an order for one node, which returns the node.
pub(crate) type OrderRoute<B> = api::Post<B, api::Object<NodeView>, 1>;

/// Sends an order: for one node to its route, for several nodes to the bulk route. Prints `text`
/// for each changed node. Fails at the end if a machine has not booted.
pub(crate) async fn order<B, R>(
    client: &AdminClient,
    selection: NodeSelection,
    one: &api::Post<B, R, 1>,
    several: &api::BulkPost,
    body: &B::Value,
    text: impl Fn(&NodeView) -> String,
) -> Result<(), Failure>
where
    B: api::Json<Value: Serialize>,
    R: api::Json<Value: DeserializeOwned + Into<NodeView>>,
{
    let changed = first_order(client, selection, one, several, body, text).await?;
    changed.fail_if_absent(several.verb())
}

/// As [`order`]. Returns the changed nodes for a second order, with the machines that have not
/// booted: they do not keep the second order from the nodes.
pub(crate) async fn first_order<B, R>(
    client: &AdminClient,
    selection: NodeSelection,
    one: &api::Post<B, R, 1>,
    several: &api::BulkPost,
    body: &B::Value,
    text: impl Fn(&NodeView) -> String,
) -> Result<NodeSelection, Failure>
where
    B: api::Json<Value: Serialize>,
    R: api::Json<Value: DeserializeOwned + Into<NodeView>>,
{
    match selection {
        NodeSelection::One(name) => {
            let node: NodeView = client.post(one.path([&name]), body).await?.into();
            message!("{}", text(&node));
            Ok(NodeSelection::One(node.id.to_string()))
        }
        NodeSelection::Several(nodes) => order_several(client, nodes, several, body, text).await,
        NodeSelection::Listed => Ok(NodeSelection::Listed),
    }
}

/// Sends an order for several nodes. Prints `text` for each changed node, and the error for each
/// failed one. Returns the changed nodes, with the machines that have not booted.
pub(crate) async fn order_several(
    client: &AdminClient,
    several: SeveralNodes,
    route: &api::BulkPost,
    body: &impl Serialize,
    text: impl Fn(&NodeView) -> String,
) -> Result<NodeSelection, Failure> {
    let done = bulk(client, &several.nodes, route, body).await?;
    if let (false, Some(operation)) = (done.finished, done.operation) {
        message!("operation {operation}; to follow it later: meshd operation follow {operation}");
        follow_operation(client, operation, FollowUntil::Started).await?;
        // The order has changed the revisions.
        let ids: BTreeSet<_> = several.nodes.iter().map(|node| node.id).collect();
        let mut nodes: Vec<NodeView> = client.get(api::LIST_NODES.path([])).await?;
        nodes.retain(|node| ids.contains(&node.id));
        return Ok(NodeSelection::Several(SeveralNodes { nodes, absent: several.absent }));
    }
    for result in &done.results {
        match (&result.node, &result.error) {
            (Some(node), _) => message!("{}", text(node)),
            (None, Some(error)) => {
                message!("{}: {}", result.id, Failure::new(&error.message, &error.hint))
            }
            (None, None) => message!("{}: done", result.id),
        }
    }
    if done.failed > 0 {
        let absent = several.report_absent();
        let all = done.results.len() + absent;
        return Err(partly_failed(route.verb(), done.failed + absent, all));
    }
    let nodes = done.results.into_iter().filter_map(|result| result.node).collect();
    Ok(NodeSelection::Several(SeveralNodes { nodes, absent: several.absent }))
}

/// Sends an order for several nodes, each in the revision that was read. Prints nothing.
pub(crate) async fn bulk(
    client: &AdminClient,
    nodes: &[NodeView],
    route: &api::BulkPost,
    body: &impl Serialize,
) -> Result<BulkDone, Failure> {
    let order = serde_json::to_value(body).map_err(|error| Failure::without_hint(&error))?;
    let targets = nodes
        .iter()
        .map(|node| BulkTarget { id: node.id, revision: Some(node.revision.clone()) })
        .collect();
    client.post(route.path([]), &BulkRequest::of_nodes(targets, order)).await
}

/// Ends the program with clap's error for a missing argument.
pub(crate) fn missing(what: &str) -> ! {
    usage_error(ErrorKind::MissingRequiredArgument, &format!("{what} is missing"))
}

/// Ends the program with an error of clap for the verb of the command line.
fn usage_error(kind: ErrorKind, message: &str) -> ! {
    let mut command = crate::cli::Cli::command();
    command.build();
    let verb = named_verb(&mut command, std::env::args().skip(1));
    verb.error(kind, message).exit()
}

/// Returns the command that the words name, for its usage line.
fn named_verb(command: &mut Command, words: impl Iterator<Item = String>) -> &mut Command {
    words.fold(command, |command, word| match command.find_subcommand(&word).is_some() {
        true => command.find_subcommand_mut(&word).expect("it was found"),
        false => command,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_argument_shows_the_usage_of_its_verb() {
        let mut command = crate::cli::Cli::command();
        command.build();
        let words = ["--site", "x", "node", "unset", "list"].map(str::to_owned);
        let usage = named_verb(&mut command, words.into_iter()).render_usage().to_string();
        assert!(usage.contains("meshd node unset [OPTIONS] <NODE>"), "{usage}");
    }
}
