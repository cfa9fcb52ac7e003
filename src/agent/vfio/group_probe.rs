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

/// Where the record and the lock are, and the name that no group has.
pub const FOLDER: &str = "/run/mesh-vfio";
/// A function by this name, with a group behind it, is in no group.
const NOBODY: &str = "nobody";
/// How long somebody may have a group for himself until it is given to a machine, not looked at.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two tries.
const LOOK: Duration = Duration::from_millis(20);

/// Why a container does not take a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProbeError {
    /// Somebody has it.
    Busy,
    /// It is being given to a machine.
    Given,
    /// A function of it belongs to another driver.
    NotViable,
    /// Anything else.
    Failed(String),
}

/// The kernel, as far as it is more than files that are read.
pub trait KernelOps {
    /// Opens the group, gives it to a container, sets the container's IOMMU, and lets go of everything.
    ///
    /// # Errors
    /// Where the kernel said no.
    fn take(&self, group: u32) -> Result<(), ProbeError>;

    /// Writes a file of sysfs in one piece.
    ///
    /// # Errors
    /// What the kernel answers.
    fn write(&self, path: &str, text: &str) -> io::Result<()>;
}

/// This machine's kernel.
#[derive(Debug)]
pub struct Linux<'a>(pub &'a Tree);

impl KernelOps for Linux<'_> {
    fn take(&self, group: u32) -> Result<(), ProbeError> {
        if self.0.path("/") != Path::new("/") {
            return Err(ProbeError::Failed("another root than / has no kernel of its own".to_owned()));
        }
        let failed = |error: io::Error| ProbeError::Failed(format!("{FOLDER}: {error}"));
        // Doctor and agent may look at the same time, and each would take the other for a virtual machine.
        let _held = lock(Path::new(FOLDER), group).map_err(failed)?.ok_or(ProbeError::Given)?;
        take(group).map_err(failed)?
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        fs::write(self.0.path(path), text)
    }
}

/// Keeps groups from being looked at as long as these are there: whoever looks takes a group for a moment, and who is to have it would be
/// told that it is busy. It blocks for a while.
///
/// # Errors
/// When one cannot be held.
pub fn hold(groups: &[u32]) -> io::Result<Vec<File>> {
    groups.iter().map(|group| lock(Path::new(FOLDER), *group)?.ok_or(io::ErrorKind::WouldBlock.into())).collect()
}

/// The right to open a group; `None` where somebody else keeps it.
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

/// Asks for a function that is in no group: by then the group is open, viable, in the container, and its IOMMU set, and no
/// device was opened. Opening one resets it, which some GPUs do not survive, and a check must not do that.
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
