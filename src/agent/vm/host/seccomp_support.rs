//! Whether QEMU of this node was built with its seccomp sandbox, which confinement needs.

use super::installed;
use crate::system::Tree;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{LazyLock, Mutex, PoisonError},
    time::SystemTime,
};

/// What QEMU may not do, as `-sandbox` names it: everything that it can deny.
pub const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// Whether QEMU of this node can be confined, asked once of each QEMU. Blocks.
///
/// # Errors
/// In words: why not.
pub fn check_installed(tree: &Tree) -> Result<(), String> {
    match installed::program(tree, "qemu-system-x86_64") {
        Some(qemu) => check(&qemu),
        // Its absence is another check's.
        None => Ok(()),
    }
}

/// Whether this QEMU has [`SANDBOX`].
///
/// # Errors
/// What it says.
pub fn check(qemu: &Path) -> Result<(), String> {
    type Known = Mutex<BTreeMap<PathBuf, (SystemTime, Result<(), String>)>>;
    static KNOWN: LazyLock<Known> = LazyLock::new(Known::default);
    let failed = |error: std::io::Error| format!("{} cannot be asked for its sandbox: {error}", qemu.display());
    let changed = qemu.metadata().and_then(|file| file.modified()).map_err(failed)?;
    if let Some((_, known)) =
        KNOWN.lock().unwrap_or_else(PoisonError::into_inner).get(qemu).filter(|it| it.0 == changed)
    {
        return known.clone();
    }
    // Options are read in their order: one that it does not have ends it before it says its version.
    let asked =
        Command::new(qemu).args(["-sandbox", SANDBOX, "-version"]).stdin(Stdio::null()).output().map_err(failed)?;
    let words = String::from_utf8_lossy(&asked.stderr).trim().chars().take(200).collect::<String>();
    let known = if asked.status.success() {
        Ok(())
    } else {
        Err(format!("{} has no seccomp sandbox: {words}", qemu.display()))
    };
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner).insert(qemu.to_owned(), (changed, known.clone()));
    known
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::write_program;
    use std::fs;

    #[test]
    fn qemu_without_sandbox_is_not_check_installed() {
        let dir = tempfile::tempdir().expect("a folder");
        let bin = dir.path().join("usr/bin");
        fs::create_dir_all(&bin).expect("made");
        let tree = Tree::new(dir.path());
        assert_eq!(check_installed(&tree), Ok(()), "there is no QEMU");
        let qemu = bin.join("qemu-system-x86_64");
        write_program(&qemu, "#!/bin/sh\necho '-sandbox support is not enabled in this QEMU binary' >&2\nexit 1\n");
        let why = check_installed(&tree).expect_err("no sandbox");
        assert!(why.contains("no seccomp sandbox") && why.contains("not enabled"), "{why}");
        assert_eq!(check(Path::new("/usr/bin/qemu-system-x86_64")), Ok(()), "Debian's has it");
    }
}
