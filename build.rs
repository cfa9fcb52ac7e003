//! Tells the program which commit it was built from (AG-11).

use std::process::Command;

fn main() {
    let commit = Command::new("git").args(["rev-parse", "--short=12", "HEAD"]).output();
    let commit = commit.ok().filter(|output| output.status.success());
    let commit = commit.and_then(|output| String::from_utf8(output.stdout).ok()).unwrap_or_default();
    let commit = if commit.trim().is_empty() { "unknown" } else { commit.trim() };
    println!("cargo::rustc-env=MESHD_COMMIT={commit}");
    println!("cargo::rerun-if-changed=.git/HEAD");
}
