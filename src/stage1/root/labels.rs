//! SELinux labels of the files that stage 1 and the overlay add to a root with a policy. The root's
//! own programs load the policy, and decide what the labels are: `restorecon` knows its patterns, substitutions
//! and order.
//!
//! The files of the root bring their labels as extended attributes. What the writable layer has gets
//! its labels here, copied folders too: a tmpfs forgets those that it got before the policy was loaded.

use crate::clock;
use rustix::{
    fs::{XattrFlags, getxattr, setxattr},
    io::Errno,
    mount::{UnmountFlags, mount_bind_recursive, unmount},
    process::{chdir, chroot},
};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufWriter, Read as _, Write as _},
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

/// Name of the process that enters the root and becomes a program of it.
pub const ROOT_PROGRAM_PROCESS: &str = "meshd-root-program";
const LABEL: &str = "security.selinux";
/// Maximum length of a label, in bytes.
const MAX_LABEL: usize = 4096;
const CONFIG: &str = "etc/selinux/config";
/// Programs of policycoreutils.
const RESTORECON: &str = "/usr/sbin/restorecon";
const LOAD_POLICY: &str = "/usr/sbin/load_policy";
const SELINUX: &str = "/sys/fs/selinux";
const ENFORCE: &str = "/sys/fs/selinux/enforce";
/// The list of files, and the messages of a program, until it has ended.
const LIST: &str = "/run/meshd-labels";
const MESSAGES: &str = "/run/meshd-labels.log";
/// Maximum number of files; an overlay has as many members.
const MAX_FILES: usize = 100_000;
/// Thousands of patterns are compiled: seconds on an emulated node.
const TIME_LIMIT: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(20);
/// Length of messages that are reported, in bytes.
const MAX_MESSAGES: u64 = 400;

/// The files cannot be labelled.
#[derive(Debug, thiserror::Error)]
pub enum LabelError {
    #[error("label the overlay: list its files: {0}")]
    List(io::Error),
    #[error(transparent)]
    Mount(super::MountError),
    #[error("read or set the mode of SELinux: {0}")]
    Mode(io::Error),
    #[error("label the root folder: {0}")]
    Folder(io::Error),
    #[error(
        "label the overlay: the root has an SELinux policy, and no {RESTORECON} or {LOAD_POLICY}"
    )]
    NoProgram,
    #[error("label the overlay: run a program of the root: {0}")]
    Run(io::Error),
    #[error("label the overlay: a program runs for more than {} s", TIME_LIMIT.as_secs())]
    TooSlow,
    #[error("label the overlay: {program}: {status}: {messages}")]
    Failed { program: String, status: ExitStatus, messages: String },
}

/// What `/etc/selinux/config` says.
#[derive(Debug, PartialEq, Eq)]
struct SelinuxConfig {
    is_enforcing: bool,
    policy: String,
}

/// Returns `None` if SELinux is off. The last line of a key counts, as in selinux_config(5).
fn parse_config(text: &str) -> Option<SelinuxConfig> {
    let value = |key: &str| {
        let mut lines = text.lines().rev();
        lines.find_map(|line| line.trim().strip_prefix(key)).map(str::trim)
    };
    let is_enforcing = match value("SELINUX=")?.to_ascii_lowercase().as_str() {
        "enforcing" => true,
        "permissive" => false,
        _ => return None,
    };
    let policy = value("SELINUXTYPE=").unwrap_or("targeted");
    let is_name = !policy.is_empty() && !policy.starts_with('.') && !policy.contains('/');
    is_name.then(|| SelinuxConfig { is_enforcing, policy: policy.to_owned() })
}

/// Whether the kernel runs with SELinux.
pub fn has_selinux() -> bool {
    Path::new(SELINUX).is_dir()
}

/// Labels the files of the writable layer, if the root has a policy. Returns their number.
///
/// Without labels, an enforcing system would run half: it does not start. A permissive one does,
/// and `complain` gets the reason.
pub fn label(
    new_root: &Path,
    layers: &super::Layers,
    complain: impl FnOnce(&LabelError),
) -> Result<Option<usize>, LabelError> {
    let config = fs::read_to_string(new_root.join(CONFIG)).unwrap_or_default();
    let Some(config) = parse_config(&config) else { return Ok(None) };
    let contexts = format!("/etc/selinux/{}/contexts/files/file_contexts", config.policy);
    if !new_root.join(&contexts[1..]).is_file() {
        return Ok(None);
    }
    match run_programs(new_root, layers) {
        Err(error) if !config.is_enforcing => {
            complain(&error);
            Ok(None)
        }
        labelled => labelled.map(Some),
    }
}

fn run_programs(new_root: &Path, layers: &super::Layers) -> Result<usize, LabelError> {
    if [RESTORECON, LOAD_POLICY].iter().any(|path| !new_root.join(&path[1..]).exists()) {
        return Err(LabelError::NoProgram);
    }
    let files = added_files(&layers.upper).map_err(LabelError::List)?;
    let list = write_list(Path::new(LIST), &files).map_err(LabelError::List)?;
    super::mounts::mount_selinux().map_err(LabelError::Mount)?;
    let bound = ["proc", "sys"].map(|name| new_root.join(name));
    for target in &bound {
        let source = Path::new("/").join(target.file_name().unwrap_or_default());
        mount_bind_recursive(source, target).map_err(|error| LabelError::Run(error.into()))?;
    }
    // The first program of the root loads the policy again, and enforces it if it is to be. Until
    // then nothing may be denied to `restorecon`: the kernel can begin with enforcing=1.
    let enforce = fs::read(ENFORCE).map_err(LabelError::Mode)?;
    let labelled = fs::write(ENFORCE, "0")
        .map_err(LabelError::Mode)
        .and_then(|()| run(new_root, &[LOAD_POLICY], Stdio::null()))
        .and_then(|()| label_root_folder(new_root, &layers.lower).map_err(LabelError::Folder))
        .and_then(|()| run(new_root, &[RESTORECON, "-F", "-0", "-f", "-"], list.into()))
        .and_then(|()| fs::write(ENFORCE, enforce).map_err(LabelError::Mode));
    for target in &bound {
        unmount(target, UnmountFlags::DETACH).map_err(|error| LabelError::Run(error.into()))?;
    }
    fs::remove_file(LIST).map_err(LabelError::List)?;
    labelled.map(|()| files.len())
}

/// The root folder of the writable layer gets the label of the one below.
fn label_root_folder(new_root: &Path, lower: &Path) -> io::Result<()> {
    let mut label = [0; MAX_LABEL];
    match getxattr(lower, LABEL, &mut label) {
        Ok(length) => Ok(setxattr(new_root, LABEL, &label[..length], XattrFlags::empty())?),
        // The image has no labels.
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Runs a program of the root with arguments in the root.
fn run(new_root: &Path, words: &[&str], input: Stdio) -> Result<(), LabelError> {
    let messages = File::create(MESSAGES).map_err(LabelError::Run)?;
    let child = Command::new("/proc/self/exe")
        .arg0(ROOT_PROGRAM_PROCESS)
        .arg(new_root)
        .args(words)
        .env_clear()
        .stdin(input)
        .stdout(Stdio::null())
        .stderr(messages)
        .spawn();
    let mut child = child.map_err(LabelError::Run)?;
    let begin = Instant::now();
    let status = loop {
        match child.try_wait().map_err(LabelError::Run)? {
            Some(status) => break status,
            None if begin.elapsed() > TIME_LIMIT => {
                child.kill().and_then(|()| child.wait()).map_err(LabelError::Run)?;
                return Err(LabelError::TooSlow);
            }
            None => clock::pause(POLL),
        }
    };
    let mut messages = Vec::new();
    let read = File::open(MESSAGES)
        .and_then(|file| file.take(MAX_MESSAGES).read_to_end(&mut messages))
        .and_then(|_| fs::remove_file(MESSAGES));
    read.map_err(LabelError::Run)?;
    if status.success() {
        return Ok(());
    }
    let program = words.first().copied().unwrap_or_default().to_owned();
    let messages = String::from_utf8_lossy(&messages).trim().replace('\n', "; ");
    Err(LabelError::Failed { program, status, messages })
}

/// Enters the root and becomes a program: the arguments are root, program and its arguments.
/// Returns only if that fails.
pub fn become_root_program(mut arguments: impl Iterator<Item = OsString>) -> io::Error {
    let (Some(root), Some(program)) = (arguments.next(), arguments.next()) else {
        return io::ErrorKind::InvalidInput.into();
    };
    match chroot(&*root).and_then(|()| chdir("/")) {
        Ok(()) => Command::new(program).args(arguments).exec(),
        Err(error) => error.into(),
    }
}

/// Returns all files, links and folders of the upper layer, without `/`.
fn added_files(upper: &Path) -> io::Result<Vec<PathBuf>> {
    let mut added = Vec::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(upper.join(&folder))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let path = folder.join(entry.file_name());
            if kind.is_dir() {
                folders.push(path.clone());
            }
            // Whiteouts are devices.
            if kind.is_dir() || kind.is_file() || kind.is_symlink() {
                added.push(Path::new("/").join(path));
            }
            if added.len() > MAX_FILES {
                return Err(io::Error::other(format!("more than {MAX_FILES} files")));
            }
        }
    }
    added.sort_unstable();
    Ok(added)
}

/// Writes paths that end with NUL, and opens the file for reading.
fn write_list(path: &Path, files: &[PathBuf]) -> io::Result<File> {
    let mut list = BufWriter::new(File::create(path)?);
    for file in files {
        list.write_all(file.as_os_str().as_bytes())?;
        list.write_all(b"\0")?;
    }
    list.flush()?;
    File::open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(is_enforcing: bool, policy: &str) -> Option<SelinuxConfig> {
        Some(SelinuxConfig { is_enforcing, policy: policy.to_owned() })
    }

    #[test]
    fn configuration_says_mode_and_policy_and_its_last_lines_count() {
        let text = "# SELINUX=disabled\nSELINUX=permissive\n SELINUX=Enforcing \nSELINUXTYPE=mls\n";
        assert_eq!(parse_config(text), config(true, "mls"));
        assert_eq!(parse_config("SELINUX=permissive\n"), config(false, "targeted"));
        for off in ["", "SELINUX=disabled\nSELINUXTYPE=targeted\n", "SELINUXTYPE=targeted\n"] {
            assert_eq!(parse_config(off), None, "{off}");
        }
        for policy in ["", "..", "../../tmp", "a/b"] {
            let text = format!("SELINUX=enforcing\nSELINUXTYPE={policy}\n");
            assert_eq!(parse_config(&text), None, "{text}");
        }
    }

    #[test]
    fn files_links_and_folders_of_the_writable_layer_are_labelled() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("etc/meshd")).unwrap();
        fs::write(dir.path().join("etc/shadow"), "").unwrap();
        fs::write(dir.path().join("etc/meshd/new\nline"), "").unwrap();
        std::os::unix::fs::symlink("/proc", dir.path().join("etc/link")).unwrap();
        let added = added_files(dir.path()).unwrap();
        let expected = ["/etc", "/etc/link", "/etc/meshd", "/etc/meshd/new\nline", "/etc/shadow"];
        assert_eq!(added, expected.map(PathBuf::from));
        let list = dir.path().join("list");
        let mut written = String::new();
        write_list(&list, &added).unwrap().read_to_string(&mut written).unwrap();
        assert_eq!(written, "/etc\0/etc/link\0/etc/meshd\0/etc/meshd/new\nline\0/etc/shadow\0");
    }

    #[test]
    fn root_without_policy_is_not_labelled() {
        let dir = tempfile::tempdir().unwrap();
        let layers = super::super::Layers { upper: "/nowhere".into(), lower: "/nowhere".into() };
        let label = || label(dir.path(), &layers, |error| panic!("{error}"));
        assert!(matches!(label(), Ok(None)));
        fs::create_dir_all(dir.path().join("etc/selinux")).unwrap();
        fs::write(dir.path().join(CONFIG), "SELINUX=enforcing\n").unwrap();
        assert!(matches!(label(), Ok(None)), "it has no file contexts");
        let contexts = dir.path().join("etc/selinux/targeted/contexts/files");
        fs::create_dir_all(&contexts).unwrap();
        fs::write(contexts.join("file_contexts"), "").unwrap();
        assert!(matches!(label(), Err(LabelError::NoProgram)));
    }

    #[test]
    fn permissive_root_without_programs_starts_with_a_complaint() {
        let dir = tempfile::tempdir().unwrap();
        let contexts = dir.path().join("etc/selinux/default/contexts/files");
        fs::create_dir_all(&contexts).unwrap();
        fs::write(contexts.join("file_contexts"), "").unwrap();
        let config = "SELINUX=permissive\nSELINUXTYPE=default\n";
        fs::write(dir.path().join(CONFIG), config).unwrap();
        let layers = super::super::Layers { upper: "/nowhere".into(), lower: "/nowhere".into() };
        let mut complaint = String::new();
        let labelled = label(dir.path(), &layers, |error| complaint = error.to_string());
        assert!(matches!(labelled, Ok(None)));
        assert!(complaint.contains("no /usr/sbin/restorecon"), "{complaint}");
    }
}
