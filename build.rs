//! Tells the program which commit it was built from, and when (AG-11).

use std::process::Command;

fn main() {
    let commit = git(&["rev-parse", "--short=12", "HEAD"]).unwrap_or_else(|| "unknown".into());
    println!("cargo::rustc-env=MESHD_COMMIT={commit}");
    // The same commit gives the same program: its time is the build's, unless the builder sets another one.
    let time = std::env::var("SOURCE_DATE_EPOCH").ok().or_else(|| git(&["show", "-s", "--format=%ct", "HEAD"]));
    println!("cargo::rustc-env=MESHD_BUILD_TIME={}", time.as_deref().unwrap_or("0"));
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    println!("cargo::rerun-if-changed=.git/HEAD");
}

fn git(arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").args(arguments).output().ok().filter(|output| output.status.success())?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!text.is_empty()).then_some(text)
}
