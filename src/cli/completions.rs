//! `meshd completions`: shell completion scripts.

use super::{Cli, Failure, output::print};
use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

/// Such as `meshd completions bash > /etc/bash_completion.d/meshd`.
#[derive(Debug, Args)]
pub(super) struct Completions {
    /// Shell
    shell: Shell,
}

impl Completions {
    pub(super) fn run(self) -> Result<(), Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "meshd", &mut script);
        print::write(&String::from_utf8_lossy(&script))
    }
}
