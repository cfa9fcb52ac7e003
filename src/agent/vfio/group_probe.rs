//! Probes an IOMMU group by adding it to a VFIO container, and writes to sysfs.

use super::super::system::Tree;
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
const NOBODY: &str = "nobody";
/// Time to wait for a probe of another process.
const PATIENCE: Duration = Duration::from_secs(3);
/// Interval of attempts.
const LOOK: Duration = Duration::from_millis(20);

/// Why a container does not accept a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// Another process has it open.
    Busy,
    /// A VM is being started with it.
    Given,
    /// A function of it is bound to another driver.
    NotViable,
    /// Any other error.
    Failed(String),
}

/// Operations on the kernel that tests replace.
pub trait KernelOps {
    /// Opens a group, adds it to a container, sets the IOMMU, and closes all.
    ///
    /// # Errors
    /// Why the kernel refused.
    fn take(&self, group: u32) -> Result<(), ProbeError>;

    /// Writes a sysfs file.
    ///
    /// # Errors
    /// Error of the kernel.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
}

/// The running kernel.
#[derive(Debug)]
pub struct LinuxKernel<'a>(pub &'a Tree);

impl KernelOps for LinuxKernel<'_> {
    fn take(&self, group: u32) -> Result<(), ProbeError> {
        if self.0.path("/") != Path::new("/") {
            return Err(ProbeError::Failed("only the root / has a kernel".to_owned()));
        }
        let failed = |error: io::Error| ProbeError::Failed(format!("{FOLDER}: {error}"));
        // Agent and `mesh-agent doctor` may probe at the same time.
        let _held = lock(Path::new(FOLDER), group).map_err(failed)?.ok_or(ProbeError::Given)?;
        take(group).map_err(failed)?
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        fs::write(self.0.path(path), text)
    }
}

/// Locks groups against probes, which would make them busy for a VM that starts. Blocks for a few seconds.
///
/// # Errors
/// A group cannot be locked.
pub fn hold(groups: &[u32]) -> io::Result<Vec<File>> {
    groups.iter().map(|group| lock(Path::new(FOLDER), *group)?.ok_or(io::ErrorKind::WouldBlock.into())).collect()
}

/// Locks a group; `None` if another process holds the lock.
#[expect(clippy::disallowed_methods, reason = "the kernel has no lock with a time limit")]
fn lock(folder: &Path, group: u32) -> io::Result<Option<File>> {
    fs::create_dir_all(folder)?;
    let lock = File::create(folder.join(format!("lock-{group}")))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(lock)),
            Err(Errno::WOULDBLOCK) if Instant::now() < until => sleep(LOOK),
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Requests a function that is in no group. When the kernel reports that, the group is open, viable and in the container, and no device was
/// opened. Opening a device would reset it, which some GPUs do not survive.
fn take(group: u32) -> io::Result<Result<(), ProbeError>> {
    let nobody = Path::new(FOLDER).join(format!("{NOBODY}-{group}"));
    let link = nobody.join("iommu_group");
    fs::create_dir_all(&nobody)?;
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    std::os::unix::fs::symlink(format!("/sys/kernel/iommu_groups/{group}"), &link)?;
    let container = match VfioContainer::new(None) {
        Ok(container) => Arc::new(container),
        Err(error) => return Ok(Err(ProbeError::Failed(error.to_string()))),
    };
    Ok(match VfioDevice::new(&nobody, container, false) {
        Ok(_) | Err(VfioError::GroupGetDeviceFD(_)) => Ok(()),
        Err(VfioError::OpenGroup(error, _)) if error.kind() == io::ErrorKind::ResourceBusy => Err(ProbeError::Busy),
        Err(VfioError::GroupViable) => Err(ProbeError::NotViable),
        Err(error @ VfioError::ContainerSetIOMMU(_)) => Err(ProbeError::Failed(format!(
            "{error}; without interrupt remapping (VT-d or AMD-Vi in the firmware's set-up) the kernel calls it unsafe"
        ))),
        Err(error) => Err(ProbeError::Failed(error.to_string())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_is_being_given_is_not_looked_at_and_another_is() {
        let dir = tempfile::tempdir().expect("a folder");
        let given = lock(dir.path(), 7).expect("a file").expect("free");
        assert!(lock(dir.path(), 7).expect("a file").is_none());
        assert!(lock(dir.path(), 8).expect("a file").is_some());
        drop(given);
        assert!(lock(dir.path(), 7).expect("a file").is_some());
    }
}
