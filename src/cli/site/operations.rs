//! `meshd operations`: operations that are not finished.

use crate::cli::{
    Context, Failure,
    output::print::{Output, ago, now, table},
    wait,
};
use clap::Args;
use meshd_api::{OperationsView, routes as api};

/// Boots, reboots, drains, VMs, volumes, slots and tasks; failed ones first.
#[derive(Debug, Args)]
pub(crate) struct Operations {
    #[command(flatten)]
    output: Output,
}

impl Operations {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        let found = wait(client.get(api::LIST_OPERATIONS.path([])))?;
        self.output.print(&found, rows)?;
        match found.rest {
            0 if found.operations.is_empty() => message!("no unfinished operations"),
            0 => {}
            rest => message!("{rest} more"),
        }
        Ok(())
    }
}

fn rows(found: &OperationsView) -> String {
    let rows = found.operations.iter().map(|operation| {
        let since = operation.since.map(|since| ago(since, now())).unwrap_or_default();
        let reason = operation.reason.clone().unwrap_or_default();
        let kind = operation.object.as_str().to_owned();
        let (name, request, progress) = (operation.name.clone(), operation.request.clone(), operation.progress.clone());
        [operation.state.as_str().to_owned(), kind, name, request, since, progress, reason]
    });
    table(["state", "kind", "name", "request", "since", "progress", "reason"], rows)
}
