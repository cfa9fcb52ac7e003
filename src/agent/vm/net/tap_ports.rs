//! TAP devices of a VM: made before QEMU starts, filtered, attached to bridges, and removed after QEMU ended.

use crate::{
    networks::firewall::{
        guest::{self, GuestPort},
        user::UserFirewall,
    },
    system::Tree,
    vm::{
        confine::{Confinement, device},
        helper_program::{self, strings},
        host::{
            config::HostConfig,
            installed::{self, Programs},
        },
        lock_helpers::locked,
        reservations::Reservations,
        vm_paths::VmPaths,
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
    ip: Option<&Path>,
    files: &VmPaths,
    confined: &Confinement,
    config: &HostConfig,
    reservations: &Reservations,
) -> Result<(), String> {
    if spec.nics.is_empty() {
        return Ok(());
    }
    device::share(&Tree::new(&config.root), TUN)?;
    let ip = ip.ok_or("cannot make a TAP device: `ip` is not installed")?;
    let (user, _) = confined.owner();
    for index in 0..spec.nics.len() {
        let port = tap_name(spec, index);
        delete(ip, &port).await;
        add(ip, config, &port, (user, files), confined).await?;
    }
    for nic in spec.nics.iter().filter(|nic| nic.address.is_none()) {
        if nic.network().is_some_and(|network| !network.is_private()) {
            tracing::warn!(vm = %spec.name, mac = %nic.mac, "a NIC without an address on a bridge of the site can use DHCP only");
        }
    }
    update_filters(config, reservations).await
}

/// Installs the firewall of the users of VMs, and the packet filter of each TAP device for the current VMs and network.
pub async fn update_filters(config: &HostConfig, reservations: &Reservations) -> Result<(), String> {
    let (tree, central, reservations) = (Tree::new(&config.root), config.central, reservations.clone());
    let result = tokio::task::spawn_blocking(move || update_filters_blocking(&tree, central, &reservations)).await;
    result.map_err(|error| error.to_string())?
}

fn update_filters_blocking(tree: &Tree, central: Option<Ipv4Addr>, reservations: &Reservations) -> Result<(), String> {
    /// Serialises read and write: an outdated list of ports must not remove the filter of a new port.
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
    let updated = is_current.and_then(|is_current| if is_current { Ok(()) } else { guest::isolate(&ports, &context) });
    updated.map_err(|error| format!("cannot filter TAP devices: {error}"))
}

/// Returns the existing TAP devices of VMs.
fn ports(reservations: &Reservations) -> Vec<GuestPort> {
    let (specs, addresses) = (reservations.specs(), reservations.addresses());
    let ports = specs.iter().flat_map(|spec| {
        spec.nics.iter().enumerate().filter_map(|(index, nic)| {
            let (name, bridge) = (tap_name(spec, index), nic.bridge.clone()?);
            let is_private = NetworkName::of_bridge(&bridge).is_private();
            let assigned = addresses.get(&nic.mac).copied().filter(|_| is_private);
            Some(GuestPort { name, mac: nic.mac, address: assigned.or(nic.address), bridge, peers: nic.peers })
        })
    });
    ports.filter(|port| Path::new(NET).join(&port.name).exists()).collect()
}

/// Attaches the TAP devices of a VM to their bridges and sets them up.
pub async fn attach(spec: &VmSpec, ip: Option<&Path>) -> Result<(), String> {
    for (index, nic) in spec.nics.iter().enumerate() {
        let Some(bridge) = &nic.bridge else { continue };
        let port = &tap_name(spec, index);
        let ip = ip.ok_or("cannot attach a NIC to a bridge: `ip` is not installed")?;
        helper_program::run(ip, &strings(&["link", "set", "dev", port, "master", bridge.as_str()])).await?;
        if !nic.peers && failpoint::defends("guest-ports") {
            isolate_bridge_port(port)?;
        }
        helper_program::run(ip, &strings(&["link", "set", "dev", port, "up"])).await?;
    }
    Ok(())
}

/// Isolates a bridge port from other isolated ports.
fn isolate_bridge_port(port: &str) -> Result<(), String> {
    let path = Path::new(NET).join(port).join("brport/isolated");
    fs::write(&path, "1").map_err(|error| format!("{}: {error}", path.display()))
}

pub async fn remove(spec: &VmSpec, config: &HostConfig) {
    let Some(ip) = Programs::find(&Tree::new(&config.root)).ip else { return };
    for index in 0..spec.nics.len() {
        let port = tap_name(spec, index);
        if Path::new(NET).join(&port).exists() {
            delete(&ip, &port).await;
        }
    }
}

/// Makes a TAP device. The `ip` of busybox cannot; its `tunctl` can, but accepts the user only by name.
async fn add(
    ip: &Path,
    config: &HostConfig,
    port: &str,
    (user, files): (u32, &VmPaths),
    confined: &Confinement,
) -> Result<(), String> {
    const NAME: &str = "machine";
    let number = user.to_string();
    let made = helper_program::run(ip, &strings(&["tuntap", "add", "dev", port, "mode", "tap", "user", &number])).await;
    let (Err(ip_error), Some(tunctl)) = (&made, installed::program(&Tree::new(&config.root), "tunctl")) else {
        return made;
    };
    let users = files.folder().join("passwd");
    let line = format!("root:x:0:0::/:/bin/sh\n{NAME}:x:{number}:{number}::/:/sbin/nologin\n");
    fs::write(&users, line).map_err(|error| format!("{}: {error}", users.display()))?;
    let (program, args) = confined.command_with_users(&users, &tunctl, &strings(&["-t", port, "-u", NAME]));
    helper_program::run(&program, &args).await.map_err(|error| format!("{error}; before that: {ip_error}"))
}

async fn delete(ip: &Path, port: &str) {
    // The device may not exist.
    let _ = helper_program::run(ip, &strings(&["link", "del", "dev", port])).await;
}
