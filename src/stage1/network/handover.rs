//! Files that let the network of the OS keep the lease. The address stays configured; the DHCP
//! client of the OS identifies itself as stage 1 did, so the server renews the same lease.

use super::lease::Lease;
use crate::alpine::has_alpine_overlay;
use meshd_proto::stage1::RootMode;
use meshd_types::MacAddr;
use std::{fs, io, path::Path};

/// The lease for all other programs, below `/run`.
const LEASE_FILE: &str = "meshd/lease.json";
/// Configuration of systemd-networkd and udev, below `/run`. The first file that matches counts.
const NETWORKD_FOLDER: &str = "systemd/network";
/// Included by `/etc/network/interfaces` of Debian.
const IFUPDOWN_FOLDER: &str = "etc/network/interfaces.d";
/// Configuration of the resolver of the C library.
const RESOLVER: &str = "etc/resolv.conf";

/// Writes the files. `run` is the folder that becomes `/run`, `root` the new root.
pub fn write_handover(
    run: &Path,
    root: &Path,
    interface: &str,
    mac: MacAddr,
    lease: &Lease,
    mode: RootMode,
) -> io::Result<()> {
    let lease_file = run.join(LEASE_FILE);
    fs::create_dir_all(run.join("meshd"))?;
    let value =
        serde_json::json!({ "version": 1, "interface": interface, "mac": mac, "lease": lease });
    fs::write(lease_file, format!("{value}\n"))?;
    let networkd = run.join(NETWORKD_FOLDER);
    fs::create_dir_all(&networkd)?;
    fs::write(networkd.join("10-meshd-boot.link"), link(interface, mac))?;
    fs::write(networkd.join("10-meshd-boot.network"), network(interface, mac, mode))?;
    let ifupdown = root.join(IFUPDOWN_FOLDER);
    // Of Alpine, the stanza is another one, which names the script of udhcpc.
    if ifupdown.is_dir() && !has_alpine_overlay(root) {
        let text = format!("auto {interface}\niface {interface} inet dhcp\n");
        fs::write(ifupdown.join("meshd-boot"), text)?;
    }
    let resolver = root.join(RESOLVER);
    let is_absent = |about: fs::Metadata| about.is_file() && about.len() == 0;
    // A link belongs to the resolver of the OS.
    if !lease.dns.is_empty() && fs::symlink_metadata(&resolver).map_or(true, is_absent) {
        fs::write(resolver, resolv_conf(lease))?;
    }
    Ok(())
}

/// Name servers of the lease (resolv.conf(5)).
fn resolv_conf(lease: &Lease) -> String {
    let search = lease.domain.iter().map(|domain| format!("search {domain}\n"));
    search.chain(lease.dns.iter().map(|server| format!("nameserver {server}\n"))).collect()
}

/// The interface keeps its name: udev cannot rename one that is up (systemd.link(5)).
fn link(interface: &str, mac: MacAddr) -> String {
    format!("[Match]\nPermanentMACAddress={mac}\n\n[Link]\nName={interface}\n")
}

/// `KeepConfiguration=dhcp`: the address stays when no server answers (systemd.network(5)). `yes`:
/// it also stays while networkd starts, which reads its own program from a tethered root.
/// `ClientIdentifier=mac` is the identifier that stage 1 sent.
fn network(interface: &str, mac: MacAddr, mode: RootMode) -> String {
    let keep = if mode.is_ram() { "dhcp" } else { "yes" };
    format!(
        "[Match]\nName={interface}\nMACAddress={mac}\n\n\
         [Network]\nDHCP=ipv4\nKeepConfiguration={keep}\n\n\
         [DHCPv4]\nClientIdentifier=mac\nUseMTU=yes\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn lease_is_written_for_every_network_of_an_os() {
        let run = tempfile::tempdir().expect("a folder");
        let root = tempfile::tempdir().expect("a folder");
        let lease = Lease {
            address: Ipv4Addr::new(10, 77, 0, 50),
            prefix: 24,
            server: Ipv4Addr::new(10, 77, 0, 1),
            router: None,
            dns: Vec::new(),
            domain: None,
            mtu: None,
            lease_s: 3600,
        };
        let mac = MacAddr([2, 0, 0, 0, 0, 7]);
        let write_as = |mode| write_handover(run.path(), root.path(), "eth0", mac, &lease, mode);
        let write = || write_as(RootMode::Ram);
        write_as(RootMode::Tethered).expect("written");
        let network = run.path().join("systemd/network/10-meshd-boot.network");
        let tethered = fs::read_to_string(network).expect("is there");
        assert!(tethered.contains("\nKeepConfiguration=yes\n"), "{tethered}");
        write().expect("written");
        let text = |path: &str| fs::read_to_string(run.path().join(path)).expect("is there");
        assert!(text("meshd/lease.json").contains("\"address\":\"10.77.0.50\""));
        assert!(text("systemd/network/10-meshd-boot.network").contains("ClientIdentifier=mac"));
        assert!(text("systemd/network/10-meshd-boot.link").contains("Name=eth0"));
        assert!(!root.path().join("etc").exists(), "neither ifupdown nor name servers");

        fs::create_dir_all(root.path().join(IFUPDOWN_FOLDER)).expect("made");
        write().expect("written");
        let boot = root.path().join(IFUPDOWN_FOLDER).join("meshd-boot");
        assert_eq!(fs::read_to_string(&boot).expect("there"), "auto eth0\niface eth0 inet dhcp\n");

        fs::remove_file(&boot).expect("removed");
        let script = root.path().join("usr/share/meshd/udhcpc");
        fs::create_dir_all(script.parent().expect("has one")).expect("made");
        fs::write(&script, "").expect("written");
        write().expect("written");
        assert!(!boot.exists(), "one stanza for the boot interface of Alpine");
        fs::remove_file(&script).expect("removed");

        let dns = vec![Ipv4Addr::new(10, 77, 0, 1)];
        let named = Lease { dns, domain: Some("rack.example".into()), ..lease.clone() };
        let write_named = |lease: &Lease| {
            let run = run.path();
            let root = root.path();
            write_handover(run, root, "eth0", mac, lease, RootMode::Ram).expect("written");
        };
        let file = root.path().join(RESOLVER);
        fs::write(&file, "").expect("written");
        write_named(&named);
        let expected = "search rack.example\nnameserver 10.77.0.1\n";
        assert_eq!(fs::read_to_string(&file).expect("there"), expected);
        fs::remove_file(&file).expect("removed");
        std::os::unix::fs::symlink("../run/stub", &file).expect("linked");
        write_named(&named);
        assert!(fs::read_link(&file).is_ok(), "the link of the resolver of the OS");
    }
}
