//! The container runtime crun: where it is, its arguments, and the process that becomes it.

use super::replica_paths::ReplicaPaths;
use crate::system::{Tree, isolation, limits};
use meshd_proto::container::{MAX_RUNTIME_TEXT, ReplicaId};
use rustix::{
    mount::mount_bind,
    process::{Resource, ioctl_tiocsctty, setsid},
};
use std::{
    convert::Infallible,
    ffi::OsString,
    fs, io,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// The hidden verb of mesh-agent.
pub const VERB: &str = "container-enter";
/// Exit code if the runtime cannot be executed, as in shells.
pub const CANNOT_RUN: u8 = 127;
/// Option of crun before the path of its log.
const LOG_OPTION: &str = "--log";
/// Where crun expects the control groups.
const CGROUPS: &str = "/sys/fs/cgroup";
/// Folders with programs; the first folder that has crun wins.
const FOLDERS: [&str; 6] =
    ["/opt/bundles/crun/bin", "/usr/local/bin", "/usr/bin", "/usr/sbin", "/bin", "/sbin"];

/// The container runtime of this node.
#[derive(Clone, Debug)]
pub struct ContainerRuntime {
    pub program: PathBuf,
    /// Folder of its state.
    pub state: PathBuf,
}

/// Returns the path of crun.
pub fn find(tree: &Tree) -> Option<PathBuf> {
    let mut paths = FOLDERS.iter().map(|folder| tree.path(&format!("{folder}/crun")));
    paths.find(|path| path.is_file())
}

/// Returns name and version of the runtime: `crun 1.8.1`. The program is asked once.
pub fn name_and_version(tree: &Tree) -> Option<String> {
    static ANSWER: OnceLock<Option<String>> = OnceLock::new();
    let program = find(tree)?;
    let ask = || {
        let asked = Command::new(program).arg("--version").stdin(Stdio::null()).output().ok()?;
        asked.status.success().then(|| parse_version(&String::from_utf8_lossy(&asked.stdout)))?
    };
    ANSWER.get_or_init(ask).clone()
}

/// Parses `crun version 1.8.1`.
fn parse_version(text: &str) -> Option<String> {
    let version = text.lines().next()?.strip_prefix("crun version ")?.trim();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ".-+~".contains(c);
    let name = format!("crun {}", version.chars().filter(|c| is_plain(*c)).collect::<String>());
    (name.len() <= MAX_RUNTIME_TEXT).then_some(name)
}

impl ContainerRuntime {
    fn arguments(&self) -> Vec<OsString> {
        let options = ["--cgroup-manager=disabled", "--root"].map(OsString::from);
        let program = [self.program.clone().into()];
        program.into_iter().chain(options).chain([self.state.clone().into()]).collect()
    }

    /// Returns the arguments that start the program of a replica.
    pub fn run(&self, replica: &ReplicaId, paths: &ReplicaPaths) -> Vec<OsString> {
        let mut arguments = self.arguments();
        arguments.push(LOG_OPTION.into());
        arguments.push(paths.runtime_log().into());
        arguments.extend(["run", "--detach", "--pid-file"].map(OsString::from));
        arguments.push(paths.pid().into());
        arguments.push("--bundle".into());
        arguments.push(paths.folder().into());
        arguments.push(replica.to_string().into());
        arguments
    }

    /// Returns the arguments that start another program in a replica. `process` is a file with its
    /// description.
    pub fn exec(&self, replica: &ReplicaId, process: &Path) -> Vec<OsString> {
        let mut arguments = self.arguments();
        arguments.extend(["exec", "--process"].map(OsString::from));
        arguments.push(process.into());
        arguments.push(replica.to_string().into());
        arguments
    }

    /// Returns the arguments that remove what the runtime knows of a replica.
    pub fn delete(&self, replica: &ReplicaId) -> Vec<OsString> {
        let mut arguments = self.arguments();
        arguments.extend(["delete", "--force"].map(OsString::from));
        arguments.push(replica.to_string().into());
        arguments
    }
}

/// Returns a command that enters a control group and becomes the runtime; the caller appends the
/// arguments. `takes_terminal`: its input is a terminal.
pub fn enter(procs: &Path, hierarchy: &Path, takes_terminal: bool) -> Command {
    // An upgrade may have replaced the file of the agent. This path is the running program.
    let mut command = Command::new("/proc/self/exe");
    command.arg(VERB).arg("--procs").arg(procs).arg("--hierarchy").arg(hierarchy);
    if takes_terminal {
        command.arg("--terminal");
    }
    command.arg("--").env_clear();
    command
}

/// Becomes the runtime. Returns only an error, which is in the log of the runtime, too: nobody reads
/// the output of a program that did not start.
pub fn become_runtime(
    procs: &Path,
    hierarchy: &Path,
    takes_terminal: bool,
    argv: &[OsString],
) -> Result<Infallible, String> {
    enter_and_execute(procs, hierarchy, takes_terminal, argv).inspect_err(|message| {
        if let Some(log) = argv.iter().skip_while(|word| *word != LOG_OPTION).nth(1) {
            let _ = fs::write(log, message);
        }
    })
}

fn enter_and_execute(
    procs: &Path,
    hierarchy: &Path,
    takes_terminal: bool,
    argv: &[OsString],
) -> Result<Infallible, String> {
    let failed = |step: &'static str| move |error: io::Error| format!("cannot {step}: {error}");
    let (program, arguments) = argv.split_first().ok_or("no program")?;
    // "0" means the writing process.
    fs::write(procs, "0").map_err(failed("enter the control group of the container"))?;
    if takes_terminal {
        setsid().map_err(|error| format!("cannot create a session: {error}"))?;
        ioctl_tiocsctty(io::stdin())
            .map_err(|error| format!("cannot take the terminal: {error}"))?;
    }
    isolation::enter()?;
    show_hierarchy(hierarchy).map_err(failed("show the control groups"))?;
    limits::set(&[(Resource::Core, Some(0)), (Resource::Nofile, Some(limits::OPEN_FILES))])?;
    Err(format!(
        "cannot run the container runtime: {}",
        Command::new(program).args(arguments).exec()
    ))
}

/// Shows the control groups where crun expects them, in the mount namespace of this process. crun
/// refuses a mixture of both versions.
fn show_hierarchy(hierarchy: &Path) -> io::Result<()> {
    if hierarchy != Path::new(CGROUPS) {
        mount_bind(hierarchy, CGROUPS)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_of_the_runtime_is_one_plain_line() {
        let text = "crun version 1.8.1\ncommit: f8a096be060b22ccd3d5f3ebe44108517fbf6c30\n";
        assert_eq!(parse_version(text).as_deref(), Some("crun 1.8.1"));
        assert_eq!(parse_version("crun version 1\u{1b}[31m.2").as_deref(), Some("crun 131m.2"));
        assert_eq!(parse_version(&format!("crun version {}", "1".repeat(99))), None);
        assert_eq!(parse_version("runc version 1.1"), None);
        assert_eq!(parse_version(""), None);
    }
}
