//! ioctl(2) of loop devices and device mapper, and mlockall(2). The only unsafe code of stage 1:
//! rustix has no safe function for them as it is built for the workspace, and the crates that have
//! one need a C library or bindgen (ADR 48).
//!
//! Sources: `linux/loop.h`, `linux/dm-ioctl.h` of Linux 6.1. Layouts are the same on x86_64 and
//! aarch64.
#![expect(unsafe_code, reason = "ioctl(2) takes a pointer; each function fixes the size behind it")]

use rustix::ioctl::{Ioctl, IoctlOutput, Opcode, ioctl};
use std::{
    ffi::{c_int, c_void},
    io,
    os::fd::BorrowedFd,
};

/// `LOOP_CTL_GET_FREE`: no argument, returns a number.
const LOOP_CTL_GET_FREE: Opcode = 0x4c82;
/// `LOOP_CONFIGURE`: reads a `struct loop_config`.
const LOOP_CONFIGURE: Opcode = 0x4c0a;
/// Size of `struct loop_config` in bytes.
pub const LOOP_CONFIG: usize = 304;
/// Size of `struct dm_ioctl` in bytes.
pub const DM_HEADER: usize = 312;
/// Size of a request to device mapper: header, one target and its parameters.
pub const DM_REQUEST: usize = 4096;
/// Position of `data_size` in `struct dm_ioctl`.
const DM_DATA_SIZE: std::ops::Range<usize> = 12..16;

/// `MCL_CURRENT | MCL_FUTURE`.
const LOCK_ALL: c_int = 1 | 2;

// SAFETY: the signature is that of mlockall(2), which takes no pointer.
unsafe extern "C" {
    safe fn mlockall(flags: c_int) -> c_int;
}

/// Commands of device mapper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DmCommand {
    CreateDevice = 3,
    /// Resumes a device if the request has no `DM_SUSPEND_FLAG`: activates its table.
    SuspendOrResume = 6,
    LoadTable = 9,
}

struct Call<'a> {
    opcode: Opcode,
    argument: &'a mut [u8],
}

// SAFETY: `argument` lives as long as the call. The kernel reads and writes at most the size that
// the opcode or the header of the request names; the functions below ensure that `argument` has it.
unsafe impl Ioctl for Call<'_> {
    type Output = IoctlOutput;

    const IS_MUTATING: bool = true;

    fn opcode(&self) -> Opcode {
        self.opcode
    }

    fn as_ptr(&mut self) -> *mut c_void {
        self.argument.as_mut_ptr().cast()
    }

    unsafe fn output_from_ptr(
        output: IoctlOutput,
        _argument: *mut c_void,
    ) -> rustix::io::Result<Self::Output> {
        Ok(output)
    }
}

/// Keeps all memory of this process, present and future, out of swap.
pub fn lock_memory() -> io::Result<()> {
    match mlockall(LOCK_ALL) {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns the number of a free loop device of `/dev/loop-control`.
pub fn free_loop_device(control: BorrowedFd<'_>) -> io::Result<u32> {
    let call = Call { opcode: LOOP_CTL_GET_FREE, argument: &mut [] };
    // SAFETY: the request has no argument; other files answer with ENOTTY.
    let number = unsafe { ioctl(control, call) }?;
    u32::try_from(number).map_err(io::Error::other)
}

/// Configures a loop device by a `struct loop_config`.
pub fn configure_loop_device(
    device: BorrowedFd<'_>,
    config: &mut [u8; LOOP_CONFIG],
) -> io::Result<()> {
    let call = Call { opcode: LOOP_CONFIGURE, argument: config };
    // SAFETY: the argument has the size of `struct loop_config`; other files answer with ENOTTY.
    unsafe { ioctl(device, call) }?;
    Ok(())
}

/// Sends a request to device mapper, which writes its answer into the same bytes. Sets the size in
/// the header.
pub fn device_mapper(
    control: BorrowedFd<'_>,
    command: DmCommand,
    request: &mut [u8; DM_REQUEST],
) -> io::Result<()> {
    request[DM_DATA_SIZE].copy_from_slice(&(DM_REQUEST as u32).to_ne_bytes());
    // `_IOWR(0xfd, command, struct dm_ioctl)`.
    let opcode = (3 << 30) | ((DM_HEADER as Opcode) << 16) | (0xfd << 8) | command as Opcode;
    let call = Call { opcode, argument: request };
    // SAFETY: the header says how long the argument is; other files answer with ENOTTY.
    unsafe { ioctl(control, call) }?;
    Ok(())
}
