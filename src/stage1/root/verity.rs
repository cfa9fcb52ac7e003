//! dm-verity: checks each block of the root when it is read. Sources: `linux/dm-ioctl.h`, and
//! `verity.rst` of the kernel's device-mapper documentation.

use super::ioctl::{DM_HEADER, DM_REQUEST, DmCommand, device_mapper};
use crate::config::{BLOCK, VerityTree};
use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom},
    os::fd::AsFd as _,
};

/// Name of the device.
const NAME: &str = "meshd-root";
const CONTROL: &str = "/dev/mapper/control";
const SECTOR: u64 = 512;
/// First bytes of the superblock that veritysetup writes before the tree.
const SUPERBLOCK: &[u8; 8] = b"verity\0\0";
/// Oldest interface that has all that is used: `DM_VERSION` 4.0.0.
const INTERFACE: [u32; 3] = [4, 0, 0];
/// `DM_READONLY_FLAG`.
const READ_ONLY: u32 = 1;
/// Positions of the fields in `struct dm_ioctl`.
const DATA_START: usize = 16;
const TARGET_COUNT: usize = 20;
const FLAGS: usize = 28;
const DEVICE: usize = 40;
const DEVICE_NAME: usize = 48;
/// Positions of the fields in `struct dm_target_spec`, and its size.
const TARGET_LENGTH: usize = 8;
const TARGET_TYPE: usize = 24;
const TARGET: usize = 40;

/// The device cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum VerityError {
    #[error("read the dm-verity tree: {0}")]
    Tree(io::Error),
    #[error("open {CONTROL}: {0}")]
    Control(io::Error),
    #[error("device mapper: {operation} {NAME}: {cause}")]
    Request { operation: &'static str, cause: io::Error },
}

/// Makes the device of an image that is attached to a block device. Returns its path, such as
/// `/dev/dm-0`.
pub fn open_verity(
    image: &mut File,
    block_device: &str,
    tree: &VerityTree,
) -> Result<String, VerityError> {
    let mut begin = [0; SUPERBLOCK.len()];
    image.seek(SeekFrom::Start(tree.hash_block * BLOCK)).map_err(VerityError::Tree)?;
    image.read_exact(&mut begin).map_err(VerityError::Tree)?;
    let first_hash_block = tree.hash_block + u64::from(&begin == SUPERBLOCK);

    let control = OpenOptions::new().read(true).write(true).open(CONTROL);
    let control = control.map_err(VerityError::Control)?;
    let send = |operation, command, request: &mut [u8; DM_REQUEST]| {
        device_mapper(control.as_fd(), command, request)
            .map_err(|cause| VerityError::Request { operation, cause })
    };
    let mut created = dm_request(READ_ONLY);
    send("create", DmCommand::CreateDevice, &mut created)?;
    let parameters = table(block_device, tree, first_hash_block);
    let sectors = tree.data_blocks * (BLOCK / SECTOR);
    send("load the table of", DmCommand::LoadTable, &mut dm_table(sectors, &parameters))?;
    let mut resumed = dm_request(0);
    send("resume", DmCommand::SuspendOrResume, &mut resumed)?;
    Ok(format!("/dev/dm-{}", minor(&resumed)))
}

/// Returns the parameters of the target: version, devices, block sizes, blocks, algorithm, digest,
/// salt.
fn table(block_device: &str, tree: &VerityTree, first_hash_block: u64) -> String {
    let salt = if tree.salt.is_empty() { "-" } else { &tree.salt };
    format!(
        "1 {block_device} {block_device} {BLOCK} {BLOCK} {} {first_hash_block} sha256 {} {salt}",
        tree.data_blocks, tree.root_hash
    )
}

/// A request for the device without data.
fn dm_request(flags: u32) -> [u8; DM_REQUEST] {
    let mut request = [0; DM_REQUEST];
    for (at, number) in INTERFACE.iter().enumerate() {
        put(&mut request, at * 4, &number.to_ne_bytes());
    }
    put(&mut request, DATA_START, &(DM_HEADER as u32).to_ne_bytes());
    put(&mut request, FLAGS, &flags.to_ne_bytes());
    put(&mut request, DEVICE_NAME, NAME.as_bytes());
    request
}

/// A request with one target that covers the device. Its parameters have at most 1 KiB: two device
/// names, numbers, a digest and a salt.
fn dm_table(sectors: u64, parameters: &str) -> [u8; DM_REQUEST] {
    let mut request = dm_request(READ_ONLY);
    put(&mut request, TARGET_COUNT, &1u32.to_ne_bytes());
    put(&mut request, DM_HEADER + TARGET_LENGTH, &sectors.to_ne_bytes());
    put(&mut request, DM_HEADER + TARGET_TYPE, b"verity");
    put(&mut request, DM_HEADER + TARGET, parameters.as_bytes());
    request
}

fn put(request: &mut [u8; DM_REQUEST], at: usize, bytes: &[u8]) {
    request[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The minor number in the kernel's encoding (`huge_encode_dev`): bits 0 to 7 and 20 to 31.
fn minor(answer: &[u8; DM_REQUEST]) -> u64 {
    let mut device = [0; 8];
    device.copy_from_slice(&answer[DEVICE..DEVICE + 8]);
    let device = u64::from_ne_bytes(device);
    (device & 0xff) | ((device >> 12) & 0xf_ff00)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Digest;

    fn tree(salt: &str) -> VerityTree {
        let root_hash = Digest::of(b"root");
        VerityTree { root_hash, salt: salt.into(), hash_block: 8, data_blocks: 8 }
    }

    #[test]
    fn table_has_the_order_of_the_kernel() {
        let digest = Digest::of(b"root");
        assert_eq!(
            table("/dev/loop0", &tree("00ff"), 9),
            format!("1 /dev/loop0 /dev/loop0 4096 4096 8 9 sha256 {digest} 00ff")
        );
        assert!(table("/dev/loop0", &tree(""), 8).ends_with(" -"), "no salt");
    }

    #[test]
    fn request_with_the_longest_salt_fits() {
        let parameters = table("/dev/loop1048575", &tree(&"a".repeat(512)), u64::MAX);
        let request = dm_table(64, &parameters);
        assert_eq!(&request[DM_HEADER + TARGET..][..parameters.len()], parameters.as_bytes());
        assert_eq!(request[DM_HEADER + TARGET + parameters.len()], 0, "the text ends");
        assert_eq!(&request[DEVICE_NAME..][..NAME.len()], NAME.as_bytes());
    }

    #[test]
    fn minor_number_is_decoded() {
        let mut answer = [0; DM_REQUEST];
        for (device, expected) in [(0xfd00_u64, 0), (0xfd03, 3), (0x10_fd00, 256)] {
            put(&mut answer, DEVICE, &device.to_ne_bytes());
            assert_eq!(minor(&answer), expected);
        }
    }
}
