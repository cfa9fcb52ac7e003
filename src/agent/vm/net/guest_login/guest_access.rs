//! What a login at a guest needs, or why it cannot begin.

use super::relay_key;
use crate::{
    system::{Tree, process_age, user_ids},
    vm::{
        disks::cloud_init_seed,
        host::{config::HostConfig, installed},
        net::nic_addresses::{self, NicAddresses},
        vm_paths::{VmPaths, remove_file},
    },
};
use meshd_proto::vm::{ReportedVmState, VmSpec};
use meshd_types::{SystemUuid, VmName};
use std::{fs, io, net::Ipv4Addr, path::PathBuf, time::Duration};

/// What a login at a guest needs.
#[derive(Clone, Debug)]
pub struct GuestAccess {
    pub name: VmName,
    pub uuid: SystemUuid,
    /// Address in the private network.
    pub address: Ipv4Addr,
    /// Process ID of QEMU, if it is known.
    pub qemu: Option<u32>,
    /// Time since the start of the VM.
    pub age: Duration,
    pub key: PathBuf,
    pub known_hosts: PathBuf,
    /// `/etc/passwd` of the client.
    pub passwd: PathBuf,
    /// Folder of the VM.
    pub folder: PathBuf,
    /// User of the client.
    pub uid: u32,
    /// Path of the SSH client.
    pub program: PathBuf,
}

/// Why a login does not begin or breaks off, and what an administrator can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginFault {
    pub reason: String,
    pub hint: String,
}

impl GuestAccess {
    /// Trusts the host key that the guest shows next.
    pub fn forget_host_key(&self) -> io::Result<()> {
        remove_file(&self.known_hosts)
    }
}

impl LoginFault {
    pub fn new(reason: impl Into<String>, hint: impl Into<String>) -> Self {
        LoginFault { reason: reason.into(), hint: hint.into() }
    }
}

/// Returns what a login at the guest of a VM needs.
pub fn access(
    spec: &VmSpec,
    state: ReportedVmState,
    addresses: &NicAddresses,
    files: &VmPaths,
    config: &HostConfig,
) -> Result<GuestAccess, LoginFault> {
    let name = &spec.name;
    if state != ReportedVmState::Running {
        let hint = format!("meshd vm start {name}");
        return Err(LoginFault::new(format!("the VM {name} does not run"), hint));
    }
    let seed = spec.cloud_init.as_ref().ok_or_else(|| {
        let reason = format!("the VM {name} has no cloud-init data, which gives the guest a key");
        LoginFault::new(
            reason,
            "create it with [cloud_init] in its vm.toml; or use `meshd vm console`",
        )
    })?;
    if !cloud_init_seed::takes_key(seed) {
        let reason = format!("the meta_data of the VM {name} takes no further key");
        let hint = "leave out meta_data or its public-keys; write it as lines of `key: value`";
        return Err(LoginFault::new(reason, hint));
    }
    let known = nic_addresses::known_addresses(spec, addresses);
    // A fixed address is known before the private network has assigned it.
    let fixed = || nic_addresses::fixed(&spec.nics).map(|(_, address)| address).next();
    let address = known.into_values().next().or_else(fixed).ok_or_else(|| {
        let reason = format!("the VM {name} has no address in the private network of its node");
        LoginFault::new(reason, "give it a NIC with bridge = \"mesh-nat0\"")
    })?;
    let user = files.user().and_then(user_ids::relay_of);
    let uid = user.filter(|_| relay_key::public(files).is_some()).ok_or_else(|| {
        let reason = format!("the node has no key for the VM {name}");
        LoginFault::new(reason, "create the VM again: an agent older than VM shells started it")
    })?;
    let tree = Tree::new(&config.root);
    let program = installed::program(&tree, "ssh").ok_or_else(|| {
        let hint = "add the package openssh-client to the profile, then boot the node again";
        LoginFault::new("the node has no SSH client", hint)
    })?;
    let qemu = fs::read_to_string(files.pid()).ok().and_then(|text| text.trim().parse().ok());
    Ok(GuestAccess {
        name: name.clone(),
        uuid: spec.uuid,
        address,
        qemu,
        // A long time if it is unknown.
        age: qemu.and_then(|id| process_age(&tree, id)).unwrap_or(Duration::MAX),
        key: files.relay_key(),
        known_hosts: files.relay_known_hosts(),
        passwd: files.relay_passwd(),
        folder: files.folder().to_owned(),
        uid,
        program,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::fixtures;
    use serde_json::{Value, json};

    #[test]
    fn login_that_cannot_begin_is_refused_with_its_cause_and_a_hint() {
        let dir = tempfile::tempdir().expect("a folder");
        let config = HostConfig::of_root(dir.path());
        let files = VmPaths::new(&config.vms_dir, SystemUuid([1; 16]));
        files.make().expect("made");
        let seed = json!({ "user_data": "#cloud-config\n" });
        let full = json!({ "user_data": "", "meta_data": "public-keys: [a]\n" });
        let private = json!([fixtures::nic(1, "mesh-nat0", "172.30.0.9")]);
        let spec = |seed: &Value, nics: &Value| {
            fixtures::spec(json!({ "name": "web", "cloud_init": seed, "nics": nics }))
        };
        let good = spec(&seed, &private);
        let addresses: NicAddresses =
            [(good.nics[0].mac, Ipv4Addr::new(172, 30, 0, 9))].into_iter().collect();
        let of = |spec: &VmSpec, state, addresses: &NicAddresses| {
            access(spec, state, addresses, &files, &config)
        };
        let refused = |spec: &VmSpec, state, addresses: &NicAddresses| {
            of(spec, state, addresses).expect_err("refused").reason
        };
        let up = ReportedVmState::Running;
        let none = NicAddresses::new();
        assert!(refused(&good, ReportedVmState::Stopped, &addresses).contains("does not run"));
        let bare = VmSpec { cloud_init: None, ..good.clone() };
        assert!(refused(&bare, up, &addresses).contains("no cloud-init data"));
        assert!(refused(&spec(&full, &private), up, &addresses).contains("takes no further key"));
        assert!(refused(&spec(&seed, &json!([])), up, &none).contains("no address"));
        assert!(refused(&good, up, &none).contains("no key"), "its fixed address is known");
        assert!(refused(&good, up, &addresses).contains("no key"));
        fs::write(files.user_file(), user_ids::VMS.start.to_string()).expect("written");
        relay_key::ensure(&files).expect("a key");
        let fault = of(&good, up, &addresses).expect_err("refused");
        assert!(fault.reason.contains("no SSH client"), "{fault:?}");
        assert!(fault.hint.contains("openssh-client"), "{fault:?}");
        fs::create_dir_all(dir.path().join("usr/bin")).expect("made");
        fs::write(dir.path().join("usr/bin/ssh"), "").expect("written");
        let access = of(&good, up, &addresses).expect("it may begin");
        assert_eq!(access.address, Ipv4Addr::new(172, 30, 0, 9));
        assert_eq!(access.uid, user_ids::RELAYS.start);
        assert_eq!(access.age, Duration::MAX, "its start is unknown");
        fs::write(files.pid(), "7\n").expect("written");
        fs::create_dir_all(dir.path().join("proc/7")).expect("made");
        let stat = "7 (qemu 1) (x) S 1 7 7 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 3 0 12050 9 9\n";
        fs::write(dir.path().join("proc/7/stat"), stat).expect("written");
        fs::write(dir.path().join("proc/uptime"), "420.75 900.00\n").expect("written");
        // The file may be of any time: the wall clock may have been stepped.
        let file = fs::File::open(files.pid()).expect("there");
        file.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("set");
        let age = of(&good, up, &addresses).expect("it may begin").age;
        assert_eq!(age, Duration::from_millis(300_250), "the kernel's clock counts");
        assert_eq!(of(&good, up, &addresses).expect("it may begin").qemu, Some(7));
    }
}
