//! `meshd audit`: prints the audit log.

use super::events::times;
use crate::cli::{
    Context, Failure,
    client::NodeNames,
    output::list::{ListOutput, TimeFilter},
    output::print::table,
    wait,
};
use clap::Args;
use meshd_api::{AuditView, routes as api};
use meshd_model::fleet::Principal;
use meshd_types::NodeId;

/// Print the audit log, including refused orders
#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Show orders about this node only
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Filter: uid:N, token:NAME, rule:NAME, node or meshd
    #[arg(long, value_name = "ACTOR")]
    actor: Option<Principal>,
    /// Show at most N, the newest [default: 100, or by --since]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: Option<u16>,
    #[command(flatten)]
    time: TimeFilter,
    #[command(flatten)]
    output: ListOutput,
}

impl Audit {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let path = api::LIST_AUDIT_RECORDS.path([]).with("limit", self.time.limit(self.limit));
        let path = path.with_optional("node", self.node).with_optional("actor", self.actor);
        let client = context.client()?;
        let (mut lines, names) = wait(async {
            Ok((client.get(path).await?, client.node_names_for(*self.output).await))
        })?;
        lines.retain(|line| self.time.includes(line.audit.at));
        self.output.print(&lines, |lines| rows(lines, &names))
    }
}

/// Formats the object of an order: a node by its name, too.
fn target(text: &str, names: &NodeNames) -> String {
    let node = text.parse::<NodeId>().ok().filter(|node| node.to_string() == text);
    node.map_or_else(|| text.to_owned(), |node| names.label(node))
}

fn rows(lines: &[AuditView], names: &NodeNames) -> String {
    let rows = lines.iter().map(|AuditView { audit, .. }| {
        [
            audit.at.to_string(),
            audit.by.principal.to_string(),
            audit.by.verb.to_string(),
            target(audit.target.as_deref().unwrap_or_default(), names),
            audit.outcome.code().to_owned(),
            audit.by.reason.clone().unwrap_or_default(),
            match audit.count {
                1 => audit.detail.clone(),
                count => {
                    format!("{} {}", audit.detail, times(count, audit.first_at)).trim().to_owned()
                }
            },
        ]
    });
    table(["at", "actor", "verb", "target", "outcome", "reason", "detail"], rows)
}
