//! The program `meshd` of the central node: parses arguments, runs, and sets the exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    meshd::cli::main()
}
