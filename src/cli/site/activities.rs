//! `meshd activities`: activities that are not finished.

use crate::cli::{
    Context, Failure,
    output::list::ListOutput,
    output::print::{ago, now, table},
    wait,
};
use clap::Args;
use meshd_api::{ActivitiesView, routes as api};

/// Boots, reboots, drains, VMs, volumes, slots and tasks; failed ones first.
#[derive(Debug, Args)]
pub(crate) struct Activities {
    #[command(flatten)]
    output: ListOutput,
}

impl Activities {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        let found = wait(client.get(api::LIST_ACTIVITIES.path([])))?;
        self.output.print(&found, rows)?;
        match found.rest {
            0 if found.activities.is_empty() => message!("no unfinished operations"),
            0 => {}
            rest => message!("{rest} more"),
        }
        Ok(())
    }
}

fn rows(found: &ActivitiesView) -> String {
    let rows = found.activities.iter().map(|activity| {
        let since = activity.since.map(|since| ago(since, now())).unwrap_or_default();
        let reason = activity.reason.clone().unwrap_or_default();
        let kind = activity.object.as_str().to_owned();
        let name = activity.name.clone();
        let request = activity.request.clone();
        let progress = activity.progress.clone();
        [activity.state.as_str().to_owned(), kind, name, request, since, progress, reason]
    });
    table(["state", "kind", "name", "request", "since", "progress", "reason"], rows)
}
