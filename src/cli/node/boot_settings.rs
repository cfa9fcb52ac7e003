//! `meshd node set|unset|boot-once`: boot settings of a node besides its profile.

use super::{
    REBOOTS, restart,
    targets::{
        NodeSelection, SelectorArgs, Targets, confirm_interruption, first_order, hostlists,
        missing, order, order_several,
    },
};
use crate::cli::{Failure, client::AdminClient, profile::vars};
use clap::Args;
use meshd_api::{BootOnce, ChangeVars, NodeView, routes as api};
use meshd_types::{Hostlist, ParseError, VarName, VarValue, Vars};

/// An assignment such as `slots=8`. true, false, whole numbers and `[a,b]` have their own types;
/// any other value is text.
#[derive(Clone, Debug)]
pub(crate) struct Assignment {
    name: VarName,
    value: VarValue,
}

impl std::str::FromStr for Assignment {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, value) = text.split_once('=').ok_or("write it as name=value")?;
        Ok(Assignment {
            name: name.parse().map_err(|error| format!("{error}"))?,
            value: value.parse()?,
        })
    }
}

/// A node, or a variable with its value.
#[derive(Clone, Debug)]
pub(crate) enum SetWord {
    Node(Hostlist),
    Var(Assignment),
}

impl std::str::FromStr for SetWord {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.contains('=') {
            text.parse().map(SetWord::Var)
        } else {
            text.parse().map(SetWord::Node).map_err(|error: ParseError| error.to_string())
        }
    }
}

#[derive(Debug, Args)]
#[command(override_usage = "meshd node set [OPTIONS] <NODE>... <KEY=VALUE>...")]
pub(crate) struct Set {
    /// Nodes, then NAME=VALUE: true, 8, [a,b], or "8" for text
    #[arg(required = true, value_name = "NODE|KEY=VALUE")]
    words: Vec<SetWord>,
    #[command(flatten)]
    selector: SelectorArgs,
}

#[derive(Debug, Args)]
#[command(override_usage = "meshd node unset [OPTIONS] <NODE>[,NODE...] <KEY>...")]
pub(crate) struct Unset {
    /// Nodes with commas between, then variables
    #[arg(required = true, value_name = "NODE|KEY")]
    words: Vec<String>,
    #[command(flatten)]
    selector: SelectorArgs,
}

#[derive(Debug, Args)]
pub(crate) struct BootOnceArgs {
    #[command(flatten)]
    targets: Targets,
    /// Kernel argument to add; `-quiet` removes one
    #[arg(long, value_name = "ARG", allow_hyphen_values = true, conflicts_with = "clear")]
    kernel_arg: Vec<String>,
    /// Profile for this boot
    #[arg(long, value_name = "P", conflicts_with = "clear")]
    profile: Option<String>,
    /// Reboot the node now
    #[arg(long, conflicts_with = "clear")]
    reboot: bool,
    /// Skip the confirmation of --reboot
    #[arg(long, short, requires = "reboot")]
    yes: bool,
    /// Proceed even if VMs are lost
    #[arg(long, conflicts_with = "clear")]
    force: bool,
    /// Cancel the change
    #[arg(long, required_unless_present_any = ["kernel_arg", "profile"])]
    clear: bool,
}

impl Set {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let mut nodes = Vec::new();
        let mut set = Vars::new();
        for word in self.words {
            match word {
                SetWord::Node(node) => nodes.push(node),
                SetWord::Var(var) => drop(set.insert(var.name, var.value)),
            }
        }
        if set.is_empty() {
            missing("KEY=VALUE");
        }
        change(
            client,
            self.selector.select(client, &nodes).await?,
            ChangeVars { set, unset: Vec::new() },
        )
        .await
    }
}

impl Unset {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let mut words = self.words.into_iter();
        let nodes = if self.selector.has_selector() { None } else { words.next() };
        let nodes = hostlists(nodes.as_slice());
        let unset = words.map(|word| word.parse()).collect::<Result<Vec<VarName>, _>>();
        let unset = unset.map_err(|error| Failure::of(&error))?;
        if unset.is_empty() {
            missing("KEY");
        }
        change(
            client,
            self.selector.select(client, &nodes).await?,
            ChangeVars { set: Vars::new(), unset },
        )
        .await
    }
}

async fn change(
    client: &AdminClient,
    selection: NodeSelection,
    change: ChangeVars,
) -> Result<(), Failure> {
    let node = match selection {
        NodeSelection::One(node) => node,
        NodeSelection::Several(nodes) => {
            let set = change.set.iter().map(|(name, value)| format!("{name}={value}"));
            let unset = change.unset.iter().map(|name| format!("without {name}"));
            let words = set.chain(unset).collect::<Vec<_>>().join(" ");
            let text = |node: &NodeView| {
                format!("{} ({}): variables from the next boot on: {words}", node.name, node.id)
            };
            let route = &api::CHANGE_NODES_VARIABLES;
            let changed = order_several(client, nodes, route, &change, text).await?;
            return changed.fail_if_absent(route.verb());
        }
        NodeSelection::Listed => return Ok(()),
    };
    let detail = client.post(api::CHANGE_NODE_VARIABLES.path([&node]), &change).await?;
    let own = if detail.vars.is_empty() { "none".to_owned() } else { vars(&detail.vars) };
    message!("{} ({}): variables from the next boot on: {own}", detail.node.name, detail.node.id);
    Ok(())
}

impl BootOnceArgs {
    pub(crate) async fn run(self, client: AdminClient) -> Result<(), Failure> {
        let client = &client.with_force(self.force);
        let body =
            BootOnce { profile: self.profile, kernel_args: self.kernel_arg, clear: self.clear };
        let profile = body.profile.iter().map(|profile| format!("profile {profile}"));
        let words = profile.chain(body.kernel_args.iter().cloned()).collect::<Vec<_>>().join(" ");
        let text = |node: &NodeView| match body.clear {
            false => format!("{} ({}): at the next boot only: {words}", node.name, node.id),
            true => format!("{} ({}): the boot-once order is cleared", node.name, node.id),
        };
        let selection = self.targets.select(client).await?;
        if self.reboot && !self.yes {
            confirm_interruption(client, &selection, REBOOTS).await?;
        }
        let one = &api::SET_NODE_BOOT_ONCE;
        let several = &api::SET_NODES_BOOT_ONCE;
        if !self.reboot {
            return order(client, selection, one, several, &body, text).await;
        }
        let changed = first_order(client, selection, one, several, &body, text).await?;
        restart(client, changed).await
    }
}
