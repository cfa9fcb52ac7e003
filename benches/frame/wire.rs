//! Two network namespaces and the wire between them.

use super::cleanup;
use meshd_lab::Namespace;
use std::{
    net::Ipv4Addr,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// Address of whoever serves.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 1);
/// Address of whoever asks.
pub const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 78, 0, 2);
/// The server's end of the wire.
pub const SERVER_INTERFACE: &str = "bench0";
/// The clients' end of the wire.
pub const CLIENT_INTERFACE: &str = "eth0";

/// Both ends, and a folder for whatever the servers need. All of it goes when dropped.
pub struct Wire {
    dir: TempDir,
    /// Where the server runs.
    pub server: Namespace,
    /// Where the load comes from.
    pub client: Namespace,
}

impl Wire {
    /// Makes namespaces and wire, both ends in 10.78.0.0/16.
    pub fn new() -> anyhow::Result<Self> {
        let wire = {
            let mut made = cleanup::made();
            let dir = tempfile::Builder::new().prefix("meshbench-").tempdir()?;
            made.folders.push(dir.path().to_owned());
            let wire =
                Wire { dir, server: cleanup::namespace("s"), client: cleanup::namespace("c") };
            for namespace in [&wire.server, &wire.client] {
                made.namespaces.push(namespace.clone());
                namespace.create()?;
            }
            wire
        };
        let Wire { server, client, .. } = &wire;
        let peer = ["peer", "name", CLIENT_INTERFACE, "netns", client.name()];
        server.ip(&[&["link", "add", SERVER_INTERFACE, "type", "veth"], &peer[..]].concat())?;
        for (namespace, interface, address) in
            [(server, SERVER_INTERFACE, SERVER), (client, CLIENT_INTERFACE, CLIENT)]
        {
            namespace.ip(&["address", "add", &format!("{address}/16"), "dev", interface])?;
            namespace.ip(&["link", "set", interface, "up"])?;
        }
        Ok(wire)
    }

    /// A file in the bench's own folder.
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        for namespace in [&self.server, &self.client] {
            cleanup::remove(namespace);
        }
        let mut made = cleanup::made();
        made.namespaces.retain(|other| {
            other.name() != self.server.name() && other.name() != self.client.name()
        });
        made.folders.retain(|folder| folder != self.dir.path());
    }
}
