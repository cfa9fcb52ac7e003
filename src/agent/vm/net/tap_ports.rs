//! TAP devices of a VM: made before QEMU starts, filtered, and removed after QEMU ended.

use crate::{
    nat::{
        BRIDGE,
        guest_firewall::{self, GuestPort},
    },
    system::Tree,
    vm::{
        confine::{
            Confinement, device,
            users::{MASK, USERS},
        },
        helper_program,
        host::{
            config::HostConfig,
            installed::{self, Programs},
        },
        reservations::Reservations,
        vm_paths::VmPaths,
    },
};
use meshd_proto::vm::VmSpec;
use std::{
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Network interfaces in sysfs.
const NET: &str = "/sys/class/net";
/// Device by which QEMU attaches to a TAP device.
const TUN: &str = "/dev/net/tun";

/// The name of the TAP device of a NIC: unique to the VM and at most 15 bytes (IFNAMSIZ).
pub fn tap_name(spec: &VmSpec, index: usize) -> String {
    let uuid = meshd_types::Digest::of(&spec.uuid.0).to_string();
    format!("vm{}n{index}", &uuid[..10])
}

/// Makes the TAP devices of a VM, down and without bridge.
///
/// # Errors
/// A TAP device or its filter is not made.
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
    let ip = ip.ok_or("there is no `ip` to make a port with")?;
    let (user, _) = confined.owner();
    for index in 0..spec.nics.len() {
        let port = tap_name(spec, index);
        delete(ip, &port).await;
        add(ip, config, &port, (user, files), confined).await?;
    }
    for nic in spec.nics.iter().filter(|nic| nic.address.is_none()) {
        if nic.bridge.as_ref().is_some_and(|bridge| bridge.as_str() != BRIDGE) {
            tracing::warn!(vm = %spec.name, mac = %nic.mac, "a card on a bridge of the site without an address reaches nothing but DHCP");
        }
    }
    isolate(config, reservations).await
}

/// Installs the filter of each TAP device for the current VMs and network.
///
/// # Errors
/// The kernel rejects the filter.
pub async fn isolate(config: &HostConfig, reservations: &Reservations) -> Result<(), String> {
    let (root, reservations) = (config.root.clone(), reservations.clone());
    let done = tokio::task::spawn_blocking(move || isolate_now(root, &reservations)).await;
    done.map_err(|error| error.to_string())?.map_err(|error| format!("ports cannot be filtered: {error}"))
}

fn isolate_now(root: PathBuf, reservations: &Reservations) -> std::io::Result<()> {
    /// Serialises look and write: an older look must not remove the filter of a newer port.
    static ISOLATING: Mutex<()> = Mutex::new(());
    let _alone = ISOLATING.lock().unwrap_or_else(PoisonError::into_inner);
    let ports = ports(reservations);
    if ports.is_empty() {
        // A node without guests is left unchanged.
        return Ok(());
    }
    let around = guest_firewall::firewall_context(&Tree::new(&root), (USERS.start, MASK));
    if guest_firewall::is_current(&ports, &around)? { Ok(()) } else { guest_firewall::isolate(&ports, &around) }
}

/// Existing ports.
fn ports(reservations: &Reservations) -> Vec<GuestPort> {
    let (specs, addresses) = (reservations.specs(), reservations.addresses());
    let each = specs.iter().flat_map(|spec| {
        spec.nics.iter().enumerate().filter_map(|(index, nic)| {
            let (name, bridge) = (tap_name(spec, index), nic.bridge.as_ref()?.to_string());
            let given = addresses.get(&nic.mac).copied().filter(|_| bridge == BRIDGE);
            Some(GuestPort { name, mac: nic.mac, address: given.or(nic.address), bridge, peers: nic.peers })
        })
    });
    each.filter(|port| Path::new(NET).join(&port.name).exists()).collect()
}

/// Isolates a bridge port from other isolated ports.
///
/// # Errors
/// The kernel rejects it.
pub fn keep_apart(port: &str) -> Result<(), String> {
    let place = Path::new(NET).join(port).join("brport/isolated");
    fs::write(&place, "1").map_err(|error| format!("{}: {error}", place.display()))
}

/// Removes the TAP devices of a VM.
pub async fn remove(spec: &VmSpec, config: &HostConfig) {
    let Some(ip) = Programs::find(&Tree::new(&config.root)).ip else { return };
    for index in 0..spec.nics.len() {
        let port = tap_name(spec, index);
        if Path::new(NET).join(&port).exists() {
            delete(&ip, &port).await;
        }
    }
}

/// The `ip` of busybox makes no TAP devices. Its `tunctl` does, but takes the user only by name.
async fn add(
    ip: &Path,
    config: &HostConfig,
    port: &str,
    (user, files): (u32, &VmPaths),
    confined: &Confinement,
) -> Result<(), String> {
    const NAME: &str = "machine";
    let number = user.to_string();
    let made = helper_program::run(ip, &words(&["tuntap", "add", "dev", port, "mode", "tap", "user", &number])).await;
    let (Err(why), Some(tunctl)) = (&made, installed::program(&Tree::new(&config.root), "tunctl")) else { return made };
    let users = files.folder().join("passwd");
    let line = format!("root:x:0:0::/:/bin/sh\n{NAME}:x:{number}:{number}::/:/sbin/nologin\n");
    fs::write(&users, line).map_err(|error| format!("{}: {error}", users.display()))?;
    let (program, args) = confined.naming(&users, &tunctl, &words(&["-t", port, "-u", NAME]));
    helper_program::run(&program, &args).await.map_err(|error| format!("{error}; before that: {why}"))
}

async fn delete(ip: &Path, port: &str) {
    // It may not exist.
    let _ = helper_program::run(ip, &words(&["link", "del", "dev", port])).await;
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
