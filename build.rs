//! Tells the program which commit it was built from, and when (AG-11).

use std::{path::Path, process::Command};

/// What the program is built from.
const SOURCES: [&str; 4] = ["src", "build.rs", "Cargo.toml", "Cargo.lock"];

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"])
        .map(|commit| commit + if is_changed() { "-dirty" } else { "" });
    println!("cargo::rustc-env=MESHD_COMMIT={}", commit.as_deref().unwrap_or("unknown"));
    // The same commit gives the same program: its time is the build's, unless the builder sets another one.
    let time = std::env::var("SOURCE_DATE_EPOCH")
        .ok()
        .or_else(|| git(&["show", "-s", "--format=%ct", "HEAD"]));
    println!("cargo::rustc-env=MESHD_BUILD_TIME={}", time.as_deref().unwrap_or("0").trim());
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    // HEAD names a branch, and a commit changes the branch alone. A file that is missing would build everything anew each time.
    let branch = git(&["symbolic-ref", "-q", "HEAD"]);
    let files = ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref());
    let files = files.filter_map(|file| git(&["rev-parse", "--git-path", file]));
    for file in files.chain(SOURCES.map(str::to_owned)).filter(|file| Path::new(file).exists()) {
        println!("cargo::rerun-if-changed={file}");
    }
}

/// Whether the sources differ from the commit.
fn is_changed() -> bool {
    git(&[["status", "--porcelain", "--untracked-files=normal", "--"].as_slice(), &SOURCES]
        .concat())
    .is_some()
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git")
        .args(arguments)
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
