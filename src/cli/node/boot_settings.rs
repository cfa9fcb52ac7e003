//! `meshd node set|unset|boot-once`: boot settings of a node besides its profile.

use super::{path, restart};
use crate::cli::{Failure, client::AdminClient, profile::vars};
use crate::serve::admin::view::{BootOnce, ChangeVars, NodeDetail};
use clap::Args;
use meshd_types::{VarName, VarValue, Vars};

/// `slots=8`: true, false, whole numbers and [a,b] are what they look like, everything else is text.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    name: VarName,
    value: VarValue,
}

impl std::str::FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("write it as name=value")?;
        Ok(Assignment { name: name.parse().map_err(|error| format!("{error}"))?, value: value.parse()? })
    }
}

#[derive(Debug, Args)]
pub(crate) struct Set {
    /// Node ID or name
    node: String,
    /// NAME=VALUE: true, 8, [a,b], text, or "8" for text
    #[arg(required = true, value_name = "KEY=VALUE")]
    vars: Vec<Assignment>,
}

#[derive(Debug, Args)]
pub(crate) struct Unset {
    /// Node ID or name
    node: String,
    /// Variable of the node
    #[arg(required = true, value_name = "KEY")]
    names: Vec<VarName>,
}

#[derive(Debug, Args)]
pub(crate) struct BootOnceArgs {
    /// Node ID or name
    node: String,
    /// Kernel argument to add; `-quiet` removes one
    #[arg(long, value_name = "ARG", allow_hyphen_values = true, conflicts_with = "clear")]
    kernel_arg: Vec<String>,
    /// Profile for this boot
    #[arg(long, value_name = "P", conflicts_with = "clear")]
    profile: Option<String>,
    /// Reboot the node now
    #[arg(long, conflicts_with = "clear")]
    reboot: bool,
    /// Proceed even if virtual machines are lost
    #[arg(long, conflicts_with = "clear")]
    force: bool,
    /// Cancel the change
    #[arg(long, required_unless_present_any = ["kernel_arg", "profile"])]
    clear: bool,
}

impl Set {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let set = self.vars.into_iter().map(|var| (var.name, var.value)).collect();
        change(client, &self.node, ChangeVars { set, unset: Vec::new() }).await
    }
}

impl Unset {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        change(client, &self.node, ChangeVars { set: Vars::new(), unset: self.names }).await
    }
}

async fn change(client: &AdminClient, node: &str, change: ChangeVars) -> Result<(), Failure> {
    let detail: NodeDetail = client.post(&path(node, "/vars"), &change).await?;
    let own = if detail.vars.is_empty() { "none".to_owned() } else { vars(&detail.vars) };
    eprintln!("{} ({}): variables from the next boot on: {own}", detail.node.id, detail.node.name);
    Ok(())
}

impl BootOnceArgs {
    pub(crate) async fn run(self, client: AdminClient) -> Result<(), Failure> {
        let client = &client.forced(self.force);
        let order = BootOnce { profile: self.profile, kernel_args: self.kernel_arg, clear: self.clear };
        let detail: NodeDetail = client.post(&path(&self.node, "/boot-once"), &order).await?;
        let (id, name) = (detail.node.id, &detail.node.name);
        match &detail.once {
            Some(once) => eprintln!("{id} ({name}) boots its next boot, and no other, with {}", once.words()),
            None => eprintln!("{id} ({name}) boots as ever"),
        }
        if self.reboot { restart(client, &self.node).await } else { Ok(()) }
    }
}
