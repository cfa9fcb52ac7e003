//! `meshd audit`: prints the audit log.

use super::events::times;
use crate::cli::{
    Context, Failure,
    output::print::{Output, table},
    wait,
};
use clap::Args;
use meshd_api::{AuditView, routes as api};
use meshd_model::fleet::Principal;

/// Print the audit log, including refused orders
#[derive(Debug, Args)]
pub(crate) struct Audit {
    /// Show orders about this node only
    #[arg(long, value_name = "NODE")]
    node: Option<String>,
    /// Filter: uid:N, token:NAME, rule:NAME, node or meshd
    #[arg(long, value_name = "ACTOR")]
    actor: Option<Principal>,
    /// Show at most N records, the newest
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    limit: u16,
    #[command(flatten)]
    output: Output,
}

impl Audit {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let path = api::LIST_AUDIT_RECORDS.path([]).with("limit", self.limit);
        let path = path.with_optional("node", self.node).with_optional("actor", self.actor);
        let lines = wait(context.client()?.get(path))?;
        self.output.print(&lines, |lines| rows(lines))
    }
}

fn rows(lines: &[AuditView]) -> String {
    let rows = lines.iter().map(|AuditView { audit, .. }| {
        [
            audit.at.to_string(),
            audit.by.principal.to_string(),
            audit.by.verb.to_string(),
            audit.target.clone().unwrap_or_default(),
            audit.outcome.code().to_owned(),
            audit.by.reason.clone().unwrap_or_default(),
            match audit.count {
                1 => audit.detail.clone(),
                count => format!("{} {}", audit.detail, times(count, audit.first_at)).trim().to_owned(),
            },
        ]
    });
    table(["at", "actor", "verb", "target", "outcome", "reason", "detail"], rows)
}
