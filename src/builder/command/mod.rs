//! Runs external programs without a shell and keeps the end of their output for errors.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `interrupt` | ends the builds of this process with the programs that they run |

pub(crate) mod interrupt;

use interrupt::RunningProgram;
use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    fs::File,
    path::{Path, PathBuf},
    process::{Child, ChildStdin, Command, Output, Stdio},
    thread,
};

/// Number of output lines that an error shows.
const SHOWN_LINES: usize = 8;

/// A required program and its Debian package.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    pub program: &'static str,
    pub package: &'static str,
}

/// Programs of an image build.
pub const TOOLS: [Tool; 16] = [
    Tool { program: "python3", package: "python3" },
    Tool { program: "qemu-img", package: "qemu-utils" },
    Tool { program: "debugfs", package: "e2fsprogs" },
    Tool { program: "apt-get", package: "apt" },
    Tool { program: "apt-cache", package: "apt" },
    Tool { program: "dpkg-deb", package: "dpkg" },
    Tool { program: "depmod", package: "kmod" },
    Tool { program: "mksquashfs", package: "squashfs-tools" },
    Tool { program: "cpio", package: "cpio" },
    Tool { program: "gzip", package: "gzip" },
    Tool { program: "zstd", package: "zstd" },
    Tool { program: "tar", package: "tar" },
    Tool { program: "openssl", package: "openssl" },
    Tool { program: "chroot", package: "coreutils" },
    Tool { program: "cp", package: "coreutils" },
    Tool { program: "unshare", package: "util-linux" },
];

/// Programs of an import.
pub const IMPORT_TOOLS: [Tool; 9] = [
    Tool { program: "curl", package: "curl" },
    Tool { program: "env", package: "coreutils" },
    Tool { program: "prlimit", package: "util-linux" },
    Tool { program: "unsquashfs", package: "squashfs-tools" },
    Tool { program: "cpio", package: "cpio" },
    Tool { program: "gzip", package: "gzip" },
    Tool { program: "tar", package: "tar" },
    Tool { program: "openssl", package: "openssl" },
    Tool { program: "unshare", package: "util-linux" },
];

/// Programs of a build of kind `root`.
pub const ROOT_TOOLS: [Tool; 16] = [
    Tool { program: "mmdebstrap", package: "mmdebstrap" },
    Tool { program: "skopeo", package: "skopeo" },
    Tool { program: "mksquashfs", package: "squashfs-tools" },
    Tool { program: "unsquashfs", package: "squashfs-tools" },
    Tool { program: "chroot", package: "coreutils" },
    Tool { program: "veritysetup", package: "cryptsetup-bin" },
    Tool { program: "depmod", package: "kmod" },
    Tool { program: "modinfo", package: "kmod" },
    Tool { program: "cpio", package: "cpio" },
    Tool { program: "gzip", package: "gzip" },
    Tool { program: "zstd", package: "zstd" },
    Tool { program: "xz", package: "xz-utils" },
    Tool { program: "tar", package: "tar" },
    Tool { program: "prlimit", package: "util-linux" },
    Tool { program: "rm", package: "coreutils" },
    Tool { program: "unshare", package: "util-linux" },
];

/// Programs that import the image of a container.
pub const CONTAINER_TOOLS: [Tool; 8] = [
    Tool { program: "skopeo", package: "skopeo" },
    Tool { program: "mksquashfs", package: "squashfs-tools" },
    Tool { program: "gzip", package: "gzip" },
    Tool { program: "zstd", package: "zstd" },
    Tool { program: "xz", package: "xz-utils" },
    Tool { program: "tar", package: "tar" },
    Tool { program: "prlimit", package: "util-linux" },
    Tool { program: "unshare", package: "util-linux" },
];

/// Programs of a bundle build.
pub const BUNDLE_TOOLS: [Tool; 4] = [
    Tool { program: "apt-get", package: "apt" },
    Tool { program: "apt-cache", package: "apt" },
    Tool { program: "dpkg-deb", package: "dpkg" },
    Tool { program: "mksquashfs", package: "squashfs-tools" },
];

#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    #[error("cannot run `{program}`")]
    Start { program: String, source: std::io::Error },
    #[error("`{line}` failed ({status}){}{output_end}", if .output_end.is_empty() { "" } else { ":\n" })]
    Failed { line: String, status: std::process::ExitStatus, output_end: String },
    /// [`interrupt::interrupt`] was called.
    #[error("interrupted")]
    Interrupted,
}

/// Required programs are not installed.
#[derive(Debug, thiserror::Error)]
#[error("programs are missing: {}", programs(.0))]
pub struct MissingTools(pub Vec<Tool>);

meshd_types::hints!(MissingTools {
    MissingTools(tools) => "run `apt-get install {}`", packages(tools);
});

fn programs(tools: &[Tool]) -> String {
    tools.iter().map(|tool| tool.program).collect::<Vec<_>>().join(", ")
}

fn packages(tools: &[Tool]) -> String {
    let packages: BTreeSet<&str> = tools.iter().map(|tool| tool.package).collect();
    Vec::from_iter(packages).join(" ")
}

/// This host does not permit users to create user namespaces.
#[derive(Debug, thiserror::Error)]
#[error("building as a normal user needs user namespaces, and this machine does not permit them")]
pub struct NamespacesDenied(#[source] CommandError);

meshd_types::hints!(NamespacesDenied {
    _ => "build as root, or permit them (sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000)";
});

/// This host does not map the users of a system into a user namespace.
#[derive(Debug, thiserror::Error)]
#[error("building a root as a normal user needs subordinate users")]
pub struct MappedNamespacesDenied(#[source] CommandError);

meshd_types::hints!(MappedNamespacesDenied {
    _ => "build as root, or install uidmap and add a line for the user to /etc/subuid and /etc/subgid";
});

/// Returns an error with the tools that are not installed.
pub fn require_tools(tools: &[Tool]) -> Result<(), MissingTools> {
    let folders: Vec<PathBuf> = std::env::split_paths(&search_path()).collect();
    let is_installed =
        |tool: &Tool| folders.iter().any(|folder| folder.join(tool.program).is_file());
    let missing: Vec<Tool> = tools.iter().filter(|tool| !is_installed(tool)).copied().collect();
    if missing.is_empty() { Ok(()) } else { Err(MissingTools(missing)) }
}

/// Returns an error if this user may not create user namespaces, which [`ToolCommand::as_root`]
/// needs.
pub fn require_namespaces() -> Result<(), NamespacesDenied> {
    ToolCommand::as_root("true").run().map_err(NamespacesDenied)
}

/// Returns an error if this user may not create user namespaces with all users of a system, which
/// [`ToolCommand::as_mapped_root`] needs.
pub fn require_mapped_namespaces() -> Result<(), MappedNamespacesDenied> {
    ToolCommand::as_mapped_root("true").run().map_err(MappedNamespacesDenied)
}

/// PATH with the administrator's folders, which a user's PATH may lack.
fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

/// A command to run.
pub struct ToolCommand {
    command: Command,
    /// It removes files of a build, so it runs after an interrupt, too.
    is_removal: bool,
}

impl ToolCommand {
    /// Creates a command with empty input and English messages.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).env("PATH", search_path()).env("LC_ALL", "C");
        ToolCommand { command, is_removal: false }
    }

    /// Lets the command run after an interrupt, because it removes files of a build.
    pub fn removes(mut self) -> Self {
        self.is_removal = true;
        self
    }

    /// Creates a command that sees root's files as root's: as root, or as root of a user namespace.
    pub fn as_root(program: impl AsRef<OsStr>) -> Self {
        if rustix::process::geteuid().is_root() {
            return ToolCommand::new(program);
        }
        ToolCommand::new("unshare").arg("--user").arg("--map-root-user").arg("--").arg(program)
    }

    /// Creates a command that sees and sets the owners of a whole system: as root, or as root of a
    /// user namespace with the subordinate users of this user.
    pub fn as_mapped_root(program: impl AsRef<OsStr>) -> Self {
        if rustix::process::geteuid().is_root() {
            return ToolCommand::new(program);
        }
        ToolCommand::new("unshare")
            .args(["--user", "--map-root-user", "--map-auto", "--"])
            .arg(program)
    }

    /// Creates a command inside a tree.
    pub fn inside(tree: &Path, program: &str) -> Self {
        let mut command = ToolCommand::as_root("chroot").arg(tree).arg(program);
        command.command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env_remove("TMPDIR");
        command
    }

    /// Creates a command that unpacks a tar, plain or gzip-compressed, into a folder.
    pub fn unpack_tar(archive: &Path, folder: &Path) -> Self {
        let tar = ToolCommand::new("tar").args([
            "--no-same-owner",
            "--warning=no-unknown-keyword",
            "-xf",
        ]);
        tar.arg(archive).arg("-C").arg(folder)
    }

    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub fn current_dir(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn input(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    /// Runs the command and discards its output.
    pub fn run(self) -> Result<(), CommandError> {
        self.output().map(drop)
    }

    /// Runs the command and writes its output to a file.
    pub fn into_file(mut self, file: File) -> Result<(), CommandError> {
        self.command.stdout(file);
        self.finish().map(drop)
    }

    /// Runs the command with the input that `write` produces.
    pub fn fed_by(mut self, write: impl FnOnce(ChildStdin)) -> Result<(), CommandError> {
        self.command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let (mut child, _running) = self.start()?;
        let input = child.stdin.take().expect("its input is a pipe");
        let output = thread::scope(|scope| {
            let output = scope.spawn(|| child.wait_with_output());
            write(input);
            output.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        let output = output.map_err(|source| self.not_started(source))?;
        self.result(&output).map(drop)
    }

    /// Runs the command and returns its output.
    pub fn output(mut self) -> Result<String, CommandError> {
        self.command.stdout(Stdio::piped());
        self.finish()
    }

    fn finish(mut self) -> Result<String, CommandError> {
        self.command.stderr(Stdio::piped());
        let (child, _running) = self.start()?;
        let output = child.wait_with_output().map_err(|source| self.not_started(source))?;
        self.result(&output)
    }

    fn start(&mut self) -> Result<(Child, RunningProgram), CommandError> {
        match interrupt::start(&mut self.command, self.is_removal) {
            Ok(started) => started.ok_or(CommandError::Interrupted),
            Err(source) => Err(self.not_started(source)),
        }
    }

    fn not_started(&self, source: std::io::Error) -> CommandError {
        let program = self.command.get_program().to_string_lossy().into_owned();
        CommandError::Start { program, source }
    }

    fn result(&self, output: &Output) -> Result<String, CommandError> {
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        if interrupt::is_interrupted() {
            return Err(CommandError::Interrupted);
        }
        let output_end = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
        let output_end = String::from_utf8_lossy(output_end);
        let lines: Vec<&str> = output_end.lines().collect();
        let last = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
        Err(CommandError::Failed { line: self.line(), status: output.status, output_end: last })
    }

    /// Returns the command for an error message; long argument lists are truncated.
    fn line(&self) -> String {
        const SHOWN: usize = 8;
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        let mut line: Vec<_> =
            words.take(SHOWN).map(|word| word.to_string_lossy().into_owned()).collect();
        if self.command.get_args().count() >= SHOWN {
            line.push("...".to_owned());
        }
        line.join(" ")
    }
}
