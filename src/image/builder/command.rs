//! Runs external programs without a shell and keeps the end of their output for errors.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Lines of a failed program's last words that an error shows.
const LAST_WORDS: usize = 8;

/// A program that a build needs, and the Debian package that has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Name of the program.
    pub program: &'static str,
    /// Debian package.
    pub package: &'static str,
}

/// Every program that a build runs.
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

/// Every program that an import runs.
pub const IMPORT_TOOLS: [Tool; 7] = [
    Tool { program: "curl", package: "curl" },
    Tool { program: "unsquashfs", package: "squashfs-tools" },
    Tool { program: "cpio", package: "cpio" },
    Tool { program: "gzip", package: "gzip" },
    Tool { program: "tar", package: "tar" },
    Tool { program: "openssl", package: "openssl" },
    Tool { program: "unshare", package: "util-linux" },
];

/// Every program that the build of a bundle runs.
pub const BUNDLE_TOOLS: [Tool; 4] = [
    Tool { program: "apt-get", package: "apt" },
    Tool { program: "apt-cache", package: "apt" },
    Tool { program: "dpkg-deb", package: "dpkg" },
    Tool { program: "mksquashfs", package: "squashfs-tools" },
];

/// A program that did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// It could not be started.
    #[error("cannot run `{program}`")]
    Start { program: String, source: std::io::Error },
    /// It failed.
    #[error("`{line}` failed ({status}){}{said}", if .said.is_empty() { "" } else { ":\n" })]
    Failed { line: String, status: std::process::ExitStatus, said: String },
}

/// The tools that a build needs and that are not installed.
pub fn missing_tools() -> Vec<Tool> {
    missing(&TOOLS)
}

/// Those of some tools that are not installed.
pub fn missing(tools: &[Tool]) -> Vec<Tool> {
    let folders: Vec<PathBuf> = std::env::split_paths(&search_path()).collect();
    let there = |tool: &Tool| folders.iter().any(|folder| folder.join(tool.program).is_file());
    tools.iter().filter(|tool| !there(tool)).copied().collect()
}

/// PATH, and where a normal user's PATH lacks the administrator's tools.
fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_default();
    path.push(":/usr/sbin:/sbin:/usr/bin:/bin");
    path
}

/// One command.
pub struct Run {
    command: Command,
}

impl Run {
    /// A program. Its input is empty and its messages are in English.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        let mut command = Command::new(program);
        command.stdin(Stdio::null()).env("PATH", search_path()).env("LC_ALL", "C");
        Run { command }
    }

    /// A program that must see root's files as root's: as it is for root, else as root of a user namespace.
    pub fn as_root(program: impl AsRef<OsStr>) -> Self {
        if rustix::process::geteuid().is_root() {
            return Run::new(program);
        }
        Run::new("unshare").arg("--user").arg("--map-root-user").arg("--").arg(program)
    }

    /// A program inside a tree.
    pub fn inside(tree: &Path, program: &str) -> Self {
        let mut run = Run::as_root("chroot").arg(tree).arg(program);
        run.command.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env_remove("TMPDIR");
        run
    }

    /// One argument.
    pub fn arg(mut self, arg: impl AsRef<OsStr>) -> Self {
        self.command.arg(arg);
        self
    }

    /// Several arguments.
    pub fn args<A: AsRef<OsStr>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.command.args(args);
        self
    }

    pub fn at(mut self, folder: &Path) -> Self {
        self.command.current_dir(folder);
        self
    }

    /// A variable of its environment.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub fn input(mut self, file: File) -> Self {
        self.command.stdin(file);
        self
    }

    /// Runs it; its output is discarded.
    ///
    /// # Errors
    /// It could not be started, or failed.
    pub fn done(self) -> Result<(), CommandError> {
        self.output().map(|_| ())
    }

    /// Runs it with its output in a file.
    ///
    /// # Errors
    /// It could not be started, or failed.
    pub fn into_file(mut self, file: File) -> Result<(), CommandError> {
        self.command.stdout(file);
        self.done()
    }

    /// Runs it and gives its output.
    ///
    /// # Errors
    /// It could not be started, or failed.
    pub fn output(mut self) -> Result<String, CommandError> {
        let output = self.command.stderr(Stdio::piped()).output().map_err(|source| {
            let program = self.command.get_program().to_string_lossy().into_owned();
            CommandError::Start { program, source }
        })?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = if output.stderr.is_empty() { &output.stdout } else { &output.stderr };
        let said = String::from_utf8_lossy(said);
        let lines: Vec<&str> = said.lines().collect();
        let last = lines[lines.len().saturating_sub(LAST_WORDS)..].join("\n");
        Err(CommandError::Failed { line: self.line(), status: output.status, said: last })
    }

    /// The command as an error shows it: long argument lists are cut.
    fn line(&self) -> String {
        const SHOWN: usize = 8;
        let words = std::iter::once(self.command.get_program()).chain(self.command.get_args());
        let mut line: Vec<_> = words.take(SHOWN).map(|word| word.to_string_lossy().into_owned()).collect();
        if self.command.get_args().count() >= SHOWN {
            line.push("...".to_owned());
        }
        line.join(" ")
    }
}
