//! `meshd node reject|quarantine|drain|fence|maintenance|resume|remove|replace`: the life cycle of a node.

use super::path;
use crate::cli::{
    Failure,
    client::AdminClient,
    output::print::{confirm, typed},
};
use crate::serve::{
    admin::view::{Drain as Body, Fence as Confirmed, NodeDetail, NodeView, Replace as Taken, Replaced},
    central::DrainPolicy,
};
use clap::{Args, ValueEnum};
use meshd_config::{parse_duration, vm::MAX_GRACE_S};
use std::time::Duration;

/// A node.
#[derive(Debug, Args)]
pub(crate) struct Order {
    /// Node ID or name
    node: String,
}

/// The same for what takes it out of service at once.
#[derive(Debug, Args)]
pub(crate) struct Maintenance {
    #[command(flatten)]
    order: Order,
    /// Proceed even if a task fails
    #[arg(long)]
    force: bool,
}

/// The same for what ends something.
#[derive(Debug, Args)]
pub(crate) struct Ending {
    #[command(flatten)]
    order: Order,
    /// Skip the confirmation
    #[arg(long, short)]
    yes: bool,
    /// Proceed even if virtual machines or a task are lost
    #[arg(long)]
    force: bool,
}

/// A node that is off.
#[derive(Debug, Args)]
pub(crate) struct Fencing {
    #[command(flatten)]
    order: Order,
    /// Node name, instead of the prompt
    #[arg(long, value_name = "NAME")]
    confirm: Option<String>,
}

impl Fencing {
    pub(crate) async fn fence(self, client: &AdminClient) -> Result<(), Failure> {
        let confirm = match self.confirm {
            Some(name) => name,
            None => {
                let node = named(client, &self.order.node).await?;
                eprintln!("{} must be off, or its virtual machines may run twice.", of(&node));
                typed("Type its name to fence it:")?
            }
        };
        let node: NodeView = client.post(&path(&self.order.node, "/fence"), &Confirmed { confirm }).await?;
        eprintln!("{} ({}) is fenced; what may start elsewhere does: meshd vm list", node.id, node.name);
        Ok(())
    }
}

/// A node, and what becomes of what runs on it.
#[derive(Debug, Args)]
pub(crate) struct DrainNode {
    #[command(flatten)]
    order: Order,
    /// Policy for virtual machines: wait or stop
    #[arg(long, value_enum, default_value_t, value_name = "POLICY")]
    workloads: Policy,
    /// Shutdown time for guests, such as 90s or 5m
    #[arg(long, value_name = "TIME", value_parser = patience)]
    grace: Option<Duration>,
}

fn patience(text: &str) -> Result<Duration, String> {
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
    old: String,
    /// Node of the new hardware, booted once before
    #[arg(long, value_name = "NODE")]
    new: String,
    /// Skip the confirmation
    #[arg(long, short)]
    yes: bool,
    /// Proceed even if virtual machines or a task are lost
    #[arg(long)]
    force: bool,
}

impl DrainNode {
    pub(crate) async fn drain(self, client: &AdminClient) -> Result<(), Failure> {
        let workloads = match self.workloads {
            Policy::Wait if self.grace.is_some() => {
                return Err(Failure::new("--grace says how long a stop may take", "add --workloads stop"));
            }
            Policy::Wait => DrainPolicy::Wait,
            Policy::Stop => DrainPolicy::Stop,
        };
        let grace_s = self.grace.map(|grace| u32::try_from(grace.as_secs()).unwrap_or(MAX_GRACE_S));
        let node: NodeView = client.post(&path(&self.order.node, "/drain"), &Body { workloads, grace_s }).await?;
        eprintln!("{} ({}) is {}; it takes no new work", node.id, node.name, node.phase);
        if !node.work.is_empty() {
            eprintln!("it waits for {}; meshd node show {} says for what is left", node.work.join(", "), node.id);
        }
        Ok(())
    }
}

impl Order {
    async fn give(&self, client: &AdminClient, verb: &str) -> Result<NodeView, Failure> {
        client.post(&path(&self.node, &format!("/{verb}")), &()).await
    }

    pub(crate) async fn resume(self, client: &AdminClient) -> Result<(), Failure> {
        let node = self.give(client, "resume").await?;
        eprintln!("{} ({}) is {}", node.id, node.name, node.phase);
        Ok(())
    }
}

impl Maintenance {
    pub(crate) async fn maintenance(self, client: AdminClient) -> Result<(), Failure> {
        let node = self.order.give(&client.forced(self.force), "maintenance").await?;
        eprintln!("{} ({}) is in {}; to take it back: meshd node resume {}", node.id, node.name, node.phase, node.id);
        Ok(())
    }
}

impl Ending {
    pub(crate) async fn reject(self, client: &AdminClient) -> Result<(), Failure> {
        self.ask(client, "is refused at its boots until it is approved. Reject it?").await?;
        let node = self.order.give(client, "reject").await?;
        eprintln!("{} ({}) is {}; to let it in: meshd node approve {}", node.id, node.name, node.phase, node.id);
        Ok(())
    }

    pub(crate) async fn quarantine(self, client: AdminClient) -> Result<(), Failure> {
        let client = &client.forced(self.force);
        self.ask(client, "is cut off at once and held until it is released. Quarantine it?").await?;
        let node = self.order.give(client, "quarantine").await?;
        let (id, name, phase) = (node.id, node.name, node.phase);
        eprintln!("{id} ({name}) is {phase}; it boots again after `meshd node release {id}`");
        Ok(())
    }

    pub(crate) async fn remove(self, client: AdminClient) -> Result<(), Failure> {
        let client = &client.forced(self.force);
        self.ask(client, "is cut off at once and forgotten with all that was said of it. Remove it?").await?;
        let node = self.order.give(client, "remove").await?;
        eprintln!("{} is {}; if the machine boots again it is discovered anew", node.id, node.phase);
        Ok(())
    }

    async fn ask(&self, client: &AdminClient, what: &str) -> Result<(), Failure> {
        if self.yes {
            return Ok(());
        }
        let node = named(client, &self.order.node).await?;
        confirm(&format!("{} {what}", of(&node)))
    }
}

impl ReplaceNode {
    pub(crate) async fn run(self, client: AdminClient) -> Result<(), Failure> {
        let client = &client.forced(self.force);
        if !self.yes {
            let (old, new) = (named(client, &self.old).await?, named(client, &self.new).await?);
            let taken = "takes its name, profile, variables, groups and reservation. Replace it?";
            confirm(&format!("{} is removed, and {} {taken}", of(&old), of(&new)))?;
        }
        let order = Taken { new: self.new };
        let done: Replaced = client.post(&path(&self.old, "/replace"), &order).await?;
        let node = done.node;
        eprintln!("{} ({}) boots {} from its next boot on", node.id, node.name, node.profile);
        for left in done.left {
            eprintln!("the site file speaks of a network card that is gone: {left}; give it the new card's address");
        }
        Ok(())
    }
}

async fn named(client: &AdminClient, node: &str) -> Result<NodeView, Failure> {
    client.get::<NodeDetail>(&path(node, "")).await.map(|detail| detail.node)
}

fn of(node: &NodeView) -> String {
    format!("{} ({}, {})", node.id, node.name, node.phase)
}
