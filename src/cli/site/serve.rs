//! `meshd serve`: runs the central node.

use super::check::with_overlays;
use crate::cli::{Context, Failure};
use crate::daemon;
use clap::Args;

/// Runs until SIGINT or SIGTERM.
#[derive(Debug, Args)]
pub(crate) struct Serve {}

impl Serve {
    pub(crate) fn run(self, context: &Context) -> Result<(), Failure> {
        let file = context.site_file()?;
        let site = meshd_config::load(&file).map_err(|faults| with_overlays(&file, faults))?;
        daemon::settle(&site).map_err(|error| Failure::of(&error))?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            Failure::new(format!("cannot start threads: {error}"), "raise the limits")
        })?;
        let served = runtime.block_on(daemon::serve(site)).map_err(|error| Failure::of(&error));
        // A thread that waits for a file cannot be ended, and must not keep the process: the store
        // is closed.
        runtime.shutdown_background();
        served
    }
}
