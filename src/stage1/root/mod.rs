//! The root file system: a verified squashfs in memory below a bounded writable layer.
//!
//! | module | content |
//! | --- | --- |
//! | `memory` | whether the memory suffices: pure |
//! | `ioctl` | ioctl(2) of loop devices and device mapper, mlockall(2); the only unsafe code |
//! | `loop_device` | attaches a file to a loop device |
//! | `tether` | a block device whose blocks stay on servers |
//! | `verity` | superblock and table of dm-verity; makes the device |
//! | `mounts` | mounts file systems |
//! | `labels` | SELinux labels of what stage 1 adds, by programs of the root |
//! | `switch` | makes the new root `/` and starts its first program |

mod memory;
mod ioctl;
mod loop_device;
pub mod tether;
mod verity;
mod mounts;
mod labels;
mod switch;

pub use labels::{LabelError, ROOT_PROGRAM_PROCESS, become_root_program, has_selinux, label};
pub use loop_device::attach;
pub use memory::{MemoryError, require_memory};
pub use mounts::{
    Layers, MountError, layers, mount_early, mount_image_store, mount_lower, mount_overlay,
    mount_squashfs,
};
pub use switch::{SwitchError, require_init, start_init, switch_root};
pub use verity::{VerityError, open_verity};
