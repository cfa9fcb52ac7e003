//! The configuration of mesh-init. Bounded, and validated completely. Total.

use meshd_proto::mesh_init::{
    FetchedFile, MESH_INIT_CONFIG_FILE, MESH_INIT_VERSION, MeshInitConfig,
};
use std::collections::BTreeSet;

/// Maximum length of the file in bytes.
const MAX_CONFIG: usize = 256 * 1024;
/// Maximum size of a fetched file in bytes.
const MAX_SIZE: u64 = 1 << 40;

/// The configuration cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MeshInitConfigError {
    #[error("read {MESH_INIT_CONFIG_FILE}: it has more than {MAX_CONFIG} bytes")]
    Length,
    #[error("read {MESH_INIT_CONFIG_FILE}: {0}")]
    Json(String),
    #[error("read {MESH_INIT_CONFIG_FILE}: version {0} is not supported")]
    Version(u16),
    #[error("read {MESH_INIT_CONFIG_FILE}: {0}: the size is out of range")]
    Size(String),
    #[error("read {MESH_INIT_CONFIG_FILE}: bundle {0} is there twice")]
    Twice(String),
}

/// Parses the file.
pub fn parse(bytes: &[u8]) -> Result<MeshInitConfig, MeshInitConfigError> {
    if bytes.len() > MAX_CONFIG {
        return Err(MeshInitConfigError::Length);
    }
    let config: MeshInitConfig = serde_json::from_slice(bytes)
        .map_err(|error| MeshInitConfigError::Json(error.to_string()))?;
    if config.version != MESH_INIT_VERSION {
        return Err(MeshInitConfigError::Version(config.version));
    }
    let sized = |file: &FetchedFile, name: &str| {
        let is_sized = (1..=MAX_SIZE).contains(&file.size);
        is_sized.then_some(()).ok_or_else(|| MeshInitConfigError::Size(name.to_owned()))
    };
    sized(&config.modloop, "modloop")?;
    let mut names = BTreeSet::new();
    for bundle in &config.bundles {
        let name = bundle.name.to_string();
        sized(&bundle.layer, &name)?;
        if !names.insert(name.clone()) {
            return Err(MeshInitConfigError::Twice(name));
        }
    }
    Ok(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_types::Digest;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn sample() -> Value {
        let digest = Digest::of(b"layer").to_string();
        json!({
            "version": 1, "image": "alpine-lab", "modloop": { "digest": digest, "size": 4096 },
            "bundles": [{ "name": "qemu", "digest": digest, "size": 8192 }],
        })
    }

    fn parse_value(value: &Value) -> Result<MeshInitConfig, MeshInitConfigError> {
        parse(value.to_string().as_bytes())
    }

    #[test]
    fn config_round_trips() {
        let config = parse_value(&sample()).expect("valid");
        assert_eq!((config.bundles[0].name.as_str(), config.bundles[0].layer.size), ("qemu", 8192));
        assert_eq!(serde_json::to_value(&config).expect("plain data"), sample());
    }

    #[test]
    fn config_with_an_invalid_field_is_refused_with_its_name() {
        let bundle = sample()["bundles"][0].clone();
        let cases = [
            ("/version", json!(2), "version 2"),
            ("/modloop/size", json!(0), "modloop"),
            ("/modloop/digest", json!("00"), "SHA-256"),
            ("/bundles/0/size", json!(u64::MAX), "qemu"),
            ("/bundles/0/name", json!("../etc"), "../etc"),
            ("/bundles", json!([bundle, bundle]), "qemu is there twice"),
        ];
        for (pointer, value, named) in cases {
            let mut config = sample();
            *config.pointer_mut(pointer).expect("a field") = value;
            let error = parse_value(&config).expect_err(pointer).to_string();
            assert!(error.contains(named), "{pointer}: {error}");
        }
        assert_eq!(parse(&vec![b' '; MAX_CONFIG + 1]), Err(MeshInitConfigError::Length));
    }

    proptest! {
        #[test]
        fn config_of_any_bytes_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
        }
    }
}
