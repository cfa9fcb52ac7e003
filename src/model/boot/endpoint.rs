//! The address of the boot API for a node.

use std::net::Ipv4Addr;

/// Address of the boot API for a node: the server address of the segment on which its request
/// arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// Server address that nodes receive.
    pub address: Ipv4Addr,
    /// TCP port of `[http]`.
    pub http_port: u16,
}

impl Endpoint {
    /// Returns `http://address:port`, without a slash at the end.
    pub fn http(&self) -> String {
        format!("http://{}:{}", self.address, self.http_port)
    }

    /// Returns `tftp://address`, without a slash at the end; the port is always 69.
    pub fn tftp(&self) -> String {
        format!("tftp://{}", self.address)
    }

    /// Returns the URL that DHCP announces to iPXE, and to which every script returns.
    pub fn entry(&self) -> String {
        format!("{}/boot.ipxe", self.http())
    }
}
