//! `meshd node approve|reject|quarantine|release|drain|fence|maintenance|resume|remove|replace`: the life cycle of a node.

use super::{
    path,
    targets::{Targets, ask, of, order},
};
use crate::cli::{
    Failure,
    client::AdminClient,
    output::print::{confirm, typed},
};
use clap::{Args, ValueEnum};
use meshd_api::{
    Approve, Drain as Body, DrainPolicy, Fence as Confirmed, NodeDetail, NodeView, Replace as Taken, Replaced,
};
use meshd_config::{parse_duration, vm::MAX_GRACE_S};
use std::time::Duration;

/// Nodes that are taken out of service at once.
#[derive(Debug, Args)]
pub(crate) struct Maintenance {
    #[command(flatten)]
    targets: Targets,
    /// Proceed even if a task fails
    #[arg(long)]
    force: bool,
}

/// Nodes of which something ends.
#[derive(Debug, Args)]
pub(crate) struct Ending {
    #[command(flatten)]
    targets: Targets,
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
    /// Node ID or name
    node: String,
    /// Node name, instead of the prompt
    #[arg(long, value_name = "NAME")]
    confirm: Option<String>,
}

impl Fencing {
    pub(crate) async fn fence(self, client: &AdminClient) -> Result<(), Failure> {
        let confirm = match self.confirm {
            Some(name) => name,
            None => {
                let node = named(client, &self.node).await?;
                eprintln!("{} must be off, or its virtual machines may run twice.", of(&node));
                typed("Type its name to fence it:")?
            }
        };
        let node: NodeView = client.post(&path(&self.node, "/fence"), &Confirmed { confirm }).await?;
        eprintln!("{} ({}) is fenced; what may start elsewhere does: meshd vm list", node.id, node.name);
        Ok(())
    }
}

/// A node, and what becomes of what runs on it.
#[derive(Debug, Args)]
pub(crate) struct DrainNode {
    #[command(flatten)]
    targets: Targets,
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
        let picked = self.targets.pick(client).await?;
        order(client, picked, "drain", &Body { workloads, grace_s }, |node| {
            let said = format!("{} ({}) is {}; it takes no new work", node.id, node.name, node.phase);
            if node.work.is_empty() {
                return said;
            }
            let work = node.work.join(", ");
            format!("{said}\nit waits for {work}; meshd node show {} says for what is left", node.id)
        })
        .await
        .map(drop)
    }
}

pub(crate) async fn resume(targets: Targets, client: &AdminClient) -> Result<(), Failure> {
    let picked = targets.pick(client).await?;
    let said = |node: &NodeView| format!("{} ({}) is {}", node.id, node.name, node.phase);
    order(client, picked, "resume", &(), said).await.map(drop)
}

pub(crate) async fn approve(targets: Targets, moved: bool, client: &AdminClient) -> Result<(), Failure> {
    let said = |node: &NodeView| format!("{} ({}) is {}", node.id, node.name, node.phase);
    order(client, targets.pick(client).await?, "approve", &Approve { moved }, said).await.map(drop)
}

pub(crate) async fn release(targets: Targets, client: &AdminClient) -> Result<(), Failure> {
    let said = |node: &NodeView| format!("{} ({}) is {}; it boots when it asks again", node.id, node.name, node.phase);
    order(client, targets.pick(client).await?, "release", &(), said).await.map(drop)
}

impl Maintenance {
    pub(crate) async fn maintenance(self, client: AdminClient) -> Result<(), Failure> {
        let client = &client.forced(self.force);
        let picked = self.targets.pick(client).await?;
        order(client, picked, "maintenance", &(), |node| {
            let (id, name, phase) = (node.id, &node.name, node.phase);
            format!("{id} ({name}) is in {phase}; to take it back: meshd node resume {id}")
        })
        .await
        .map(drop)
    }
}

impl Ending {
    pub(crate) async fn reject(self, client: AdminClient) -> Result<(), Failure> {
        self.end(client, "reject", "is refused at its boots until it is approved. Reject it?", |node| {
            let (id, name, phase) = (node.id, &node.name, node.phase);
            format!("{id} ({name}) is {phase}; to let it in: meshd node approve {id}")
        })
        .await
    }

    pub(crate) async fn quarantine(self, client: AdminClient) -> Result<(), Failure> {
        self.end(client, "quarantine", "is cut off at once and held until it is released. Quarantine it?", |node| {
            let (id, name, phase) = (node.id, &node.name, node.phase);
            format!("{id} ({name}) is {phase}; it boots again after `meshd node release {id}`")
        })
        .await
    }

    pub(crate) async fn remove(self, client: AdminClient) -> Result<(), Failure> {
        self.end(
            client,
            "remove",
            "is cut off at once and forgotten with all that was said of it. Remove it?",
            |node| format!("{} is {}; if the machine boots again it is discovered anew", node.id, node.phase),
        )
        .await
    }

    async fn end(
        self,
        client: AdminClient,
        verb: &str,
        question: &str,
        said: impl Fn(&NodeView) -> String,
    ) -> Result<(), Failure> {
        let client = &client.forced(self.force);
        let picked = self.targets.pick(client).await?;
        if !self.yes {
            ask(client, &picked, question).await?;
        }
        order(client, picked, verb, &(), said).await.map(drop)
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
