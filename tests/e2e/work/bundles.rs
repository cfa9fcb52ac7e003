//! `meshd lab try` boots a node with bundles and shipped overlays, and shows on its console what
//! became of them: bundles fetched by digest, mounted before services, their glibc programs run on
//! musl; the overlays tuning, kvm-host and mpi do what they say.

use crate::{
    overlays::copy,
    racks::{Places, agent, blobs, repository},
};
use meshd_lab::{Identity, plain};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Stdio},
};

/// Looks at the node from inside, as a service of it would.
const TRIAL: &str = r#"#!/sbin/openrc-run
description="runs the programs of the bundles, and looks at what overlays have made"

depend() {
	after tuning kvm-host sysctl lab-login
}

start() {
	{
		echo "TRIAL-MOUNTS $(grep -c ' /opt/bundles/.* squashfs ro' /proc/mounts)"
		echo "TRIAL-MPI $(mpiexec.hydra -launcher fork -n 2 /bin/echo rank | tr '\n' ' ')"
		echo "TRIAL-RUN $(qemu-run /opt/bundles/qemu/libexec/qemu-img --version | head -n 1)"
		echo "TRIAL-ACCEL $(qemu-system-x86_64 -accel help | tr '\n' ' ')"
		echo "TRIAL-IMG $(qemu-img create -f qcow2 /tmp/trial.qcow2 1M >/dev/null && head -c 3 /tmp/trial.qcow2)"
		echo "TRIAL-TPM $(swtpm --version | head -n 1)"
		echo "TRIAL-UEFI $(ls /opt/bundles/qemu/share/qemu/OVMF_*.fd | wc -l)"
		echo "TRIAL-SYSCTL $(cat /proc/sys/vm/swappiness /proc/sys/vm/nr_hugepages | tr '\n' ' ')"
		echo "TRIAL-THP $(cat /sys/kernel/mm/transparent_hugepage/enabled)"
		echo "TRIAL-MEMLOCK $(ulimit -l)"
		echo "TRIAL-KVM $(exec 3<>/dev/kvm && echo opens) $(stat -c %a /var/lib/machines) $(cat /sys/kernel/mm/ksm/run)"
		echo "TRIAL-HOSTS $(tr '\n' ' ' </etc/mpi/hostfile)"
		echo "TRIAL-KEY $(stat -c %a /root/.ssh/id_mpi) $(sha256sum </root/.ssh/id_mpi | cut -c 1-64)"
		echo "TRIAL-MEMBERS $(grep -c mpi-member /root/.ssh/authorized_keys)"
		echo "TRIAL-LOGIN $(grep -c '^root::' /etc/shadow)"
		echo "TRIAL-STARTED $(rc-status default | grep -c started) $(rc-status -a | grep -c crashed)"
		echo "TRIAL-END"
	} >/dev/ttyS0 2>&1
}
"#;
const TRIAL_MANIFEST: &str = "description = \"on trial\"\n[services]\ndefault = [\"trial\"]\n[files.\"/etc/init.d/trial\"]\nmode = \"0755\"\n";
/// What the group's members let each other in by; any text will do for a file.
const KEY: &str = "a private key\nof two lines";

/// The committed site with a profile that has all of it; QEMU comes from the bundle.
fn site(dir: &Path) -> std::path::PathBuf {
    let overlays = dir.join("overlays");
    copy(&repository().join("overlays"), &overlays);
    fs::create_dir_all(overlays.join("trial/rootfs/etc/init.d")).expect("made");
    fs::write(overlays.join("trial/overlay.toml"), TRIAL_MANIFEST).expect("written");
    fs::write(overlays.join("trial/rootfs/etc/init.d/trial"), TRIAL).expect("written");
    fs::write(dir.join("key"), format!("{KEY}\n")).expect("written");
    fs::set_permissions(dir.join("key"), fs::Permissions::from_mode(0o600)).expect("private");

    let text = fs::read_to_string(repository().join("site.toml")).expect("there");
    let text = text
        .replace("\"images\"", &format!("{:?}", repository().join("images")))
        .replace("#binary = \"target/agent/x86_64/mesh-agent\"", &format!("binary = {:?}", agent()))
        .replace("#[secrets]", "[secrets]\nmpi_key = { file = \"key\" }");
    let profile = format!(
        r#"
[profiles.trial]
extends = "discovery"
overlays = ["tuning", "kvm-host", "trial"]
bundles = ["mpi", "qemu"]
[profiles.trial.vars]
tuning_sysctl = ["vm.swappiness = 7"]
tuning_hugepages = 16
tuning_memlock = "unlimited"
tuning_transparent_hugepages = "never"
[groups.pair]
nodes = ["{}", "zzzzzzzz"]
overlays = ["mpi"]
vars = {{ mpi_group = "pair", mpi_slots = 2, mpi_public_key = "ssh-ed25519 AAAA mpi-member" }}
"#,
        Identity::at(1).node_id()
    );
    let site = dir.join("site.toml");
    fs::write(&site, text + profile.as_str()).expect("written");
    site
}

/// Boots the profile by the command that an author uses; gives the console.
fn tried(site: &Path) -> String {
    let _places = Places::wait(1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    command.arg("--site").arg(site).args([
        "lab",
        "try",
        "--profile",
        "trial",
        "--until",
        "online",
        "--blobs",
    ]);
    let output = command
        .arg(blobs())
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .expect("it runs");
    let console = plain(&output.stdout);
    assert!(output.status.success(), "{}", meshd_lab::last_lines(&console, 80));
    console
}

#[test]
fn lab_try_boots_profile_with_bundles_and_overlays_and_cleans_up() {
    let dir = tempfile::Builder::new().prefix("meshd-e2e").tempdir().expect("a folder");
    let left = || {
        let names = fs::read_dir(std::env::temp_dir())
            .expect("readable")
            .flatten()
            .map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("meshd-try-")).count()
    };
    let before = left();
    let console = tried(&site(dir.path()));
    assert_eq!(left(), before);
    let value = |word: &str| {
        let line = console.lines().find_map(|line| line.split_once(&format!("{word} ")));
        line.map(|(_, rest)| rest.trim().to_owned())
            .unwrap_or_else(|| panic!("no {word} in\n{console}"))
    };
    assert_eq!((value("TRIAL-MOUNTS").as_str(), value("TRIAL-MPI").as_str()), ("2", "rank rank"));
    let run = value("TRIAL-RUN");
    assert!(run.starts_with("qemu-img version"), "a program without a starter of its own: {run}");
    let accel = value("TRIAL-ACCEL");
    assert!(
        accel.contains("kvm") && accel.contains("tcg"),
        "emulation is a plug-in of the bundle: {accel}"
    );
    assert_eq!(value("TRIAL-IMG"), "QFI");
    let tpm = value("TRIAL-TPM");
    assert!(tpm.starts_with("TPM emulator"), "its library has a folder of its own: {tpm}");
    assert_eq!(value("TRIAL-UEFI"), "4");

    assert_eq!(value("TRIAL-SYSCTL"), "7 16");
    assert!(value("TRIAL-THP").contains("[never]"), "{}", value("TRIAL-THP"));
    assert_eq!(value("TRIAL-MEMLOCK"), "unlimited");
    assert_eq!(value("TRIAL-KVM"), "opens 700 0");
    assert_eq!(value("TRIAL-HOSTS"), "node1 slots=2 node-zzzzzzzz slots=2");
    assert_eq!(
        value("TRIAL-KEY"),
        format!("600 {}", meshd_types::Digest::of(format!("{KEY}\n").as_bytes()))
    );
    assert_eq!(value("TRIAL-MEMBERS"), "1");
    assert_eq!(value("TRIAL-LOGIN"), "1", "root logs in without a password");
    assert!(value("TRIAL-STARTED").ends_with(" 0"), "a service has crashed");
    assert!(
        !console.contains(KEY.lines().next().expect("two lines")),
        "a secret is on the console"
    );
}
