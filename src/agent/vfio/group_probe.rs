//! Probes an IOMMU group by adding it to a VFIO container, and writes to sysfs.

use crate::{files::remove_if_exists, system::Tree};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::{self, File},
    io,
    path::Path,
    sync::Arc,
    thread::sleep,
    time::{Duration, Instant},
};
use vfio_ioctls::{VfioContainer, VfioDevice, VfioError};

/// Folder of record and locks.
pub const FOLDER: &str = "/run/mesh-vfio";
/// Name of a PCI function that is in no group.
const NO_FUNCTION: &str = "none";
/// Timeout of a lock that another process holds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The error of a group that a container does not accept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// Another process has it open.
    Busy,
    /// A VM is starting with it.
    Starting,
    /// A function of it is bound to another driver.
    NotViable,
    Failed(String),
}

/// Operations on the kernel that tests replace.
pub trait KernelOps {
    /// Opens a group, adds it to a container, sets the IOMMU, and closes all.
    fn probe(&self, group: u32) -> Result<(), ProbeError>;

    /// Writes a sysfs file.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
}

/// The running kernel.
#[derive(Debug)]
pub struct LinuxKernel<'a>(pub &'a Tree);

impl KernelOps for LinuxKernel<'_> {
    fn probe(&self, group: u32) -> Result<(), ProbeError> {
        if self.0.path("/") != Path::new("/") {
            return Err(ProbeError::Failed("cannot probe below another root than /".to_owned()));
        }
        let failed = |error: io::Error| ProbeError::Failed(format!("{FOLDER}: {error}"));
        // Agent and `mesh-agent doctor` may probe at the same time.
        let _lock = lock(Path::new(FOLDER), group).map_err(failed)?.ok_or(ProbeError::Starting)?;
        probe(group).map_err(failed)?
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        fs::write(self.0.path(path), text)
    }
}

/// Locks groups against probes, which would make them busy for a starting VM. Blocks for a few
/// seconds.
pub fn lock_groups(groups: &[u32]) -> io::Result<Vec<File>> {
    groups
        .iter()
        .map(|group| lock(Path::new(FOLDER), *group)?.ok_or(io::ErrorKind::WouldBlock.into()))
        .collect()
}

/// Locks a group; `None` if another process holds the lock.
#[expect(clippy::disallowed_methods, reason = "the kernel has no lock with a time limit")]
fn lock(folder: &Path, group: u32) -> io::Result<Option<File>> {
    fs::create_dir_all(folder)?;
    let lock = File::create(folder.join(format!("lock-{group}")))?;
    let deadline = Instant::now() + LOCK_TIMEOUT;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(lock)),
            Err(Errno::WOULDBLOCK) if Instant::now() < deadline => sleep(RETRY_INTERVAL),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Probes a group by opening a function that is not in it. The kernel refuses only after it
/// accepted the group. Opening an existing device would reset it, which some GPUs do not survive.
fn probe(group: u32) -> io::Result<Result<(), ProbeError>> {
    let function = Path::new(FOLDER).join(format!("{NO_FUNCTION}-{group}"));
    let link = function.join("iommu_group");
    fs::create_dir_all(&function)?;
    remove_if_exists(&link)?;
    std::os::unix::fs::symlink(format!("/sys/kernel/iommu_groups/{group}"), &link)?;
    let container = match VfioContainer::new(None) {
        Ok(container) => Arc::new(container),
        Err(error) => return Ok(Err(ProbeError::Failed(error.to_string()))),
    };
    Ok(match VfioDevice::new(&function, container, false) {
        Ok(_) | Err(VfioError::GroupGetDeviceFD(_)) => Ok(()),
        Err(VfioError::OpenGroup(error, _)) if error.kind() == io::ErrorKind::ResourceBusy => {
            Err(ProbeError::Busy)
        }
        Err(VfioError::GroupViable) => Err(ProbeError::NotViable),
        Err(error @ VfioError::ContainerSetIOMMU(_)) => Err(ProbeError::Failed(format!(
            "{error}; enable interrupt remapping (VT-d or AMD-Vi) in the firmware settings"
        ))),
        Err(error) => Err(ProbeError::Failed(error.to_string())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_group_is_not_locked_again_until_released() {
        let dir = tempfile::tempdir().expect("a folder");
        let first = lock(dir.path(), 7).expect("a file").expect("free");
        assert!(lock(dir.path(), 7).expect("a file").is_none());
        assert!(lock(dir.path(), 8).expect("a file").is_some());
        drop(first);
        assert!(lock(dir.path(), 7).expect("a file").is_some());
    }
}
