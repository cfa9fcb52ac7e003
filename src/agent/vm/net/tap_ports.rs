//! TAP devices of a VM: made before QEMU starts, filtered, attached to bridges, and removed after
//! QEMU ended.

use crate::{
    networks::{
        firewall::{
            guest::{self, GuestPort},
            user::UserFirewall,
        },
        links,
    },
    system::Tree,
    vm::{
        confine::{Confinement, device},
        host::config::HostConfig,
        lock_helpers::locked,
        reservations::Reservations,
    },
};
use meshd_proto::{NetworkName, vm::VmSpec};
use meshd_types::failpoint;
use std::{fs, net::Ipv4Addr, path::Path, sync::Mutex};

const NET: &str = "/sys/class/net";
/// Device by which QEMU attaches to a TAP device.
const TUN: &str = "/dev/net/tun";

/// Returns the name of the TAP device of a NIC: unique on the node, at most 15 bytes (IFNAMSIZ).
pub fn tap_name(spec: &VmSpec, index: usize) -> String {
    let uuid = meshd_types::Digest::of(&spec.uuid.0).to_string();
    format!("vm{}n{index}", &uuid[..10])
}

/// Makes the TAP devices of a VM, down and without bridge, and their filters.
pub async fn make(
    spec: &VmSpec,
    confined: &Confinement,
    config: &HostConfig,
    reservations: &Reservations,
) -> Result<(), String> {
    if spec.nics.is_empty() {
        return Ok(());
    }
    device::share(&Tree::new(&config.root), TUN)?;
    let (user, _) = confined.owner();
    for index in 0..spec.nics.len() {
        let port = tap_name(spec, index);
        // A device that a former agent left has another owner.
        delete(&port);
        links::make_tap(&port, user)
            .map_err(|error| format!("cannot make the TAP device {port}: {error}"))?;
    }
    for nic in spec.nics.iter().filter(|nic| nic.address.is_none()) {
        if nic.network().is_some_and(|network| !network.is_private()) {
            tracing::warn!(vm = %spec.name, mac = %nic.mac, "a NIC without an address on a bridge of the site can use DHCP only");
        }
    }
    update_filters(config, reservations).await
}

/// Installs the firewall of the users of VMs, and the packet filter of each TAP device for the
/// current VMs and network.
pub async fn update_filters(
    config: &HostConfig,
    reservations: &Reservations,
) -> Result<(), String> {
    let tree = Tree::new(&config.root);
    let central = config.central;
    let reservations = reservations.clone();
    let result =
        tokio::task::spawn_blocking(move || update_filters_blocking(&tree, central, &reservations))
            .await;
    result.map_err(|error| error.to_string())?
}

fn update_filters_blocking(
    tree: &Tree,
    central: Option<Ipv4Addr>,
    reservations: &Reservations,
) -> Result<(), String> {
    /// Serialises read and write: an outdated list of ports must not remove the filter of a new
    /// port.
    static UPDATE: Mutex<()> = Mutex::new(());
    let _guard = locked(&UPDATE);
    if reservations.specs().is_empty() {
        // A node without guests is left unchanged.
        return Ok(());
    }
    // Also without any NIC: programs of VMs would have the network of the node.
    UserFirewall::of_vms().ensure()?;
    let ports = ports(reservations);
    if ports.is_empty() {
        return Ok(());
    }
    let context = guest::firewall_context(tree, central);
    let is_current = guest::is_current(&ports, &context);
    let updated = is_current
        .and_then(|is_current| if is_current { Ok(()) } else { guest::isolate(&ports, &context) });
    updated.map_err(|error| format!("cannot filter TAP devices: {error}"))
}

/// Returns the existing TAP devices of VMs.
fn ports(reservations: &Reservations) -> Vec<GuestPort> {
    let specs = reservations.specs();
    let addresses = reservations.addresses();
    let ports = specs.iter().flat_map(|spec| {
        spec.nics.iter().enumerate().filter_map(|(index, nic)| {
            let name = tap_name(spec, index);
            let bridge = nic.bridge.clone()?;
            let is_private = NetworkName::of_bridge(&bridge).is_private();
            let assigned = addresses.get(&nic.mac).copied().filter(|_| is_private);
            Some(GuestPort {
                name,
                mac: nic.mac,
                address: assigned.or(nic.address),
                bridge,
                peers: nic.peers,
            })
        })
    });
    ports.filter(|port| Path::new(NET).join(&port.name).exists()).collect()
}

/// Attaches the TAP devices of a VM to their bridges and sets them up.
pub fn attach(spec: &VmSpec) -> Result<(), String> {
    for (index, nic) in spec.nics.iter().enumerate() {
        let Some(bridge) = &nic.bridge else { continue };
        let port = &tap_name(spec, index);
        let failed = |error| format!("cannot attach the TAP device {port} to {bridge}: {error}");
        links::attach(port, bridge).map_err(failed)?;
        if !nic.peers && failpoint::defends("guest-ports") {
            isolate_bridge_port(port)?;
        }
        links::set_up(port).map_err(failed)?;
    }
    Ok(())
}

/// Isolates a bridge port from other isolated ports.
fn isolate_bridge_port(port: &str) -> Result<(), String> {
    let path = Path::new(NET).join(port).join("brport/isolated");
    fs::write(&path, "1").map_err(|error| format!("{}: {error}", path.display()))
}

/// Removes the TAP devices of a VM.
pub fn remove(spec: &VmSpec) {
    for index in 0..spec.nics.len() {
        delete(&tap_name(spec, index));
    }
}

fn delete(port: &str) {
    if let Err(error) = links::remove(port) {
        tracing::warn!(port, %error, "cannot remove a TAP device");
    }
}
