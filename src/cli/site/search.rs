//! `meshd search`: finds nodes, VMs, containers and tasks by a part of a text.

use crate::cli::{Context, Failure, output::list::ListOutput, output::print::table, wait};
use clap::Args;
use meshd_api::{SearchView, routes as api};

/// IDs, names, MAC and IP addresses, serial numbers, UUIDs and programs are searched, in upper or
/// lower case.
#[derive(Debug, Args)]
pub(crate) struct Search {
    /// Text of 2 to 100 characters
    text: String,
    #[command(flatten)]
    output: ListOutput,
}

impl Search {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let found = wait(context.client()?.get(api::SEARCH.path([]).with("q", &self.text)))?;
        self.output.print(&found, rows)?;
        match found.total.saturating_sub(found.hits.len()) {
            0 if found.total == 0 => message!("nothing contains `{}`", self.text),
            0 => {}
            more => message!("{more} more; write more of the text"),
        }
        Ok(())
    }
}

fn rows(found: &SearchView) -> String {
    let rows = found.hits.iter().map(|hit| {
        [&hit.kind, &hit.id, &hit.name, &hit.state, &hit.field, &hit.value].map(Clone::clone)
    });
    table(["kind", "id", "name", "state", "field", "value"], rows)
}
