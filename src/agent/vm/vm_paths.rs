//! Paths of the files of one VM. All are in one folder; removing it removes the VM.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};
use tokio::task::spawn_blocking;

use crate::system::user_ids::VMS;
use meshd_proto::vm::MAX_FAILURE_LINES;
use meshd_types::{SystemUuid, truncate};

/// Maximum length of the path of a Unix socket (unix(7)).
const MAX_SOCKET_PATH: usize = 107;
/// Bytes at the end of a log that are retained or read.
const LOG_TAIL: u64 = 8 * 1024;
/// A longer log is trimmed, in bytes.
const MAX_LOG: u64 = 1 << 20;
/// Maximum bytes of a reported log line.
const MAX_LOG_LINE: usize = 400;

#[derive(Clone, Debug)]
pub struct VmPaths {
    folder: PathBuf,
}

impl VmPaths {
    /// `vms_dir` is the folder of all VMs.
    pub fn new(vms_dir: &Path, uuid: SystemUuid) -> Self {
        VmPaths { folder: vms_dir.join(uuid.to_string()) }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Specification and stored state.
    pub fn record(&self) -> PathBuf {
        self.folder.join("vm.json")
    }

    /// Ownership markers of disks.
    pub fn ownership_markers(&self) -> PathBuf {
        self.folder.join("disks.json")
    }

    /// QEMU's control socket.
    pub fn qmp(&self) -> PathBuf {
        self.folder.join("qmp.sock")
    }

    /// Path for QEMU's chardev `pipe`, which appends `.in` and `.out` ([`VmPaths::serial_in`],
    /// [`VmPaths::serial_out`]).
    pub fn serial(&self) -> PathBuf {
        self.folder.join("serial")
    }

    /// FIFO for console input.
    pub fn serial_in(&self) -> PathBuf {
        self.folder.join("serial.in")
    }

    /// A link to /dev/null: console output is in [`VmPaths::console`].
    pub fn serial_out(&self) -> PathBuf {
        self.folder.join("serial.out")
    }

    /// Process ID, written by QEMU.
    pub fn pid(&self) -> PathBuf {
        self.folder.join("qemu.pid")
    }

    /// QEMU's log.
    pub fn log(&self) -> PathBuf {
        self.folder.join("qemu.log")
    }

    /// Console output, written by QEMU.
    pub fn console(&self) -> PathBuf {
        self.folder.join("console.log")
    }

    /// UEFI variables.
    pub fn vars(&self) -> PathBuf {
        self.folder.join("vars.fd")
    }

    /// NoCloud image.
    pub fn seed(&self) -> PathBuf {
        self.folder.join("seed.iso")
    }

    /// Folder of the SSH client's user: the private key for the guest, and the guest's host key.
    pub fn relay(&self) -> PathBuf {
        self.folder.join("relay")
    }

    /// Private key that the guest accepts by its cloud-init data.
    pub fn relay_key(&self) -> PathBuf {
        self.relay().join("key")
    }

    /// Host key that the guest showed first.
    pub fn relay_known_hosts(&self) -> PathBuf {
        self.relay().join("known_hosts")
    }

    /// Public half of [`VmPaths::relay_key`]. Root owns it, unlike the folder.
    pub fn relay_public(&self) -> PathBuf {
        self.folder.join("relay.pub")
    }

    /// `/etc/passwd` of the SSH client.
    pub fn relay_passwd(&self) -> PathBuf {
        self.folder.join("relay.passwd")
    }

    /// Layer with the guest's changes to a volume.
    pub fn layer(&self, index: usize) -> PathBuf {
        self.folder.join(format!("volume{index}.qcow2"))
    }

    /// Returns the existing layers.
    pub fn layers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let is_layer =
            |path: &PathBuf| path.extension().is_some_and(|extension| extension == "qcow2");
        entries.map(|entry| entry.path()).filter(is_layer).collect()
    }

    /// Folder with the state of the TPM.
    pub fn tpm_state(&self) -> PathBuf {
        self.folder.join("tpm")
    }

    /// Option of swtpm with its control socket. The agent finds the process by this option.
    pub fn tpm_control(&self) -> String {
        format!("type=unixio,path={}", self.tpm_socket().display())
    }

    /// Control socket of the TPM. The VM's user makes it, so it is in the folder of that user.
    pub fn tpm_socket(&self) -> PathBuf {
        self.tpm_state().join("sock")
    }

    /// User ID of the VM, as text.
    pub fn user_file(&self) -> PathBuf {
        self.folder.join("user")
    }

    /// Returns the user ID of the VM, if it has one.
    pub fn user(&self) -> Option<u32> {
        let text = fs::read_to_string(self.user_file()).ok()?;
        text.trim().parse().ok().filter(|user| VMS.contains(user))
    }

    /// Makes the folder. The VM's user owns files in it, so others may traverse it, but only root
    /// may list or change it.
    pub fn make(&self) -> io::Result<()> {
        let longest = self.qmp().as_os_str().len();
        if longest > MAX_SOCKET_PATH {
            let message =
                format!("socket path below {} is too long: {longest} bytes", self.folder.display());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        DirBuilder::new().recursive(true).mode(0o711).create(&self.folder)?;
        for folder in [Some(self.folder.as_path()), self.folder.parent()].into_iter().flatten() {
            fs::set_permissions(folder, fs::Permissions::from_mode(0o711))?;
        }
        Ok(())
    }

    /// Removes the folder. Succeeds if it does not exist.
    pub async fn remove(&self) -> Result<(), String> {
        let folder = self.folder.clone();
        // Removing large files takes long, and the agent has one thread.
        let removed =
            spawn_blocking(move || fs::remove_dir_all(folder)).await.map_err(io::Error::other);
        match removed.and_then(|result| result) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(format!("cannot remove {}: {error}", self.folder.display()))
            }
            _ => Ok(()),
        }
    }

    /// Trims the log to its last bytes: a guest can make QEMU repeat a message forever. QEMU has
    /// the file open in append mode.
    pub fn trim_log(&self) {
        let trim = || -> io::Result<()> {
            if fs::metadata(self.log())?.len() <= MAX_LOG {
                return Ok(());
            }
            let tail = self.log_tail()?;
            let mut file = OpenOptions::new().append(true).open(self.log())?;
            file.set_len(0)?;
            file.write_all(&tail)
        };
        if let Err(error) = trim()
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(%error, "cannot trim the log of QEMU");
        }
    }

    fn log_tail(&self) -> io::Result<Vec<u8>> {
        let mut file = File::open(self.log())?;
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL)))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the last lines of the log without control characters.
    pub fn last_log_lines(&self) -> Vec<String> {
        let text = String::from_utf8_lossy(&self.log_tail().unwrap_or_default()).into_owned();
        let clean = |line: &str| {
            let line = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
            truncate(line, MAX_LOG_LINE).trim_end().to_owned()
        };
        let lines: Vec<String> = text.lines().map(clean).filter(|line| !line.is_empty()).collect();
        lines[lines.len().saturating_sub(MAX_FAILURE_LINES)..].to_vec()
    }
}

/// Removes a file. Succeeds if it does not exist.
pub fn remove_file(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the VMs that have a folder.
pub fn all(folder: &Path) -> Vec<SystemUuid> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<SystemUuid> =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    found.sort_unstable();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: SystemUuid = SystemUuid([0x11; 16]);

    fn paths() -> (tempfile::TempDir, VmPaths) {
        let dir = tempfile::tempdir().expect("a folder");
        let files = VmPaths::new(dir.path(), UUID);
        (dir, files)
    }

    #[tokio::test]
    async fn folder_is_made_and_removed_idempotently() {
        let (dir, files) = paths();
        files.make().expect("made");
        files.make().expect("it may exist");
        fs::write(dir.path().join("other"), "").expect("written");
        assert_eq!(all(dir.path()), [UUID]);
        files.remove().await.expect("removed");
        files.remove().await.expect("nothing to remove");
        assert_eq!(all(dir.path()), []);
        assert!(
            VmPaths::new(&dir.path().join("x".repeat(100)), UUID).make().is_err(),
            "too long for a socket"
        );
    }

    #[test]
    fn trimmed_log_keeps_its_last_lines() {
        let (_dir, files) = paths();
        files.trim_log();
        files.make().expect("made");
        let mut qemu =
            OpenOptions::new().create(true).append(true).open(files.log()).expect("opened");
        let line = format!("{}\n", "x".repeat(99));
        qemu.write_all(line.repeat(20_000).as_bytes()).expect("written");
        files.trim_log();
        let length = || fs::metadata(files.log()).expect("there").len();
        assert_eq!(length(), LOG_TAIL);
        qemu.write_all(b"the last\n").expect("written");
        files.trim_log();
        assert_eq!(
            (length(), files.last_log_lines().pop().as_deref()),
            (LOG_TAIL + 9, Some("the last"))
        );
    }

    #[test]
    fn last_log_lines_are_bounded_and_have_no_control_characters() {
        let (_dir, files) = paths();
        assert_eq!(files.last_log_lines(), Vec::<String>::new());
        files.make().expect("made");
        let lines: Vec<String> = (0..2000).map(|n| format!("line {n}\x1b[31m  ")).collect();
        fs::write(files.log(), format!("{}\n\n{}\n", lines.join("\n"), "é".repeat(1000)))
            .expect("written");
        let lines = files.last_log_lines();
        assert_eq!(lines.len(), MAX_FAILURE_LINES);
        assert_eq!(lines[MAX_FAILURE_LINES - 2], "line 1999 [31m");
        assert!(lines[MAX_FAILURE_LINES - 1].len() <= MAX_LOG_LINE);
    }
}
