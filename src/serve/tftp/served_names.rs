//! Files of the TFTP server: loaders by file name, and parts of images as `blob/<SHA-256>/<part>`.

use bytes::Bytes;
use meshd_central::{Fetched, Shared};
use meshd_model::image_kind::PART_NAMES;
use meshd_tftp::Files;
use meshd_types::Digest;
use std::net::Ipv4Addr;

/// Loaders and images of a central node.
pub(super) struct BootFiles(pub(super) Shared);

impl Files for BootFiles {
    type Id = Fetched;

    fn open(&self, name: &str) -> Option<(Bytes, Fetched)> {
        match Name::parse(name)? {
            Name::Loader(name) => Some((self.0.boot.loader(name)?, Fetched::Loader)),
            Name::Blob { digest, part } if PART_NAMES.contains(&part) => {
                Some((self.0.catalog().blob(&digest)?, Fetched::Blob(digest)))
            }
            Name::Blob { .. } => None,
        }
    }

    async fn completed(&self, client: Ipv4Addr, file: Fetched) {
        self.0.boot.record_fetch(client, file).await;
    }
}

/// A well-formed name; the file need not exist.
#[derive(Debug, PartialEq, Eq)]
enum Name<'a> {
    Loader(&'a str),
    Blob { digest: Digest, part: &'a str },
}

impl<'a> Name<'a> {
    /// Parses a requested name. Some firmware puts one slash before it.
    fn parse(requested: &'a str) -> Option<Self> {
        let name = requested.strip_prefix('/').unwrap_or(requested);
        let mut parts = name.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(loader), None, ..) if !loader.is_empty() => Some(Name::Loader(loader)),
            (Some("blob"), Some(digest), Some(part), None) => {
                Some(Name::Blob { digest: digest.parse().ok()?, part })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tftp_name_is_loader_or_blob_digest_and_paths_are_refused() {
        let digest = Digest::of(b"kernel");
        for slash in ["", "/"] {
            let name = format!("{slash}blob/{digest}/kernel");
            assert_eq!(Name::parse(&name), Some(Name::Blob { digest, part: "kernel" }));
            assert_eq!(
                Name::parse(&format!("{slash}undionly.kpxe")),
                Some(Name::Loader("undionly.kpxe"))
            );
        }
        for name in ["../undionly.kpxe", "//undionly.kpxe", "etc/passwd", "", "/"] {
            assert_eq!(Name::parse(name), None, "{name:?}");
        }
    }

    proptest! {
        #[test]
        fn parsed_tftp_name_never_contains_slash(name in "\\PC{0,40}|(/|blob/|\\.\\./|a){0,5}") {
            match Name::parse(&name) {
                Some(Name::Loader(loader)) => prop_assert!(!loader.contains('/') && name.ends_with(loader)),
                Some(Name::Blob { part, .. }) => prop_assert!(!part.contains('/')),
                None => {}
            }
        }
    }
}
