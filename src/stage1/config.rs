//! The configuration of one boot: `/meshd/stage1.json`, bounded and validated completely.

use crate::fetch::HttpUrl;
use meshd_proto::stage1::{RootMode, RootSource, STAGE1_VERSION, Stage1Config, VeritySpec};
use meshd_types::{BootSessionId, Digest, MacAddr, NodeId};

/// Maximum length of the file in bytes.
pub const MAX_CONFIG: usize = 64 * 1024;
/// Maximum number of URLs of a root.
const MAX_URLS: usize = 16;
/// Maximum size of a root, and of the layer above it, in bytes.
const MAX_SIZE: u64 = 1 << 40;
/// Maximum length of a salt in hexadecimal digits; dm-verity accepts 256 bytes.
const MAX_SALT: usize = 512;
/// Block size of dm-verity, in bytes: that of pages on all architectures of meshd.
pub const BLOCK: u64 = 4096;

/// A validated configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootConfig {
    pub node: NodeId,
    pub mac: MacAddr,
    pub session: BootSessionId,
    pub root: RootImage,
    pub mode: RootMode,
    /// Size of the writable layer, in bytes.
    pub upper_bytes: u64,
    pub failed_url: HttpUrl,
    /// Time of delivery, in seconds since 1970.
    pub time: i64,
}

/// A root file system with at least one URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RootImage {
    pub urls: Vec<HttpUrl>,
    pub digest: Digest,
    /// Size in bytes, a multiple of [`BLOCK`].
    pub size: u64,
    pub verity: VerityTree,
}

/// A dm-verity tree inside of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerityTree {
    pub root_hash: Digest,
    /// Salt in hexadecimal; empty for none.
    pub salt: String,
    /// Block of the tree, or of the superblock before it.
    pub hash_block: u64,
    pub data_blocks: u64,
}

/// The configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    #[error("read stage1.json: it has more than {MAX_CONFIG} bytes")]
    Length,
    #[error("read stage1.json: {0}")]
    Json(String),
    #[error("read stage1.json: version {0} is not supported")]
    Version(u16),
    #[error("read stage1.json: {field}: {cause}")]
    Field { field: &'static str, cause: String },
}

/// Parses the file. Total.
pub fn parse(bytes: &[u8]) -> Result<BootConfig, ConfigError> {
    if bytes.len() > MAX_CONFIG {
        return Err(ConfigError::Length);
    }
    let config: Stage1Config =
        serde_json::from_slice(bytes).map_err(|error| ConfigError::Json(error.to_string()))?;
    if config.version != STAGE1_VERSION {
        return Err(ConfigError::Version(config.version));
    }
    require(!config.mac.is_multicast(), "mac", "a group address is no NIC")?;
    require((1..=MAX_SIZE).contains(&config.upper_bytes), "upper_bytes", "out of range")?;
    require(config.time > 0, "time", "out of range")?;
    Ok(BootConfig {
        node: config.node,
        mac: config.mac,
        session: config.session,
        root: root(config.root)?,
        mode: config.mode,
        upper_bytes: config.upper_bytes,
        failed_url: url("failed_url", &config.failed_url)?,
        time: config.time,
    })
}

fn root(root: RootSource) -> Result<RootImage, ConfigError> {
    require((1..=MAX_URLS).contains(&root.urls.len()), "root.urls", "give 1 to 16 URLs")?;
    require((1..=MAX_SIZE).contains(&root.size), "root.size", "out of range")?;
    require(root.size.is_multiple_of(BLOCK), "root.size", "not a multiple of 4096")?;
    let urls = root.urls.iter().map(|text| url("root.urls", text)).collect::<Result<_, _>>()?;
    let verity = verity(root.verity, root.size)?;
    Ok(RootImage { urls, digest: root.digest, size: root.size, verity })
}

fn verity(spec: VeritySpec, size: u64) -> Result<VerityTree, ConfigError> {
    let is_salt = spec.salt.len() <= MAX_SALT
        && spec.salt.len().is_multiple_of(2)
        && spec.salt.bytes().all(|digit| digit.is_ascii_hexdigit());
    require(is_salt, "root.verity.salt", "not hexadecimal, or longer than 256 bytes")?;
    require(u64::from(spec.block_size) == BLOCK, "root.verity.block_size", "not 4096")?;
    require(
        spec.hash_offset.is_multiple_of(BLOCK) && spec.hash_offset < size,
        "root.verity.hash_offset",
        "not a block of the root",
    )?;
    let hash_block = spec.hash_offset / BLOCK;
    require(
        (1..=hash_block).contains(&spec.data_blocks),
        "root.verity.data_blocks",
        "the data does not end before the tree",
    )?;
    Ok(VerityTree {
        root_hash: spec.root_hash,
        salt: spec.salt,
        hash_block,
        data_blocks: spec.data_blocks,
    })
}

fn url(field: &'static str, text: &str) -> Result<HttpUrl, ConfigError> {
    text.parse().map_err(|error: crate::fetch::UrlError| ConfigError::Field {
        field,
        cause: error.to_string(),
    })
}

fn require(is_valid: bool, field: &'static str, cause: &str) -> Result<(), ConfigError> {
    if is_valid { Ok(()) } else { Err(ConfigError::Field { field, cause: cause.to_owned() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn sample() -> Value {
        let digest = Digest::of(b"root").to_string();
        json!({
            "version": 1, "node": "abcdefgh", "mac": "02:00:00:00:00:07",
            "session": "7cd57a24ea8a2b04d4dd1d1d",
            "root": {
                "urls": ["http://10.77.0.1:8080/blob/aa/root"], "digest": digest, "size": 40960,
                "verity": {
                    "root_hash": digest, "salt": "00ff", "hash_offset": 32768,
                    "block_size": 4096, "data_blocks": 8,
                },
            },
            "upper_bytes": 1048576, "failed_url": "http://10.77.0.1:8080/boot/failed",
            "time": 1_790_000_000,
        })
    }

    fn parse_value(value: &Value) -> Result<BootConfig, ConfigError> {
        parse(value.to_string().as_bytes())
    }

    #[test]
    fn config_with_all_fields_is_read() {
        let config = parse_value(&sample()).expect("valid");
        assert_eq!(config.root.verity.hash_block, 8);
        assert_eq!(config.mode, RootMode::Ram, "of an earlier release");
        assert_eq!(config.root.urls[0].to_string(), "http://10.77.0.1:8080/blob/aa/root");
    }

    #[test]
    fn config_with_an_invalid_field_is_refused_with_its_name() {
        let cases = [
            ("/version", json!(2), "version 2"),
            ("/mac", json!("03:00:00:00:00:07"), "mac"),
            ("/upper_bytes", json!(0), "upper_bytes"),
            ("/time", json!(0), "time"),
            ("/failed_url", json!("https://10.77.0.1/"), "failed_url"),
            ("/root/urls", json!([]), "root.urls"),
            ("/root/urls", json!(["http://name/"]), "root.urls"),
            ("/root/size", json!(40961), "root.size"),
            ("/root/size", json!(u64::MAX), "root.size"),
            ("/root/digest", json!("00"), "SHA-256"),
            ("/root/verity/salt", json!("0 1"), "salt"),
            ("/root/verity/salt", json!("0".repeat(514)), "salt"),
            ("/root/verity/block_size", json!(512), "block_size"),
            ("/root/verity/hash_offset", json!(40960), "hash_offset"),
            ("/root/verity/data_blocks", json!(9), "data_blocks"),
            ("/root/verity/data_blocks", json!(0), "data_blocks"),
        ];
        for (pointer, value, named) in cases {
            let mut config = sample();
            *config.pointer_mut(pointer).expect("a field") = value;
            let error = parse_value(&config).expect_err(pointer).to_string();
            assert!(error.contains(named), "{pointer}: {error}");
        }
        assert_eq!(parse(&vec![b' '; MAX_CONFIG + 1]), Err(ConfigError::Length));
    }

    proptest! {
        #[test]
        fn config_of_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
        }
    }
}
