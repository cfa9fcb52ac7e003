//! `mesh-agent vm-enter`: the process between agent and VM program. It enters the control group,
//! opens the files that it passes, drops root and executes the program.

use crate::{system::isolation, vm::vm_paths::remove_file};
use rustix::{
    fd::{AsRawFd as _, OwnedFd},
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
    process::{Resource, Rlimit, getrlimit, setrlimit},
    thread::set_no_new_privs,
};
use std::{
    convert::Infallible,
    ffi::OsString,
    fs::{self, OpenOptions},
    io,
    os::unix::{ffi::OsStringExt as _, net::UnixListener, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
};

/// The hidden verb of mesh-agent.
pub const VERB: &str = "vm-enter";
/// Exit code if the program cannot be executed, as in shells.
pub const CANNOT_RUN: u8 = 127;
/// Number of the first passed descriptor; the others follow.
pub const FIRST: i32 = 64;
/// Limit of open files: volumes, sockets, eventfds of each queue.
const OPEN_FILES: u64 = 16_384;
/// OOM score: the kernel kills VMs and their helpers before the agent.
const OOM_SCORE: &str = "500";

/// A file that root opens and passes as a descriptor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PassedFile {
    /// Open for reading.
    Read(PathBuf),
    /// Open for reading and writing.
    Write(PathBuf),
    /// Listen on a Unix socket at this path.
    Listen(PathBuf),
}

impl PassedFile {
    fn to_arg(&self) -> OsString {
        let (kind, path) = match self {
            PassedFile::Read(path) => ("r:", path),
            PassedFile::Write(path) => ("w:", path),
            PassedFile::Listen(path) => ("l:", path),
        };
        let mut arg = OsString::from(kind);
        arg.push(path);
        arg
    }

    /// Parses `r:/path`.
    pub fn parse(arg: &std::ffi::OsStr) -> Result<Self, String> {
        let bytes = arg.as_encoded_bytes();
        let path =
            || PathBuf::from(OsString::from_vec(bytes.get(2..).unwrap_or_default().to_vec()));
        match bytes.get(..2) {
            Some(b"r:") => Ok(PassedFile::Read(path())),
            Some(b"w:") => Ok(PassedFile::Write(path())),
            Some(b"l:") => Ok(PassedFile::Listen(path())),
            _ => Err(format!(
                "invalid file to pass `{}`: use r:PATH, w:PATH or l:PATH",
                arg.display()
            )),
        }
    }

    fn open(&self) -> io::Result<OwnedFd> {
        Ok(match self {
            PassedFile::Read(path) => OpenOptions::new().read(true).open(path)?.into(),
            PassedFile::Write(path) => OpenOptions::new().read(true).write(true).open(path)?.into(),
            PassedFile::Listen(path) => listen(path)?.into(),
        })
    }
}

/// Binds under another name and renames: QEMU removes the name to which the socket was bound, and
/// must not remove the socket.
fn listen(path: &Path) -> io::Result<UnixListener> {
    let new = path.with_extension("new");
    for stale in [path, &new] {
        remove_file(stale)?;
    }
    let socket = UnixListener::bind(&new)?;
    fs::rename(&new, path)?;
    Ok(socket)
}

/// User, group and files of a program.
#[derive(Clone, Debug)]
pub struct VmExec {
    pub uid: u32,
    pub gid: u32,
    /// `cgroup.procs` of the VM's group.
    pub procs: Option<PathBuf>,
    /// The program may lock all its memory: passthrough devices use DMA.
    pub pins: bool,
    /// Passed files; descriptors start at [`FIRST`].
    pub pass: Vec<PassedFile>,
    /// The folder of the VM.
    pub folder: PathBuf,
}

impl VmExec {
    /// Returns the arguments of `mesh-agent` before those of the program.
    pub fn args(&self) -> Vec<String> {
        let mut args =
            vec![VERB.to_owned(), format!("--uid={}", self.uid), format!("--gid={}", self.gid)];
        args.extend(self.procs.as_ref().map(|procs| format!("--procs={}", procs.display())));
        if self.pins {
            args.push("--pins".to_owned());
        }
        args.push(format!("--folder={}", self.folder.display()));
        args.extend(self.pass.iter().map(|pass| format!("--pass={}", pass.to_arg().display())));
        args.push("--".to_owned());
        args
    }

    /// Replaces this process by the program. Returns only after an error.
    pub fn enter(&self, program: &str, args: &[String]) -> Result<Infallible, String> {
        let failed =
            |operation: &'static str| move |error: io::Error| format!("{operation}: {error}");
        if let Some(procs) = &self.procs {
            // "0" stands for the writing process.
            fs::write(procs, "0").map_err(failed("cannot enter the control group of the VM"))?;
        }
        fs::write("/proc/self/oom_score_adj", OOM_SCORE)
            .map_err(failed("cannot set the OOM score"))?;
        let mut limits = vec![(Resource::Core, Some(0)), (Resource::Nofile, Some(OPEN_FILES))];
        if self.pins {
            limits.push((Resource::Memlock, None));
        }
        for (resource, limit) in limits {
            set_limit(resource, limit)
                .map_err(|error| format!("cannot set the limit {resource:?}: {error}"))?;
        }
        isolation::enter()?;
        isolation::mount_empty_folders(&self.folder)?;
        isolation::hide_system_log()?;
        // The descriptors must stay open until the program runs.
        let passed = self.open()?;
        let mut command = Command::new(program);
        command.args(args);
        if self.uid != 0 {
            set_no_new_privs(true).map_err(|error| format!("cannot set no_new_privs: {error}"))?;
            // Changing the user ID drops supplementary groups and all capabilities.
            command.uid(self.uid).gid(self.gid);
        }
        let error = command.exec();
        drop(passed);
        Err(format!("cannot run {program}: {error}"))
    }

    fn open(&self) -> Result<Vec<OwnedFd>, String> {
        let mut passed = Vec::new();
        for (number, pass) in (FIRST..).zip(&self.pass) {
            let failed =
                |error: io::Error| format!("cannot open {}: {error}", pass.to_arg().display());
            let opened = pass.open().map_err(failed)?;
            let moved =
                fcntl_dupfd_cloexec(&opened, number).map_err(|error| failed(error.into()))?;
            if moved.as_raw_fd() != number {
                return Err(format!("descriptor {number} is taken"));
            }
            fcntl_setfd(&moved, FdFlags::empty()).map_err(|error| failed(error.into()))?;
            passed.push(moved);
        }
        Ok(passed)
    }
}

/// Sets a limit. A container may not raise limits: then sets the highest permitted value.
fn set_limit(resource: Resource, limit: Option<u64>) -> rustix::io::Result<()> {
    let set = |limit| setrlimit(resource, Rlimit { current: limit, maximum: limit });
    match set(limit) {
        Err(rustix::io::Errno::PERM) => set(getrlimit(resource).maximum),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passed_file_is_parsed_from_its_argument() {
        for file in [
            PassedFile::Read("/a b".into()),
            PassedFile::Write("/dev/sda".into()),
            PassedFile::Listen("/x:y".into()),
        ] {
            assert_eq!(PassedFile::parse(&file.to_arg()), Ok(file));
        }
        assert!(
            PassedFile::parse("x".as_ref()).is_err() && PassedFile::parse("z:/a".as_ref()).is_err()
        );
    }
}
