//! Checks that the QEMU of this node was built with its seccomp sandbox, which confinement needs.

use super::installed;
use crate::{system::Tree, vm::lock_helpers::locked};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Mutex,
    time::SystemTime,
};

/// Value of QEMU's option `-sandbox`: denies everything that the sandbox can deny.
pub const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// Checks the installed QEMU, once for each version of the binary. Blocks. Returns `None` without
/// QEMU.
pub fn check_installed(tree: &Tree) -> Option<Result<(), String>> {
    installed::qemu(tree).map(|qemu| check(&qemu))
}

/// Checks that a QEMU binary accepts [`SANDBOX`]. Results are cached until the binary changes.
pub fn check(qemu: &Path) -> Result<(), String> {
    type Cache = Mutex<BTreeMap<PathBuf, (SystemTime, Result<(), String>)>>;
    static CACHE: Cache = Mutex::new(BTreeMap::new());
    let failed =
        |error: std::io::Error| format!("cannot check the sandbox of {}: {error}", qemu.display());
    let changed = qemu.metadata().and_then(|file| file.modified()).map_err(failed)?;
    if let Some((_, result)) =
        locked(&CACHE).get(qemu).filter(|(cached_at, _)| *cached_at == changed)
    {
        return result.clone();
    }
    // QEMU parses options in order: an unknown sandbox option ends QEMU before `-version`.
    let mut command = Command::new(qemu);
    let output = command
        .args(["-sandbox", SANDBOX, "-version"])
        .stdin(Stdio::null())
        .output()
        .map_err(failed)?;
    let result = if output.status.success() {
        Ok(())
    } else {
        let stderr: String =
            String::from_utf8_lossy(&output.stderr).trim().chars().take(200).collect();
        Err(format!("{} has no seccomp sandbox: {stderr}", qemu.display()))
    };
    locked(&CACHE).insert(qemu.to_owned(), (changed, result.clone()));
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::write_program;
    use std::fs;

    #[test]
    fn qemu_without_seccomp_sandbox_is_rejected() {
        let dir = tempfile::tempdir().expect("a folder");
        let bin = dir.path().join("usr/bin");
        fs::create_dir_all(&bin).expect("made");
        let tree = Tree::new(dir.path());
        assert_eq!(check_installed(&tree), None);
        let qemu = bin.join("qemu-system-x86_64");
        write_program(
            &qemu,
            "#!/bin/sh\necho '-sandbox support is not enabled in this QEMU binary' >&2\nexit 1\n",
        );
        let why = check_installed(&tree).expect("installed").expect_err("no sandbox");
        assert!(why.contains("no seccomp sandbox") && why.contains("not enabled"), "{why}");
        assert_eq!(
            check(Path::new("/usr/bin/qemu-system-x86_64")),
            Ok(()),
            "QEMU of Debian has the sandbox"
        );
    }
}
