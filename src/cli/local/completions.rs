//! `meshd completions` and `meshd man-pages`: shell completion scripts and manual pages for
//! packages.

use super::complete;
use crate::cli::{Cli, Failure, output::writer, path_text};
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;
use std::path::PathBuf;

/// Such as `meshd completions bash > /etc/bash_completion.d/meshd`.
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// Shell
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(self) -> Result<(), Failure> {
        if let Some(script) = complete::script(self.shell) {
            return writer::write(script);
        }
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "meshd", &mut script);
        writer::write_raw(&script)
    }
}

/// Such as `meshd man-pages target/man`: `meshd.1`, `meshd-node.1`, `meshd-node-list.1` and so on.
#[derive(Debug, Args)]
pub(crate) struct ManPages {
    /// Folder, which is created
    folder: PathBuf,
}

impl ManPages {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let failed = |error| {
            Failure::new(
                format!("cannot write to {}: {error}", path_text(&self.folder)),
                "use another folder",
            )
        };
        std::fs::create_dir_all(&self.folder).map_err(failed)?;
        clap_mangen::generate_to(Cli::command(), &self.folder).map_err(failed)
    }
}
