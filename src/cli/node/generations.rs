//! `meshd node history|diff|pin` and `meshd profile history|rollback`: generations of nodes.

use super::targets::{NamedNodes, NodeSelection, Targets, order};
use crate::cli::{
    Failure,
    client::AdminClient,
    output::print::{Output, ago, clean, fields, now, table},
};
use clap::Args;
use meshd_api::{DiffView, GenerationView, NodeView, Pin, RevisionView, Rollback, routes as api};
use meshd_model::fleet::{Generation, GenerationDiff, RevisionDiff};
use meshd_types::Timestamp;
use serde::Serialize;

#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    #[command(flatten)]
    targets: Targets,
    /// Generation or prefix, one node only [default: running one]
    #[arg(long, value_name = "G", conflicts_with_all = ["off", "selector"])]
    generation: Option<String>,
    /// Remove the pin
    #[arg(long)]
    off: bool,
}

impl PinArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let body = Pin { generation: self.generation, off: self.off };
        let selection = self.targets.select(client).await?;
        if body.generation.is_some() && matches!(selection, NodeSelection::Several(_)) {
            let hint = "omit --generation: each node is pinned to its running generation";
            return Err(Failure::new("--generation names a generation of one node", hint));
        }
        order(client, selection, &api::PIN_NODE, &api::PIN_NODES, &body, pin_text).await
    }
}

fn pin_text(node: &NodeView) -> String {
    let id = node.id;
    let name = &node.name;
    match node.pinned {
        Some(pinned) => {
            format!(
                "{name} ({id}) boots generation {} until `meshd node pin {id} --off`",
                pinned.0.short()
            )
        }
        None => format!("{name} ({id}) is not pinned; it boots profile {}", node.profile),
    }
}

pub(crate) async fn history(
    client: &AdminClient,
    nodes: &NamedNodes,
    output: Output,
) -> Result<(), Failure> {
    let get = async |node: &str| {
        let all = client.get(api::LIST_NODE_GENERATIONS.path([&node])).await?;
        if all.is_empty() {
            message!("{node}: no generation was delivered");
        }
        Ok(all)
    };
    nodes.print(client, output, get, |all: &Vec<GenerationView>| generations(all, now())).await
}

fn generations(all: &[GenerationView], now: Timestamp) -> String {
    let head = [
        "generation",
        "profile",
        "image",
        "version",
        "delivered",
        "first booted",
        "state",
        "archived",
    ];
    let rows = all.iter().map(|view| {
        let delivered = &view.delivered;
        let marks = [(view.runs, "running"), (view.next, "next"), (view.pinned, "pinned")];
        let marks: Vec<&str> =
            marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect();
        [
            delivered.generation.0.short(),
            delivered.profile.to_string(),
            delivered.image.to_string(),
            delivered.version.short(),
            ago(delivered.delivered_at, now),
            delivered.booted_at.map(|at| ago(at, now)).unwrap_or_default(),
            marks.join(" "),
            if view.archived { "yes".into() } else { "no".into() },
        ]
    });
    table(head, rows)
}

pub(crate) async fn diff(
    client: &AdminClient,
    nodes: &NamedNodes,
    output: Output,
) -> Result<(), Failure> {
    let get = async |node: &str| client.get(api::COMPARE_NODE_GENERATIONS.path([&node])).await;
    let text = |view: &DiffView| {
        let override_reason = override_reason(view.pinned, view.rolled_back).unwrap_or_default();
        let head = fields([
            ("runs", view.runs.to_string()),
            ("next boot", view.next.to_string()),
            ("override", override_reason),
        ]);
        format!("{head}{}", difference(&view.diff))
    };
    nodes.print(client, output, get, text).await
}

/// Returns the reason for which a node boots another generation than that of its profile.
pub(crate) fn override_reason(
    pinned: Option<Generation>,
    rolled_back: Option<Generation>,
) -> Option<String> {
    let pinned = pinned.map(|generation| format!("pinned to {}", generation.0.short()));
    pinned.or_else(|| {
        rolled_back.map(|generation| format!("profile rolled back to {}", generation.0.short()))
    })
}

/// Formats a difference: `-` marks removed, `+` added and `~` changed entries.
pub(crate) fn difference(diff: &GenerationDiff) -> String {
    if diff.is_empty() {
        return "no difference\n".to_owned();
    }
    let mut out = String::new();
    for (key, [before, after]) in &diff.changed {
        out += &format!("~ {key}: {before} -> {after}\n");
    }
    let lists = [
        ('-', "kernel argument", &diff.args_removed),
        ('+', "kernel argument", &diff.args_added),
        ('-', "package", &diff.packages_removed),
        ('+', "package", &diff.packages_added),
    ];
    for (sign, what, list) in lists {
        out.extend(list.iter().map(|one| format!("{sign} {what} {one}\n")));
    }
    for file in &diff.files {
        let what = if file.attributes.is_empty() {
            String::new()
        } else {
            format!(" ({})", file.attributes.join(", "))
        };
        out += &format!("{file}{what} from {}\n", file.origin);
    }
    out
}

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// Name
    profile: String,
    /// Generation or prefix [default: the previous one]
    #[arg(long, value_name = "GENERATION", conflicts_with = "off")]
    to: Option<String>,
    /// End the rollback
    #[arg(long)]
    off: bool,
    /// Proceed even if VMs are lost
    #[arg(long)]
    force: bool,
}

impl RollbackArgs {
    pub(crate) async fn run(self, client: AdminClient) -> Result<(), Failure> {
        let client = client.with_force(self.force);
        let name = &self.profile;
        let order = Rollback { to: self.to, off: self.off };
        let all = client.post(api::ROLL_BACK_PROFILE.path([name]), &order).await?;
        match all.iter().find(|view| view.pinned) {
            Some(view) => {
                let generation = view.revised.generation.0.short();
                message!(
                    "nodes of {name} boot its generation {generation} until `meshd profile rollback {name} --off`"
                );
            }
            None => message!("nodes of {name} boot the profile of the site file again"),
        }
        Ok(())
    }
}

#[derive(Debug, Args)]
pub(crate) struct RevisionsArgs {
    /// Name
    name: String,
    /// Show the changes of each revision
    #[arg(long)]
    changes: bool,
    #[command(flatten)]
    output: Output,
}

/// A revision with its difference from the previous one. The oldest revision has no difference.
#[derive(Debug, Serialize)]
struct ChangedRevision {
    #[serde(flatten)]
    revision: RevisionView,
    changes: Option<RevisionDiff>,
}

impl RevisionsArgs {
    pub(crate) async fn run(self, client: &AdminClient) -> Result<(), Failure> {
        let all = client.get(api::LIST_PROFILE_REVISIONS.path([&self.name])).await?;
        if !self.changes {
            return self.output.print(&all, |all| revisions(all));
        }
        let mut changed = Vec::with_capacity(all.len());
        for (index, revision) in all.iter().enumerate() {
            let changes = match all.get(index + 1) {
                Some(before) => {
                    let from = before.revised.generation;
                    let to = revision.revised.generation;
                    let path = api::COMPARE_PROFILE_REVISIONS
                        .path([&self.name])
                        .with("from", from)
                        .with("to", to);
                    Some(client.get(path).await?.diff)
                }
                None => None,
            };
            changed.push(ChangedRevision { revision: revision.clone(), changes });
        }
        self.output.print(&changed, |changed| changed.iter().map(changes).collect())
    }
}

fn revisions(all: &[RevisionView]) -> String {
    let rows = all.iter().map(|view| {
        let revised = &view.revised;
        let generation = revised.generation.0.short();
        let version = revised.version.short();
        [generation, revised.image.to_string(), version, ago(revised.since, now()), marks(view)]
    });
    table(["generation", "image", "version", "since", "state"], rows)
}

fn marks(view: &RevisionView) -> String {
    let marks =
        [(view.boots, "booted"), (view.current, "current"), (view.pinned, "rolled back to")];
    marks.into_iter().filter(|(is, _)| *is).map(|(_, mark)| mark).collect::<Vec<_>>().join(", ")
}

fn changes(changed: &ChangedRevision) -> String {
    let revised = &changed.revision.revised;
    let marks = marks(&changed.revision);
    let marks = if marks.is_empty() { marks } else { format!(" ({marks})") };
    let mut out =
        format!("{}, {}{marks}\n", revised.generation.0.short(), ago(revised.since, now()));
    let Some(diff) = &changed.changes else { return out + "  the oldest revision on record\n" };
    if diff.changed.is_empty() && diff.files.is_empty() {
        return out + "  no difference\n";
    }
    let value = |text: &str| if text.is_empty() { "not set".to_owned() } else { clean(text) };
    for (key, [before, after]) in &diff.changed {
        out += &format!("  ~ {}: {} -> {}\n", clean(key), value(before), value(after));
    }
    out.extend(
        diff.files.iter().map(|(path, change)| format!("  {} {}\n", change.sign(), clean(path))),
    );
    out
}
