//! `meshd man-pages`: manual pages for packages.

use super::{Cli, Failure, shown};
use clap::{Args, CommandFactory as _};
use std::path::PathBuf;

/// Such as `meshd man-pages target/man`: `meshd.1`, `meshd-node.1`, `meshd-node-list.1` and so on.
#[derive(Debug, Args)]
pub(super) struct ManPages {
    /// Folder, which is created
    folder: PathBuf,
}

impl ManPages {
    pub(super) fn run(self) -> Result<(), Failure> {
        let failed =
            |error| Failure::new(format!("cannot write to {}: {error}", shown(&self.folder)), "use another folder");
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        clap_mangen::generate_to(Cli::command(), &self.folder).map_err(failed)
    }
}
