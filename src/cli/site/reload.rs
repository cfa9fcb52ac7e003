//! `meshd reload`: reloads site, overlays and images, all or nothing.

use crate::cli::{Context, Failure, wait};
use clap::Args;
use meshd_api::routes as api;
use meshd_config::Faults;

#[derive(Debug, Args)]
pub(crate) struct ReloadCommand {}

impl ReloadCommand {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let client = context.client()?;
        let view = wait(client.post(api::RELOAD_SITE.path([]), &()))?;
        if !view.restart.is_empty() {
            message!("not applied, needs a restart of meshd: {}", view.restart.join(", "));
        }
        if !view.faults.is_empty() {
            message!("refused: the last valid site, overlays and images stay in use");
            let faults = Faults(view.faults);
            return Err(if context.is_remote() {
                Failure::of_remote(&faults)
            } else {
                faults.into()
            });
        }
        for warning in &view.warnings {
            message!("warning: {warning}");
        }
        message!("{}", if view.changed { "the changes are applied" } else { "no changes" });
        Ok(())
    }
}
