//! Both programs report the commit that they were built from (AG-11).

use std::process::Command;

fn stdout_of(program: &str, args: &[&str]) -> String {
    let output =
        Command::new(program).args(args).current_dir(env!("CARGO_MANIFEST_DIR")).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

#[test]
fn agent_version_names_the_built_commit() {
    let commit = stdout_of("git", &["rev-parse", "--short=12", "HEAD"]);
    let changed = stdout_of(
        "git",
        &["status", "--porcelain", "--", "src", "build.rs", "Cargo.toml", "Cargo.lock"],
    );
    let wanted =
        if changed.is_empty() { format!("({commit},") } else { format!("({commit}-dirty,") };
    let version = stdout_of(env!("CARGO_BIN_EXE_mesh-agent"), &["--version"]);
    assert!(version.contains(&wanted), "{version} does not contain {wanted}");
}
