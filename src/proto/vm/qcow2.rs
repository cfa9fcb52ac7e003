//! Parses the header of a qcow2 image (QEMU's docs/interop/qcow2.txt) to decide whether the image may be used.

/// Size of the parsed header in bytes.
pub const HEADER: u64 = 104;

/// The first bytes of an image.
pub const MAGIC: [u8; 4] = *b"QFI\xfb";
/// Incompatible feature bit: the data is in another file.
const EXTERNAL_DATA: u64 = 1 << 2;

const SHORT: &str = "it is too short for a qcow2 image";

/// Returns the virtual size of a self-contained image. An image with a backing file or an external data file is refused: it could give
/// the guest any file of the node.
pub fn virtual_size(header: &[u8]) -> Result<u64, &'static str> {
    let size = size(header)?;
    if u64::from_be_bytes(bytes(header, 8)?) != 0 {
        return Err("it needs another file (backing file); flatten it with `qemu-img convert`");
    }
    if u32::from_be_bytes(bytes(header, 4)?) == 3 && u64::from_be_bytes(bytes(header, 72)?) & EXTERNAL_DATA != 0 {
        return Err("its data is in another file; flatten it with `qemu-img convert`");
    }
    Ok(size)
}

/// Returns the virtual size, also of an image with a backing file.
pub fn size(header: &[u8]) -> Result<u64, &'static str> {
    if header.get(..4) != Some(MAGIC.as_slice()) {
        return Err("it is not a qcow2 image");
    }
    if !matches!(u32::from_be_bytes(bytes(header, 4)?), 2 | 3) {
        return Err("it is a qcow2 image of an unknown version");
    }
    bytes(header, 24).map(u64::from_be_bytes)
}

fn bytes<const N: usize>(header: &[u8], offset: usize) -> Result<[u8; N], &'static str> {
    header.get(offset..).and_then(|rest| rest.first_chunk().copied()).ok_or(SHORT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(version: u32, backing: u64, features: u64) -> Vec<u8> {
        let mut header = vec![0; 104];
        header[..4].copy_from_slice(&MAGIC);
        header[4..8].copy_from_slice(&version.to_be_bytes());
        header[8..16].copy_from_slice(&backing.to_be_bytes());
        header[24..32].copy_from_slice(&(8u64 << 30).to_be_bytes());
        header[72..80].copy_from_slice(&features.to_be_bytes());
        header
    }

    #[test]
    fn qcow2_image_with_external_files_is_refused() {
        assert_eq!(virtual_size(&header(3, 0, 0)), Ok(8 << 30));
        assert_eq!(virtual_size(&header(2, 0, EXTERNAL_DATA)), Ok(8 << 30), "version 2 has other words there");
        assert!(virtual_size(&header(3, 512, 0)).is_err_and(|why| why.contains("backing")));
        assert!(virtual_size(&header(3, 0, EXTERNAL_DATA)).is_err_and(|why| why.contains("data")));
        assert!(virtual_size(&header(4, 0, 0)).is_err());
        assert!(virtual_size(b"\x7fELF").is_err());
        assert!(virtual_size(&header(3, 0, 0)[..73]).is_err());
    }

    proptest! {
        #[test]
        fn qcow2_header_with_junk_never_panics(junk: Vec<u8>) {
            let _ = virtual_size(&junk);
            let _ = virtual_size(&[MAGIC.as_slice(), &junk].concat());
        }
    }
}
