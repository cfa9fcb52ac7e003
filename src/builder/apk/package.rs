//! Verifies a package against its index record: size, SHA-1 and SHA-256.

use super::{index::Record, members};
use crate::parts::installed::Checksum;
use meshd_types::Digest;

/// Key of the data member's digest in the control member.
const INFO_FILE: &str = ".PKGINFO";
/// First bytes of an apk v3 package.
const V3: &[u8] = b"ADB";

/// Verifies a package against its record. The error describes the difference.
pub fn check(bytes: &[u8], record: &Record) -> Result<(), String> {
    if bytes.starts_with(V3) {
        return Err(
            "is in the format of apk v3; this importer reads v2, as Alpine's mirrors serve"
                .to_owned(),
        );
    }
    if bytes.len() as u64 != record.size {
        return Err(format!("has {} bytes and the index states {}", bytes.len(), record.size));
    }
    let damaged = |error: std::io::Error| format!("is damaged: {error}");
    let (_, after_signature) = members::unpack_first(bytes).map_err(damaged)?;
    let (control, data) = members::unpack_first(after_signature).map_err(damaged)?;
    let member = &after_signature[..after_signature.len() - data.len()];
    let found = Checksum::of(member);
    if found != record.checksum {
        return Err(format!(
            "has checksum {} and the index states {}",
            found.to_hex(),
            record.checksum.to_hex()
        ));
    }
    let files = members::files(&control).map_err(damaged)?;
    let info = files.iter().find(|file| file.name == INFO_FILE).ok_or("has no .PKGINFO")?;
    let text = String::from_utf8_lossy(&info.bytes);
    let stated = text.lines().find_map(|line| line.strip_prefix("datahash = "));
    let stated =
        stated.and_then(|hex| hex.trim().parse::<Digest>().ok()).ok_or("states no datahash")?;
    let found = Digest::of(data);
    if found != stated {
        return Err(format!("holds data with SHA-256 {found} and states {stated}"));
    }
    Ok(())
}
