//! What can be had by TFTP: loaders by file name, and parts of images as `blob/<SHA-256>/<part>`.

use crate::id::Digest;
use crate::serve::central::{Central, Fetched};
use bytes::Bytes;
use std::{future::Future, net::Ipv4Addr};
use tokio::fs::File;

/// Bytes to send.
pub enum Content {
    /// In memory.
    Memory(Bytes),
    /// A file of this many bytes, which does not change.
    File(File, u64),
}

impl Content {
    /// Length in bytes.
    pub fn length(&self) -> u64 {
        match self {
            Content::Memory(bytes) => bytes.len() as u64,
            Content::File(_, length) => *length,
        }
    }
}

/// Where the server looks names up, and reports what was fetched.
pub trait Table: Send + Sync + 'static {
    /// A loader by its file name.
    fn loader(&self, name: &str) -> Option<Bytes>;

    /// A part of an image; `part` is `kernel`, `initramfs`, `packages` or `modloop`.
    fn blob(&self, digest: Digest, part: &str) -> impl Future<Output = Option<Content>> + Send;

    /// The last byte was read for this client.
    fn fetched(&self, from: Ipv4Addr, what: Fetched) -> impl Future<Output = ()> + Send;
}

impl Table for Central {
    fn loader(&self, name: &str) -> Option<Bytes> {
        Central::loader(self, name)
    }

    async fn blob(&self, _digest: Digest, _part: &str) -> Option<Content> {
        None
    }

    async fn fetched(&self, from: Ipv4Addr, what: Fetched) {
        Central::fetched(self, from, what).await;
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
