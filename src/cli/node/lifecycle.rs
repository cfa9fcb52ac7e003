//! `meshd node approve|reject|quarantine|release|drain|fence|maintenance|resume|remove|replace`:
//! the life cycle of a node.

use super::machines;
use super::targets::{
    NamedNodes, OrderRoute, Targets, confirm_interruption, confirm_nodes, node_text, one_node,
    order,
};
use crate::cli::{
    Failure,
    client::AdminClient,
    output::print::{confirm, typed},
};
use clap::{Args, ValueEnum};
use meshd_api::{Approve, Drain, DrainPolicy, Fence, NodeView, Replace, routes as api};
use meshd_config::{parse_duration, vm::MAX_GRACE_S};
use meshd_model::fleet::Phase;
use meshd_types::Hostlist;
use std::time::Duration;

#[derive(Debug, Args)]
pub(crate) struct MaintenanceArgs {
    #[command(flatten)]
    targets: Targets,
    /// Skip the confirmation of --force
    #[arg(long, short, requires = "force")]
    yes: bool,
    /// Proceed even if a task fails
    #[arg(long)]
    force: bool,
}

/// Nodes, for an order that asks for confirmation.
#[derive(Debug, Args)]
pub(crate) struct ConfirmedOrder {
    #[command(flatten)]
    targets: Targets,
    /// Skip the confirmation
    #[arg(long, short)]
    yes: bool,
    /// Proceed even if VMs or a task are lost
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct FenceArgs {
    #[command(flatten)]
    nodes: NamedNodes,
    /// Node name, instead of the prompt
    #[arg(long, value_name = "NAME")]
    confirm: Option<String>,
}

impl FenceArgs {
    /// Fences the nodes one after another: each name confirms one node.
    pub(crate) async fn fence(self, client: &AdminClient) -> Result<(), Failure> {
        for node in self.nodes.paths(client).await? {
            self.fence_node(client, &node.path).await?;
        }
        Ok(())
    }

    async fn fence_node(&self, client: &AdminClient, node: &str) -> Result<(), Failure> {
        let confirm = match &self.confirm {
            Some(name) => name.clone(),
            None => {
                let node = get_node(client, node).await?;
                message!(
                    "{} must be off, or its VMs and containers may run twice.",
                    node_text(&node)
                );
                typed("Type its name to fence it:")?
            }
        };
        let node = client.post(api::FENCE_NODE.path([&node]), &Fence { confirm }).await?;
        message!(
            "{} ({}) is fenced; its VMs and containers start elsewhere if they may move: \
             meshd vm list, meshd container list",
            node.name,
            node.id
        );
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct DrainNode {
    #[command(flatten)]
    targets: Targets,
    /// Policy for VMs: wait or stop
    #[arg(long, value_enum, default_value_t, value_name = "POLICY")]
    workloads: Policy,
    /// Skip the confirmation of --workloads stop
    #[arg(long, short)]
    yes: bool,
    /// Shutdown time for guests, such as 90s or 5m
    #[arg(long, value_name = "TIME", value_parser = grace_time)]
    grace: Option<Duration>,
}

fn grace_time(text: &str) -> Result<Duration, String> {
    let most = Duration::from_secs(MAX_GRACE_S.into());
    parse_duration(text)
        .filter(|grace| *grace <= most)
        .ok_or_else(|| "write a number and one of s, m, h, such as 5m; an hour at most".to_owned())
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum Policy {
    #[default]
    Wait,
    Stop,
}

#[derive(Debug, Args)]
pub(crate) struct ReplaceNode {
    /// Node whose hardware failed
    #[arg(long, value_name = "NODE")]
    old: Hostlist,
    /// Node of the new hardware, booted once before
    #[arg(long, value_name = "NODE")]
    new: Hostlist,
    /// Skip the confirmation
    #[arg(long, short)]
    yes: bool,
    /// Proceed even if VMs or a task are lost
    #[arg(long)]
    force: bool,
}

impl DrainNode {
    pub(crate) async fn drain(self, client: &AdminClient) -> Result<(), Failure> {
        let workloads = match self.workloads {
            Policy::Wait if self.grace.is_some() => {
                return Err(Failure::new(
                    "--grace says how long a stop may take",
                    "add --workloads stop",
                ));
            }
            Policy::Wait => DrainPolicy::Wait,
            Policy::Stop => DrainPolicy::Stop,
        };
        let grace_s = self.grace.map(|grace| u32::try_from(grace.as_secs()).unwrap_or(MAX_GRACE_S));
        let selection = self.targets.select(client).await?;
        if workloads == DrainPolicy::Stop && !self.yes {
            confirm_interruption(
                client,
                &selection,
                "shuts its VMs down and cancels its tasks now. Drain?",
            )
            .await?;
        }
        order(
            client,
            selection,
            &api::DRAIN_NODE,
            &api::DRAIN_NODES,
            &Drain { workloads, grace_s },
            |node| {
                let text = format!("{}; no new work is assigned", phase_text(node));
                if node.work.is_empty() {
                    return text;
                }
                let work = node.work.join(", ");
                format!("{text}\nwaiting for {work}; show it: meshd node show {}", node.id)
            },
        )
        .await
    }
}

fn phase_text(node: &NodeView) -> String {
    let preposition = if node.phase == Phase::Maintenance { "in " } else { "" };
    format!("{} ({}) is {preposition}{}", node.name, node.id, node.phase)
}

pub(crate) async fn resume(targets: Targets, client: &AdminClient) -> Result<(), Failure> {
    let selection = targets.select(client).await?;
    order(client, selection, &api::RESUME_NODE, &api::RESUME_NODES, &(), phase_text).await
}

pub(crate) async fn approve(
    targets: Targets,
    moved: bool,
    client: &AdminClient,
) -> Result<(), Failure> {
    let selection = targets.select(client).await?;
    let body = Approve { moved };
    order(client, selection, &api::APPROVE_NODE, &api::APPROVE_NODES, &body, phase_text).await
}

pub(crate) async fn release(targets: Targets, client: &AdminClient) -> Result<(), Failure> {
    let text = |node: &NodeView| format!("{}; it boots at its next request", phase_text(node));
    order(client, targets.select(client).await?, &api::RELEASE_NODE, &api::RELEASE_NODES, &(), text)
        .await
}

impl MaintenanceArgs {
    pub(crate) async fn maintenance(self, client: AdminClient) -> Result<(), Failure> {
        let client = &client.with_force(self.force);
        let selection = self.targets.select(client).await?;
        if self.force && !self.yes {
            confirm_interruption(client, &selection, "ends its tasks now. Start maintenance?")
                .await?;
        }
        order(
            client,
            selection,
            &api::START_NODE_MAINTENANCE,
            &api::START_NODES_MAINTENANCE,
            &(),
            |node| format!("{}; to end it: meshd node resume {}", phase_text(node), node.id),
        )
        .await
    }
}

impl ConfirmedOrder {
    pub(crate) async fn reject(self, client: AdminClient) -> Result<(), Failure> {
        self.order(
            client,
            &api::REJECT_NODE,
            &api::REJECT_NODES,
            "is refused at every boot until it is approved. Reject?",
            |node| format!("{}; to approve it: meshd node approve {}", phase_text(node), node.id),
        )
        .await
    }

    pub(crate) async fn quarantine(self, client: AdminClient) -> Result<(), Failure> {
        self.order(
            client,
            &api::QUARANTINE_NODE,
            &api::QUARANTINE_NODES,
            "loses its link and credentials now, and does not boot until it is released. Quarantine?",
            |node| format!("{}; to release it: meshd node release {}", phase_text(node), node.id),
        )
        .await
    }

    /// Removes machines that have not appeared.
    pub(crate) async fn remove_expected(self, client: &AdminClient) -> Result<(), Failure> {
        machines::remove(client, &self.targets.names()?, self.yes).await
    }

    pub(crate) async fn remove(self, client: AdminClient) -> Result<(), Failure> {
        self.order(
            client,
            &api::REMOVE_NODE,
            &api::REMOVE_NODES,
            "loses its link and credentials now, and its address, profile, variables, pin and name. Remove?",
            |node| format!("{}; if its machine boots again, it is discovered anew", phase_text(node)),
        )
        .await
    }

    async fn order(
        self,
        client: AdminClient,
        one: &OrderRoute<api::Empty>,
        several: &api::BulkPost,
        question: &str,
        text: impl Fn(&NodeView) -> String,
    ) -> Result<(), Failure> {
        let client = &client.with_force(self.force);
        let selection = self.targets.select(client).await?;
        if !self.yes {
            confirm_nodes(client, &selection, question).await?;
        }
        order(client, selection, one, several, &(), text).await
    }
}

impl ReplaceNode {
    pub(crate) async fn run(self, client: AdminClient) -> Result<(), Failure> {
        let client = &client.with_force(self.force);
        let old = one_node(client, &self.old).await?;
        let new = one_node(client, &self.new).await?;
        if !self.yes {
            let old = get_node(client, &old).await?;
            let new = get_node(client, &new).await?;
            let taken = "takes its name, profile, variables, groups and reservation. Replace it?";
            confirm(&format!("{} is removed, and {} {taken}", node_text(&old), node_text(&new)))?;
        }
        let done = client.post(api::REPLACE_NODE.path([&old]), &Replace { new }).await?;
        let node = done.node;
        message!("{} ({}) boots {} from its next boot on", node.name, node.id, node.profile);
        for setting in done.outdated_settings {
            message!("the site file names a removed NIC: {setting}; replace its MAC address");
        }
        Ok(())
    }
}

async fn get_node(client: &AdminClient, node: &str) -> Result<NodeView, Failure> {
    client.get(api::GET_NODE.path([&node])).await.map(|detail| detail.node)
}
