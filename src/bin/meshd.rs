//! The central node. Parse, run, exit code.

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    meshd::cli::run(meshd::cli::Cli::parse())
}
