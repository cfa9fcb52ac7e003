//! `meshd node label|rename`: labels and names of nodes.

use super::path;
use crate::cli::{Failure, client::AdminClient};
use crate::serve::admin::view::{ChangeLabels, NodeView, Rename};
use clap::Args;
use meshd_model::fleet::{LabelChange, LabelKey, LabelValue, label_words};

/// `rack=a` sets a label, `rack-` removes one.
#[derive(Clone, Debug)]
pub(crate) enum LabelWord {
    Set(LabelKey, LabelValue),
    Unset(LabelKey),
}

impl std::str::FromStr for LabelWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let told = |error: meshd_model::fleet::LabelError| error.to_string();
        if let Some((key, value)) = text.split_once('=') {
            return Ok(LabelWord::Set(key.parse().map_err(told)?, value.parse().map_err(told)?));
        }
        let key = text.strip_suffix('-').ok_or("write KEY=VALUE, or KEY- to remove a label")?;
        Ok(LabelWord::Unset(key.parse().map_err(told)?))
    }
}

#[derive(Debug, Args)]
pub(crate) struct LabelArgs {
    /// Node ID or name
    node: String,
    /// KEY=VALUE sets a label, KEY- removes one
    #[arg(required = true, value_name = "LABEL")]
    labels: Vec<LabelWord>,
}

impl LabelArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let order = ChangeLabels { change: change(self.labels) };
        let node: NodeView = client.post(&path(&self.node, "/label"), &order).await?;
        eprintln!("{} ({}): {}", node.id, node.name, labelled(&node));
        Ok(())
    }
}

fn change(words: Vec<LabelWord>) -> LabelChange {
    let mut change = LabelChange::default();
    for word in words {
        match word {
            LabelWord::Set(key, value) => drop(change.set.insert(key, value)),
            LabelWord::Unset(key) => change.unset.push(key),
        }
    }
    change
}

fn labelled(node: &NodeView) -> String {
    if node.labels.is_empty() { "no labels".to_owned() } else { format!("labels {}", label_words(&node.labels)) }
}

#[derive(Debug, Args)]
pub(crate) struct RenameArgs {
    /// Node ID or name
    node: String,
    /// New name: a host name that no other node has
    #[arg(value_name = "NEWNAME")]
    name: String,
}

impl RenameArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let node: NodeView = client.post(&path(&self.node, "/rename"), &Rename { name: self.name }).await?;
        eprintln!("{} is named {}; host name, lease and DNS follow at its next boot", node.id, node.name);
        Ok(())
    }
}
