//! The node's side. Parse, run, exit code.

fn main() {}
