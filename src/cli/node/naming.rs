//! `meshd node label|rename`: labels and names of nodes.

use super::targets::{SelectorArgs, missing, one_node, order};
use crate::cli::{Failure, client::AdminClient};
use clap::Args;
use meshd_api::{NodeView, Rename, routes as api};
use meshd_model::fleet::{LabelChange, LabelKey, LabelValue, label_words};
use meshd_types::Hostlist;

/// An argument: `rack=a` sets a label, `rack-` removes one, any other word names a node.
#[derive(Clone, Debug)]
pub(crate) enum LabelWord {
    Node(Hostlist),
    Set(LabelKey, LabelValue),
    Unset(LabelKey),
}

impl std::str::FromStr for LabelWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let message = |error: meshd_types::ParseError| error.to_string();
        if let Some((key, value)) = text.split_once('=') {
            return Ok(LabelWord::Set(
                key.parse().map_err(message)?,
                value.parse().map_err(message)?,
            ));
        }
        match text.strip_suffix('-') {
            Some(key) => Ok(LabelWord::Unset(key.parse().map_err(message)?)),
            None => text.parse().map(LabelWord::Node).map_err(message),
        }
    }
}

#[derive(Debug, Args)]
#[command(override_usage = "meshd node label [OPTIONS] <NODE>... <KEY=VALUE|KEY->...")]
pub(crate) struct LabelArgs {
    /// Nodes, then KEY=VALUE to set or KEY- to remove
    #[arg(required = true, value_name = "NODE|LABEL")]
    words: Vec<LabelWord>,
    #[command(flatten)]
    selector: SelectorArgs,
}

impl LabelArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let mut nodes = Vec::new();
        let mut change = LabelChange::default();
        for word in self.words {
            match word {
                LabelWord::Node(node) => nodes.push(node),
                LabelWord::Set(key, value) => drop(change.set.insert(key, value)),
                LabelWord::Unset(key) => change.unset.push(key),
            }
        }
        if change == LabelChange::default() {
            missing("KEY=VALUE or KEY-");
        }
        let selection = self.selector.select(client, &nodes).await?;
        let text = |node: &NodeView| format!("{} ({}): {}", node.name, node.id, label_line(node));
        order(client, selection, &api::LABEL_NODE, &api::LABEL_NODES, &change, text).await
    }
}

fn label_line(node: &NodeView) -> String {
    if node.labels.is_empty() {
        "no labels".to_owned()
    } else {
        format!("labels {}", label_words(&node.labels))
    }
}

#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    /// Node ID or name
    node: Hostlist,
    /// New name: a host name that no other node has
    #[arg(value_name = "NEWNAME")]
    name: String,
}

impl RenameArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let node = one_node(client, &self.node).await?;
        let node = client.post(api::RENAME_NODE.path([&node]), &Rename { name: self.name }).await?;
        message!(
            "{} is named {}; host name, lease and DNS follow at its next boot",
            node.id,
            node.name
        );
        Ok(())
    }
}
