//! Confinement of everything that runs for one virtual machine: QEMU, swtpm and qemu-img.
//!
//! ```text
//! users    one unprivileged user per machine                 cgroup   limits of one machine, and its end
//! cpuset   processors that one machine has for itself
//! enter    the process between agent and program: opens files, gives up root, becomes the program
//! device   rights on /dev/kvm, /dev/net/tun and VFIO groups
//! ```

pub(super) mod cgroup;
pub(super) mod cpuset;
pub(super) mod device;
pub mod enter;
pub(super) mod users;

use self::enter::{ExecContext, Pass};
use super::{
    folder::Files,
    host::{self, Places},
};
use crate::system::Tree;
use meshd_proto::vm::VmSpec;
use meshd_types::fail;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{LazyLock, Mutex, PoisonError},
    time::SystemTime,
};

/// What QEMU may not do, as `-sandbox` names it: everything that it can deny.
pub const SANDBOX: &str = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny";

/// Who runs the programs of one machine, and where.
#[derive(Clone, Debug)]
pub struct Confinement {
    /// The agent's own program, which has the verb [`enter::VERB`].
    agent: PathBuf,
    /// User ID; 0 only where a test disabled this defence.
    uid: u32,
    /// Group ID.
    gid: u32,
    /// `cgroup.procs` of the machine's group.
    procs: Option<PathBuf>,
    /// The group has processors of its own.
    has_cpus: bool,
}

impl Confinement {
    /// Gives a machine its user and its control group, both made if they are not there.
    ///
    /// # Errors
    /// In words: nothing may run unconfined.
    pub fn of(spec: &VmSpec, files: &Files, places: &Places, limits: &cgroup::Limits) -> Result<Self, String> {
        let confined = fail::defends("vm-user");
        let (uid, gid) = if confined { (users::assign(files)?, users::GROUP) } else { (0, 0) };
        let (procs, has_cpus) = match fail::defends("vm-cgroup") {
            true => {
                let group = cgroup::Group::of(files, spec)?;
                (Some(group.make(limits)?), group.dedicate(limits)?)
            }
            false => (None, false),
        };
        let agent = host::programs(places).agent.unwrap_or_else(|| PathBuf::from("/proc/self/exe"));
        Ok(Confinement { agent, uid, gid, procs, has_cpus })
    }

    /// Whether its group has processors of its own, which every program in it runs on.
    pub fn has_cpus(&self) -> bool {
        self.has_cpus
    }

    /// Its user and group.
    pub fn owner(&self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    /// The program and its arguments that run `program` confined; `pass` are the files that it gets as descriptors.
    pub fn command(&self, pins: bool, pass: Vec<Pass>, program: &Path, args: &[String]) -> (PathBuf, Vec<String>) {
        let entry = ExecContext { uid: self.uid, gid: self.gid, procs: self.procs.clone(), pins, pass, users: None };
        self.run(&entry, program, args)
    }

    /// The same for a program that serves the node, as root, and sees `users` as /etc/passwd.
    pub fn naming(&self, users: &Path, program: &Path, args: &[String]) -> (PathBuf, Vec<String>) {
        self.run(&ExecContext { users: Some(users.to_owned()), ..ExecContext::default() }, program, args)
    }

    fn run(&self, entry: &ExecContext, program: &Path, args: &[String]) -> (PathBuf, Vec<String>) {
        let mut all = entry.args();
        all.push(program.display().to_string());
        all.extend(args.iter().cloned());
        (self.agent.clone(), all)
    }
}

/// Whether QEMU of this node can be confined, asked once of each QEMU. Blocks.
///
/// # Errors
/// In words: why not.
pub fn supported(tree: &Tree) -> Result<(), String> {
    match host::program(tree, "qemu-system-x86_64") {
        Some(qemu) => sandboxes(&qemu),
        // Its absence is another check's.
        None => Ok(()),
    }
}

/// Whether this QEMU has [`SANDBOX`].
///
/// # Errors
/// What it says.
pub fn sandboxes(qemu: &Path) -> Result<(), String> {
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
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn qemu_without_sandbox_is_not_supported() {
        let dir = tempfile::tempdir().expect("a folder");
        let bin = dir.path().join("usr/bin");
        fs::create_dir_all(&bin).expect("made");
        let tree = Tree::new(dir.path());
        assert_eq!(supported(&tree), Ok(()), "there is no QEMU");
        let qemu = bin.join("qemu-system-x86_64");
        fs::write(&qemu, "#!/bin/sh\necho '-sandbox support is not enabled in this QEMU binary' >&2\nexit 1\n")
            .expect("written");
        fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).expect("set");
        let why = supported(&tree).expect_err("no sandbox");
        assert!(why.contains("no seccomp sandbox") && why.contains("not enabled"), "{why}");
        assert_eq!(sandboxes(Path::new("/usr/bin/qemu-system-x86_64")), Ok(()), "Debian's has it");
    }
}
