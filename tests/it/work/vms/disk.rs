//! A disk of the node: its image is written once, the guest boots from it, and it is wiped when the
//! machine goes. The disk is a loop device of this machine under another name.

use super::{
    guest::{Guest, Node},
    manager::{reaches, wait_for_update},
};
use meshd_agent::vm::VmManager;
use meshd_proto::{
    DiskUse,
    vm::{ReleasedDisk, ReportedVmState, VmEntry, VmFailure, VmSpec, VmTarget, VmUpdate},
};
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::{FileExt, symlink},
    path::Path,
    process::Command,
};

/// Bytes of the disk, and where a byte of the guest's is put.
const BYTES: u64 = 8 << 20;
const BEHIND: u64 = 4 << 20;

/// A loop device, gone when dropped.
struct Loop(String);

impl Loop {
    fn new(image: &Path) -> Self {
        fs::File::create(image).unwrap().set_len(BYTES).unwrap();
        let made = Command::new("losetup").args(["-f", "--show"]).arg(image).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Loop(String::from_utf8(made.stdout).unwrap().trim().to_owned())
    }

    fn open(&self) -> fs::File {
        fs::OpenOptions::new().read(true).write(true).open(&self.0).unwrap()
    }

    fn read(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.open().read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let disk = self.open();
        disk.write_all_at(bytes, at).unwrap();
        disk.sync_all().unwrap();
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

/// The node's only disk.
fn lay(node: &Node) -> Loop {
    let root = node.path().join("root");
    let real = Loop::new(&node.path().join("disk.img"));
    fs::remove_file(root.join("sys")).unwrap();
    let folder = root.join("sys/block/vdz");
    fs::create_dir_all(&folder).unwrap();
    let number =
        fs::read_to_string(format!("/sys/block/{}/dev", real.0.trim_start_matches("/dev/")))
            .unwrap();
    for (name, text) in
        [("dev", number.trim()), ("size", &(BYTES / 512).to_string()), ("wwid", "eui.1")]
    {
        fs::write(folder.join(name), text).unwrap();
    }
    fs::create_dir_all(root.join("dev")).unwrap();
    symlink(&real.0, root.join("dev/vdz")).unwrap();
    real
}

fn order(manager: &VmManager, spec: &VmSpec, start: u32, known: Option<DiskUse>) {
    let disks =
        known.into_iter().map(|known| ("root".parse().unwrap(), known)).collect::<BTreeMap<_, _>>();
    let want =
        VmTarget::Run { spec: Box::new(spec.clone()), start, grace_s: 0, slots: Vec::new(), disks };
    manager.apply(1, VmEntry { uuid: spec.uuid, desired_state: want });
}

async fn stopped(manager: &mut VmManager, spec: &VmSpec) {
    manager.apply(1, VmEntry { uuid: spec.uuid, desired_state: VmTarget::Stop { grace_s: 0 } });
    reaches(manager, spec.uuid, ReportedVmState::Stopped).await;
}

async fn failed(manager: &mut VmManager, spec: &VmSpec) -> VmFailure {
    reaches(manager, spec.uuid, ReportedVmState::Failed).await.failure.expect("it says why")
}

#[tokio::test]
async fn slot_disk_keeps_guest_data_over_restarts_and_is_wiped_on_release() {
    let node = Node::new();
    let real = lay(&node);
    let digest = node.image(Guest::Deaf);
    let volume = json!({ "name": "root", "format": "raw", "disk": "slot:eui.1", "digest": digest });
    let spec = node.spec(Guest::Deaf, json!({ "volumes": [volume] }));
    let mut manager = node.manager();
    order(&manager, &spec, 1, None);
    let running = reaches(&mut manager, spec.uuid, ReportedVmState::Running).await;
    assert_eq!(running.disks, BTreeMap::from([("root".parse().unwrap(), DiskUse::Done)]));
    assert_eq!(real.read(510, 2), [0x55, 0xaa], "the guest's boot sector");
    stopped(&mut manager, &spec).await;

    // What the guest wrote stays over a restart, an agent's end, and a boot of the node that forgot
    // everything.
    real.put(BEHIND, b"the guest's");
    order(&manager, &spec, 2, None);
    reaches(&mut manager, spec.uuid, ReportedVmState::Running).await;
    stopped(&mut manager, &spec).await;
    drop(manager);
    fs::remove_dir_all(node.run_folder()).unwrap();
    let mut manager = node.manager();
    order(&manager, &spec, 3, Some(DiskUse::Done));
    reaches(&mut manager, spec.uuid, ReportedVmState::Running).await;
    stopped(&mut manager, &spec).await;
    assert_eq!(real.read(BEHIND, 11), b"the guest's");

    // Where nobody knows that it was written, what is on it protects it.
    drop(manager);
    fs::remove_dir_all(node.run_folder()).unwrap();
    let mut manager = node.manager();
    // Once it was on the disk, nobody needed the image any more.
    assert_eq!(node.image(Guest::Deaf), digest);
    order(&manager, &spec, 4, None);
    let refused = failed(&mut manager, &spec).await;
    assert!(
        refused.detail.contains("disk_not_empty: volume root: `eui.1` is not empty: ")
            && refused.detail.contains(" on vdz"),
        "{refused:?}"
    );
    assert_eq!(real.read(BEHIND, 11), b"the guest's");

    let left = ReleasedDisk { disk: "eui.1".parse().unwrap(), wipe: true, used: true };
    manager.apply(
        1,
        VmEntry { uuid: spec.uuid, desired_state: VmTarget::Release { disks: vec![left] } },
    );
    wait_for_update(&mut manager, |news| {
        (news == VmUpdate::Released { uuid: spec.uuid }).then_some(())
    })
    .await;
    assert!(real.read(0, usize::try_from(BYTES).unwrap()).iter().all(|byte| *byte == 0));
    assert_eq!(node.vm_folders(), 0);
}
