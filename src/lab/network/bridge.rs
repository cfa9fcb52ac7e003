//! The rack's bridge, and one tap for each node.

use crate::{LabError, Namespace};
use std::net::Ipv4Addr;

/// Name of the bridge inside the namespace; the lab's site file contains `interface = "br0"`.
pub const BRIDGE: &str = "br0";

/// Creates the bridge with the address of the central node.
pub fn create(namespace: &Namespace, address: Ipv4Addr, prefix_len: u8) -> Result<(), LabError> {
    namespace.ip(&["link", "add", BRIDGE, "type", "bridge"])?;
    set_address(namespace, address, prefix_len)?;
    namespace.ip(&["link", "set", BRIDGE, "up"])
}

/// Gives the bridge this address alone.
pub fn set_address(
    namespace: &Namespace,
    address: Ipv4Addr,
    prefix_len: u8,
) -> Result<(), LabError> {
    namespace.ip(&["-4", "address", "flush", "dev", BRIDGE])?;
    namespace.ip(&["address", "add", &format!("{address}/{prefix_len}"), "dev", BRIDGE])
}

/// Creates a tap and attaches it to the bridge.
pub fn add_tap(namespace: &Namespace, tap: &str) -> Result<(), LabError> {
    namespace.ip(&["tuntap", "add", "dev", tap, "mode", "tap"])?;
    plug(namespace, tap)
}

/// Attaches a second namespace to the bridge, with its own address: a machine on the boot network
/// that is not a node.
pub fn add_machine(
    namespace: &Namespace,
    port: &str,
    machine: &Namespace,
    address: Ipv4Addr,
    prefix_len: u8,
) -> Result<(), LabError> {
    let nic = "eth0";
    namespace.ip(&[
        "link",
        "add",
        port,
        "type",
        "veth",
        "peer",
        "name",
        nic,
        "netns",
        machine.name(),
    ])?;
    plug(namespace, port)?;
    machine.ip(&["address", "add", &format!("{address}/{prefix_len}"), "dev", nic])?;
    machine.ip(&["link", "set", nic, "up"])
}

fn plug(namespace: &Namespace, port: &str) -> Result<(), LabError> {
    namespace.ip(&["link", "set", port, "master", BRIDGE])?;
    namespace.ip(&["link", "set", port, "up"])
}
