//! The program `meshd` of the central node: parses arguments, runs, and sets the exit code.

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    meshd::cli::run(meshd::cli::Cli::parse())
}
