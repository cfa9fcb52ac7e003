//! A Debian root that stays on three servers: one has a wrong byte in its data, another one is lost
//! while the node reads from it, and stays away while the node reboots by kexec. A root that no
//! server has right is refused.

use crate::{
    IMAGE, NODE,
    damaged::{Manifests, copy_images, flip, is_refused_for_its_bit, replace_manifest},
    racks::{BOOT, OrEnd, SOON, reboot_warm, stages, until_phase, until_written, up_alone},
};
use meshd_lab::{Neighbour, Power, Rack, Shape};
use serde_json::Value;
use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};

/// Machines of the segment, outside of the range of leases.
const LIAR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 8);
pub const MIRROR: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 9);
const UNLIMITED: &str = "0";
/// Reads the whole root anew.
const READ_ALL: &str = "echo 3 > /proc/sys/vm/drop_caches && md5sum < /dev/dm-0";

#[test]
fn tethered_node_reads_on_when_one_server_lies_and_another_is_lost() {
    let mut blobs = PathBuf::new();
    let mut folder = PathBuf::new();
    let mut manifests = None;
    let mut test = up_alone(|mut options, dir| {
        (options.nodes, options.powered) = (1, false);
        options.shape = Shape { cpus: 1, memory_mib: 1024, ..options.shape };
        let servers = [LIAR, MIRROR].map(|server| format!("{server}:8080"));
        options = options
            .set("enroll.policy", "auto")
            .set("boot.root_servers", &format!("{servers:?}"))
            .set("profiles.debian.image", IMAGE)
            .set("profiles.debian.overlays", r#"["base", "agent", "ssh", "motd"]"#)
            .set("profiles.debian.root_mode", "tethered")
            .set("profiles.debian.warm", "allow")
            .set("profiles.debian.writable", "256M")
            .set("defaults.profile", "debian");
        Rack::prepare(&options, &mut |word| eprintln!("{word}")).or_end();
        (blobs, folder) = (dir.join("blobs"), dir.join("lab"));
        copy_images(options.blobs.as_deref().expect("named"), &blobs);
        manifests = Some(flip(&blobs, IMAGE));
        options.blobs = Some(blobs.clone());
        options
    });
    let rack = &mut test.rack;
    let Manifests { flipped, intact } = manifests.expect("made");
    let roots = [root(&flipped, &blobs), root(&intact, &blobs)];
    let mut lie = roots.clone();
    let middle = lie[1].1.len() / 2;
    lie[1].1[middle] ^= 1;
    let _liar = server(rack, "liar", LIAR, &folder, &lie, UNLIMITED);
    let mirror = server(rack, "mirror", MIRROR, &folder, &roots, UNLIMITED);
    let [_, (digest, _)] = roots;

    replace_manifest(rack, IMAGE, &flipped);
    rack.power(NODE, Power::On).or_end();
    is_refused_for_its_bit(rack, NODE);
    until_written(rack, NODE, "no server has the right bytes from 0 on", SOON);

    replace_manifest(rack, IMAGE, &intact);
    let node = until_phase(rack, NODE, "online", BOOT);
    assert!(!stages(&node).contains(&"root"), "it fetched all: {node}");
    let id = rack.id(NODE).to_string();
    let read = |rack: &Rack| {
        let exec = ["node", "exec", "--user", "root", &id, "--", "/bin/sh", "-c", READ_ALL];
        rack.run_cli(&exec).or_end()
    };
    let before = read(rack);
    let failed = |server: Ipv4Addr| format!("fetch http://{server}:8080/blob/{digest}/root: ");
    let wrong = format!("{}its bytes are not those of the root", failed(LIAR));
    until_written(rack, NODE, &wrong, SOON);
    // The machine is gone: nothing refuses a connection.
    drop(mirror);
    assert_eq!(read(rack), before, "the central node has it, too");
    until_written(rack, NODE, &failed(MIRROR), SOON);

    // systemd reads its programs for the shutdown, and looks for `kexec`, on the tethered root.
    reboot_warm(rack, NODE);
    assert_eq!(read(rack), before, "the next boot has the same root");
    let doctor = rack.query(&["node", "doctor", &id]).or_end();
    assert!(doctor.to_string().contains(" MiB used by the tethered root of "), "{doctor}");
    assert_eq!(doctor["failures"], 0, "{doctor}");
}

/// The digest and the bytes of the root of a manifest.
pub fn root(manifest: &[u8], blobs: &Path) -> (String, Vec<u8>) {
    let manifest: Value = serde_json::from_slice(manifest).expect("JSON");
    let digest = manifest["parts"]["root"]["digest"].as_str().expect("a digest").to_owned();
    let bytes = fs::read(blobs.join("sha256").join(&digest)).expect("the blob");
    (digest, bytes)
}

/// A machine with nginx and roots by digest. Each connection has this rate.
pub fn server(
    rack: &Rack,
    name: &str,
    address: Ipv4Addr,
    folder: &Path,
    roots: &[(String, Vec<u8>)],
    rate: &str,
) -> Neighbour {
    let folder = folder.join(name);
    fs::create_dir_all(folder.join("sha256")).expect("made");
    for (digest, bytes) in roots {
        fs::write(folder.join("sha256").join(digest), bytes).expect("written");
    }
    let config = folder.join("nginx.conf");
    let text = format!(
        "daemon off; user root; pid {0}/pid; error_log {0}/error.log; events {{}} \
         http {{ access_log off; limit_rate {rate}; server {{ listen {address}:8080; \
         location ~ \"^/blob/([0-9a-f]{{64}})/root$\" {{ alias {0}/sha256/$1; }} }} }}",
        folder.display()
    );
    fs::write(&config, text).expect("written");
    let mut nginx = Command::new("nginx");
    nginx.arg("-p").arg(&folder).arg("-c").arg(&config);
    let mut server = rack.neighbour(name, address).or_end();
    server.start(&mut nginx, &folder.join("log")).or_end();
    server
}
