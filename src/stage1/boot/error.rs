//! Why a boot fails.

use crate::{
    alpine::{MeshInitConfigError, OsFileError, PackagesError},
    config::ConfigError,
    fetch::DownloadError,
    network::AcquireError,
    overlay::{AccountError, BootPartError, ManifestError, UnpackError},
    root::{LabelError, MemoryError, MountError, SwitchError, VerityError, tether::TetherError},
};
use meshd_types::{BundleName, ImageName, MacAddr};
use std::io;

/// A duty that failed. The message is shown on the console and reported to the central node.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    #[error(transparent)]
    Mount(#[from] MountError),
    #[error("read {path}: {cause}")]
    Read { path: &'static str, cause: io::Error },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("set the clock: {0}")]
    Clock(io::Error),
    #[error("read the module index of kernel {release}: {cause}")]
    Modules { release: String, cause: io::Error },
    #[error("find NIC {mac}: {explanation}")]
    MissingNic { mac: MacAddr, explanation: String },
    #[error("{operation} {interface}: {cause}")]
    Link { operation: &'static str, interface: String, cause: io::Error },
    #[error("get a lease on {interface}: {cause}")]
    Lease { interface: String, cause: AcquireError },
    #[error(transparent)]
    Memory(#[from] MemoryError),
    #[error("make {path}: {cause}")]
    Create { path: String, cause: io::Error },
    #[error(transparent)]
    Download(#[from] DownloadError),
    #[error("attach the squashfs to a loop device: {0}")]
    Loop(io::Error),
    #[error(transparent)]
    Tether(#[from] TetherError),
    /// A read of a tethered root failed, and why.
    #[error("{error}: {cause}")]
    TetheredRead { error: Box<BootError>, cause: String },
    #[error("open the device of the root: {0}")]
    Open(io::Error),
    #[error("write {path}: {0}", path = meshd_proto::stage1::ROOT_REPORT_FILE)]
    Report(io::Error),
    #[error(transparent)]
    Verity(#[from] VerityError),
    #[error(transparent)]
    Unpack(#[from] UnpackError),
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    BootPart(#[from] BootPartError),
    #[error(transparent)]
    Account(#[from] AccountError),
    #[error(transparent)]
    Label(#[from] LabelError),
    #[error("modloop= on the command line is no URL of the central node")]
    ModloopUrl,
    #[error(transparent)]
    MeshInitConfig(#[from] MeshInitConfigError),
    #[error(transparent)]
    OsFile(#[from] OsFileError),
    #[error(transparent)]
    Packages(#[from] PackagesError),
    #[error("no interface has the address that BOOTIF= names")]
    BootInterface,
    #[error("fetch the {0}: its thread ended")]
    Thread(String),
    #[error("the modloop of image {image} has no modules for kernel {release}")]
    ModloopRelease { image: ImageName, release: String },
    #[error("bundle {name}: {error}")]
    Bundle { name: BundleName, error: Box<BootError> },
    #[error("hand the lease over: {0}")]
    Handover(io::Error),
    #[error(transparent)]
    Switch(#[from] SwitchError),
    #[error("internal error: {0}")]
    Panic(String),
}

meshd_types::hints!(BootError {
    BootError::Modules { .. } => "the initrd `modules` must be of the same image as the kernel";
    BootError::MissingNic { .. } => "add the module to the initramfs of the image";
    BootError::Lease { .. } => "check the link, and `meshd events` for refused DHCP requests";
    BootError::Memory(_) => "choose a smaller image, or reduce the writable layer of the profile";
    BootError::Download(DownloadError::GaveUp { .. }) => "check that the central node serves the image";
    BootError::Tether(TetherError::Tree(_)) => "check that the servers of the root serve the image, and `meshd image verify`";
    BootError::TetheredRead { .. } => "check that the servers of the root serve the image, and `meshd image verify`";
    BootError::Tether(TetherError::Device(_)) => "build the image again: a tethered root needs the module nbd";
    BootError::Manifest(_) => "boot again: the overlay was changed on its way";
    BootError::BootPart(_) => "boot again: the overlay was changed on its way";
    BootError::Label(LabelError::NoProgram) => "add policycoreutils to the image, or SELINUX=disabled to its /etc/selinux/config";
    BootError::Packages(_) => "boot again: Alpine's initramfs could not install all packages";
    BootError::Switch(SwitchError::NoInit(_)) => "add systemd or another init to the image";
});
