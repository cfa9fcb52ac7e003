//! Verifies kernel, modules and initramfs of an import.

use super::{error::ImportError, source::MAX_PART};
use crate::{apk::members, command::ToolCommand};
use meshd_config::files::read_regular;
use meshd_types::Architecture;
use std::{collections::BTreeSet, path::Path};

/// Maximum size of an unpacked kernel, in bytes.
const MAX_KERNEL: u64 = 256 << 20;
/// Maximum length of a Linux release (`__NEW_UTS_LEN`), in bytes.
const MAX_RELEASE: usize = 64;
/// Text before the release in every kernel.
const BANNER: &[u8] = b"Linux version ";
/// First bytes of a squashfs. The field [`SQUASHFS_LENGTH`] contains its size.
const SQUASHFS: &[u8] = b"hsqs";
const SQUASHFS_LENGTH: std::ops::Range<usize> = 40..48;

/// Architecture and release of a kernel file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelFacts {
    /// Architecture that the kernel supports.
    pub arch: Architecture,
    /// `uname -r`.
    pub release: String,
}

/// Reads architecture and release of a kernel: bzImage, or arm64's Image, plain, gzip-compressed or
/// in an EFI wrapper.
///
/// # Errors
/// The fault, as a phrase that follows the file name.
pub fn kernel(bytes: &[u8]) -> Result<KernelFacts, String> {
    if bytes.get(0x202..0x206) == Some(b"HdrS") {
        return x86(bytes).map(|release| KernelFacts { arch: Architecture::X86_64, release });
    }
    let unpacked;
    let image = match payload(bytes) {
        Some(packed) => {
            // Zeros may follow the gzip member, so only the member is unpacked.
            unpacked = members::unpack_first_within(packed, MAX_KERNEL)
                .map_err(|error| format!("is damaged: {error}"))?
                .0;
            &unpacked[..]
        }
        None => bytes,
    };
    if image.get(56..60) != Some(b"ARM\x64") {
        return Err("is no kernel of x86_64 or aarch64".to_owned());
    }
    let at = image
        .windows(BANNER.len())
        .position(|window| window == BANNER)
        .ok_or("does not say its release")?;
    Ok(KernelFacts { arch: Architecture::Aarch64, release: release(&image[at + BANNER.len()..])? })
}

/// Returns the version text of a bzImage. Linux/x86 boot protocol: 0x20e contains the offset of the
/// text, less 0x200.
fn x86(bytes: &[u8]) -> Result<String, String> {
    let field = |at: usize, length: usize| bytes.get(at..at + length).ok_or("is cut short");
    let pointer = field(0x20e, 2)?;
    let at = usize::from(u16::from_le_bytes([pointer[0], pointer[1]])) + 0x200;
    // Minimum file size: the boot sector, the setup sectors, and the protected-mode code in
    // paragraphs of 16 bytes.
    let sectors = match usize::from(field(0x1f1, 1)?[0]) {
        0 => 4,
        sectors => sectors,
    };
    let paragraphs = field(0x1f4, 4)?;
    let code = u32::from_le_bytes([paragraphs[0], paragraphs[1], paragraphs[2], paragraphs[3]])
        as usize
        * 16;
    let needed = (sectors + 1) * 512 + code;
    if bytes.len() < needed {
        return Err(format!("is cut short: it has {} bytes of {needed}", bytes.len()));
    }
    release(bytes.get(at..).ok_or("points to a release outside itself")?)
}

fn release(bytes: &[u8]) -> Result<String, String> {
    let word: Vec<u8> =
        bytes.iter().copied().take(MAX_RELEASE).take_while(u8::is_ascii_graphic).collect();
    match String::from_utf8(word) {
        Ok(word) if word.starts_with(|c: char| c.is_ascii_digit()) => Ok(word),
        _ => Err("does not say its release".to_owned()),
    }
}

/// Returns the gzip member of a compressed Image, or of an Image in the EFI wrapper (`MZ`, `zimg`,
/// offset, length).
fn payload(bytes: &[u8]) -> Option<&[u8]> {
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Some(bytes);
    }
    let word =
        |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?) as usize);
    if bytes.get(4..8) != Some(b"zimg") {
        return None;
    }
    let packed = bytes.get(word(8)?..word(8)?.checked_add(word(12)?)?)?;
    packed.starts_with(&[0x1f, 0x8b]).then_some(packed)
}

/// Checks that three files form an image for `arch`. Returns the kernel's release.
pub(super) fn image(
    kernel_file: &Path,
    initramfs: &Path,
    modloop: &Path,
    arch: Architecture,
) -> Result<String, ImportError> {
    let bytes = |file: &Path| read_regular(file, MAX_PART).map_err(|error| error.to_string());
    let facts = bytes(kernel_file).and_then(|bytes| kernel(&bytes));
    let facts = facts.map_err(|why| ImportError::Kernel { file: kernel_file.to_owned(), why })?;
    if facts.arch != arch {
        return Err(ImportError::Arch { found: facts.arch, expected: arch });
    }
    let packed = bytes(initramfs).and_then(|bytes| initramfs_starts(&bytes));
    packed.map_err(|why| ImportError::Initramfs { file: initramfs.to_owned(), why })?;
    let wrong = |why: String| ImportError::Modloop { file: modloop.to_owned(), why };
    bytes(modloop).and_then(|bytes| squashfs_is_whole(&bytes)).map_err(wrong)?;
    let releases = releases(modloop)?;
    if releases.iter().ne([&facts.release]) {
        let kernel = facts.release;
        let modloop = releases.into_iter().collect();
        return Err(ImportError::Mismatch { kernel, modloop });
    }
    Ok(facts.release)
}

/// Checks the first bytes of an initramfs. Linux accepts a plain cpio, or one whose first bytes
/// identify the compression.
fn initramfs_starts(bytes: &[u8]) -> Result<(), String> {
    const KNOWN: [&[u8]; 6] = [
        b"070701",
        &[0x1f, 0x8b],
        &[0x28, 0xb5, 0x2f, 0xfd],
        &[0xfd, b'7', b'z', b'X', b'Z'],
        &[2, 0x21, 0x4c, 0x18],
        b"BZh",
    ];
    let known = KNOWN.iter().any(|magic| bytes.starts_with(magic));
    if known { Ok(()) } else { Err("is no archive that Linux unpacks".to_owned()) }
}

fn squashfs_is_whole(bytes: &[u8]) -> Result<(), String> {
    let stated = bytes
        .get(SQUASHFS_LENGTH)
        .filter(|_| bytes.starts_with(SQUASHFS))
        .ok_or("is no squashfs")?;
    let length = u64::from_le_bytes(stated.try_into().expect("eight bytes"));
    if (bytes.len() as u64) < length {
        return Err(format!("is cut short: it has {} bytes of {length}", bytes.len()));
    }
    Ok(())
}

/// Returns the kernel releases for which a modloop contains modules.
fn releases(modloop: &Path) -> Result<BTreeSet<String>, ImportError> {
    let listed = ToolCommand::new("unsquashfs")
        .args(["-lc", "-dest", ""])
        .arg(modloop)
        .arg("modules")
        .output();
    let text = listed.map_err(|error| ImportError::Modloop {
        file: modloop.to_owned(),
        why: format!("cannot be listed: {error}"),
    })?;
    let dep =
        text.lines().filter_map(|line| line.strip_suffix("/modules.dep")?.rsplit_once("modules/"));
    Ok(dep.map(|(_, release)| release.to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apk::members::{File, pack};

    /// Returns the head of a bzImage whose version text is at 0x400.
    pub(crate) fn bzimage(release: &str) -> Vec<u8> {
        let mut bytes = vec![0; 2048];
        bytes[0x1f1] = 1;
        bytes[0x1f4..0x1f8].copy_from_slice(&64u32.to_le_bytes());
        bytes[0x202..0x206].copy_from_slice(b"HdrS");
        bytes[0x20e..0x210].copy_from_slice(&0x200u16.to_le_bytes());
        let text = format!("{release} (build@host) #1 SMP");
        bytes[0x400..0x400 + text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    fn arm() -> Vec<u8> {
        let mut bytes = vec![0; 4096];
        bytes[56..60].copy_from_slice(b"ARM\x64");
        bytes[1000..1031].copy_from_slice(b"Linux version 6.18.1-0-lts (a@b");
        bytes
    }

    #[test]
    fn x86_kernel_release_is_read_and_truncated_kernel_refused() {
        let good = bzimage("6.18.1-0-lts");
        let facts = kernel(&good).unwrap();
        assert_eq!((facts.arch, facts.release.as_str()), (Architecture::X86_64, "6.18.1-0-lts"));
        assert!(kernel(&good[..1500]).unwrap_err().contains("cut short"));
        assert!(kernel(&bzimage("nonsense")).is_err());
        assert!(kernel(b"MZ").is_err() && kernel(b"").is_err());
    }

    #[test]
    fn arm_kernel_release_is_read_plain_compressed_and_wrapped() {
        let expected =
            Ok(KernelFacts { arch: Architecture::Aarch64, release: "6.18.1-0-lts".into() });
        assert_eq!(kernel(&arm()), expected);
        // A tar can replace a compressed kernel here: the parser finds the banner at any offset,
        // but the magic only at its fixed offset.
        let packed = pack(&[File { name: "x".into(), bytes: arm() }], true);
        assert!(kernel(&packed).unwrap_err().contains("no kernel"));
        let gzip = members::gzip(&arm());
        assert_eq!(kernel(&gzip), expected);
        let mut wrapped = b"MZ\0\0zimg".to_vec();
        wrapped.extend(64u32.to_le_bytes());
        wrapped.extend(u32::try_from(gzip.len()).unwrap().to_le_bytes());
        wrapped.resize(64, 0);
        wrapped.extend(&gzip);
        wrapped.extend([0; 100]);
        assert_eq!(kernel(&wrapped), expected);
    }

    #[test]
    fn invalid_squashfs_is_refused() {
        let mut bytes = SQUASHFS.to_vec();
        bytes.resize(96, 0);
        bytes[SQUASHFS_LENGTH].copy_from_slice(&96u64.to_le_bytes());
        assert_eq!(squashfs_is_whole(&bytes), Ok(()));
        assert!(squashfs_is_whole(&bytes[..95]).unwrap_err().contains("cut short"));
        assert!(squashfs_is_whole(b"hsqs").is_err() && squashfs_is_whole(&[0; 96]).is_err());
    }
}
