//! Attaches a file to a loop device, read-only.

use super::ioctl::{LOOP_CONFIG, configure_loop_device, free_loop_device};
use std::{
    fs::{File, OpenOptions},
    io,
    os::fd::{AsFd as _, AsRawFd as _, RawFd},
};

/// `LO_FLAGS_READ_ONLY`.
const READ_ONLY: u32 = 1;
/// Positions of the fields in `struct loop_config` of `linux/loop.h`.
const FD: usize = 0;
const BLOCK_SIZE: usize = 4;
const FLAGS: usize = 8 + 52;

/// Attaches a file. Returns the path of the device, such as `/dev/loop0`.
pub fn attach(file: &File, block_size: u32) -> io::Result<String> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let device = format!("/dev/loop{}", free_loop_device(control.as_fd())?);
    let opened = File::open(&device)?;
    let mut config = loop_config(file.as_raw_fd(), block_size);
    configure_loop_device(opened.as_fd(), &mut config)?;
    Ok(device)
}

fn loop_config(file: RawFd, block_size: u32) -> [u8; LOOP_CONFIG] {
    let mut config = [0; LOOP_CONFIG];
    config[FD..][..4].copy_from_slice(&file.to_ne_bytes());
    config[BLOCK_SIZE..][..4].copy_from_slice(&block_size.to_ne_bytes());
    config[FLAGS..][..4].copy_from_slice(&READ_ONLY.to_ne_bytes());
    config
}
