//! What can be had by TFTP: loaders by file name, and parts of images as `blob/<SHA-256>/<part>`.

use crate::serve::central::{Central, Fetched};
use bytes::Bytes;
use meshd_types::Digest;
use std::{future::Future, net::Ipv4Addr};

/// What comes after the digest; it is there for people who read a log, the digest alone says what it is.
const PARTS: [&str; 4] = ["kernel", "initramfs", "packages", "modloop"];

/// Where the server looks names up, and reports what was fetched.
pub trait Table: Send + Sync + 'static {
    /// A loader by its file name.
    fn loader(&self, name: &str) -> Option<Bytes>;

    /// A part of an image; `part` is `kernel`, `initramfs`, `packages` or `modloop`.
    fn blob(&self, digest: Digest, part: &str) -> Option<Bytes>;

    /// The last byte was read for this client.
    fn fetched(&self, from: Ipv4Addr, what: Fetched) -> impl Future<Output = ()> + Send;
}

impl Table for Central {
    fn loader(&self, name: &str) -> Option<Bytes> {
        self.boot.loader(name)
    }

    fn blob(&self, digest: Digest, part: &str) -> Option<Bytes> {
        self.catalog().blob(&digest).filter(|_| PARTS.contains(&part))
    }

    async fn fetched(&self, from: Ipv4Addr, what: Fetched) {
        self.boot.fetched(from, what).await;
    }
}

/// A name that has the right shape; whether it exists is for the table to say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Name<'a> {
    Loader(&'a str),
    Blob { digest: Digest, part: &'a str },
}

impl<'a> Name<'a> {
    /// Reads a requested name; some firmware puts one slash before it.
    pub(super) fn parse(requested: &'a str) -> Option<Self> {
        let name = requested.strip_prefix('/').unwrap_or(requested);
        let mut parts = name.split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(loader), None, ..) if !loader.is_empty() => Some(Name::Loader(loader)),
            (Some("blob"), Some(digest), Some(part), None) => Some(Name::Blob { digest: digest.parse().ok()?, part }),
            _ => None,
        }
    }
}
