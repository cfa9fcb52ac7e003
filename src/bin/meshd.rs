//! The central node. Parse, run, exit code.

fn main() {}
