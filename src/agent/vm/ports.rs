//! Ports of machines on bridges of the node: made for the machine's user before QEMU runs, with a filter that lets its guest show its own
//! addresses alone, and removed when QEMU has gone.

use super::{
    argv,
    confine::{Confinement, device},
    host::{self, Places},
    plan::Plan,
    process,
    promised::Promised,
};
use crate::{agent::facts::Tree, wire::vm::VmSpec};
use std::path::Path;

/// The device by which QEMU takes its port.
const TUN: &str = "/dev/net/tun";

/// Makes the ports of a machine, down and not on their bridges yet.
///
/// # Errors
/// In words: no port is there without its filter.
pub async fn make(
    spec: &VmSpec,
    plan: &Plan,
    confined: &Confinement,
    places: &Places,
    _promised: &Promised,
) -> Result<(), String> {
    if spec.nics.is_empty() {
        return Ok(());
    }
    device::share(&Tree::new(&places.root), TUN)?;
    let ip = plan.ip.as_deref().ok_or("there is no `ip` to make a port with")?;
    let (user, _) = confined.owner();
    for index in 0..spec.nics.len() {
        let port = argv::tap(spec, index);
        delete(ip, &port).await;
        add(ip, places, &port, user).await?;
    }
    Ok(())
}

/// Removes them. What is not there is removed.
pub async fn remove(spec: &VmSpec, places: &Places) {
    let Some(ip) = host::programs(places).ip else { return };
    for index in 0..spec.nics.len() {
        let port = argv::tap(spec, index);
        if Path::new("/sys/class/net").join(&port).exists() {
            delete(&ip, &port).await;
        }
    }
}

async fn add(ip: &Path, places: &Places, port: &str, user: u32) -> Result<(), String> {
    let user = user.to_string();
    let made = process::run(ip, &words(&["tuntap", "add", "dev", port, "mode", "tap", "user", &user])).await;
    // The `ip` of busybox does not know ports; its `tunctl` does.
    match (made, host::program(&Tree::new(&places.root), "tunctl")) {
        (Err(_), Some(tunctl)) => process::run(&tunctl, &words(&["-t", port, "-u", &user])).await,
        (made, _) => made,
    }
}

async fn delete(ip: &Path, port: &str) {
    // One that is not there is none to be deleted.
    let _ = process::run(ip, &words(&["link", "del", "dev", port])).await;
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
