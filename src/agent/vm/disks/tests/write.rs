//! What may be written onto which disk; and a real loop device under another name, really written.

use super::*;
use crate::{
    fake::{Fake, Loop, run as tool},
    vm::{CheckRunner, disks::disk_release::leave, reservations::Reservations},
};
use meshd_proto::vm::LeftDisk;
use meshd_types::{Digest, SystemUuid};
use std::{fs, os::unix::fs::FileExt as _};

const MIB: u64 = 1 << 20;

fn check(name: &str, status: CheckStatus) -> Check {
    let (detail, remediation) = ("seen".to_owned(), String::new());
    Check { name: name.into(), status, detail, remediation, unproven: false }
}

fn sound() -> Vec<Check> {
    vec![check("store", CheckStatus::Warn), check("images", CheckStatus::Pass), check("vfio", CheckStatus::Skip)]
}

fn volume(more: serde_json::Value) -> Volume {
    let mut volume = serde_json::json!({ "name": "root", "format": "raw", "disk": "slot:eui.1" });
    volume.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    serde_json::from_value(volume).expect("a volume")
}

#[test]
fn no_disk_is_written_while_a_check_fails_or_a_storage_check_did_not_run() {
    assert_eq!(doctor_blocks(&sound()), None);
    let mut failing = sound();
    failing.push(check("memory", CheckStatus::Fail));
    assert_eq!(doctor_blocks(&failing).as_deref(), Some("check memory fails: seen"));
    let skipped = [check("store", CheckStatus::Skip), check("images", CheckStatus::Pass)];
    assert_eq!(doctor_blocks(&skipped).as_deref(), Some("check store did not run"));
    assert!(doctor_blocks(&[]).is_some());
}

#[test]
fn a_disk_is_judged_as_it_is_now() {
    let disk = DiskFacts { name: "vdz".into(), wwid: Some("eui.1".into()), bytes: 8 * MIB, ..DiskFacts::default() };
    let judged = |disk: &DiskFacts, volume: &Volume, is_begun| {
        judge(std::slice::from_ref(disk), volume, 8 * MIB, is_begun).map(drop).map_err(|refusal| refusal.reason)
    };
    let plain = volume(serde_json::json!({}));
    assert_eq!(judged(&disk, &plain, false), Ok(()));
    let used = DiskFacts { blocked: Some("disk vdz is mounted on /".into()), ..disk.clone() };
    assert_eq!(judged(&used, &plain, true), Err(Reason::DiskInUse), "also one that was begun");
    assert_eq!(judged(&DiskFacts { bytes: MIB, ..disk.clone() }, &plain, false), Err(Reason::DiskTooSmall));
    assert_eq!(judged(&DiskFacts { wwid: None, ..disk.clone() }, &plain, false), Err(Reason::DiskMissing));
    let twins = judge(&[disk.clone(), disk.clone()], &plain, MIB, false).map(drop);
    assert_eq!(twins.map_err(|refusal| refusal.reason), Err(Reason::DiskMissing), "which of them?");
    let full = DiskFacts { signatures: vec!["ext file system on vdz1".into()], ..disk };
    let refused = judge(std::slice::from_ref(&full), &plain, MIB, false).expect_err("it holds something");
    assert!(
        refused.reason == Reason::DiskNotEmpty && refused.detail.contains("ext file system on vdz1"),
        "{refused:?}"
    );
    assert_eq!(judged(&full, &plain, true), Ok(()), "what a write of its own left");
    assert_eq!(judged(&full, &volume(serde_json::json!({ "overwrite": true })), false), Ok(()));
}

#[test]
fn how_far_a_tool_is_stands_in_brackets() {
    for (text, expected) in [
        ("    (0.00/100%)\r", Some(0)),
        ("    (12.50/100%)\r    (37.49/100%)\r", Some(3749)),
        ("(100.00/100%)\r\n", Some(10_000)),
        ("Images are identical.\n", None),
        ("(x/100%)", None),
        ("(999999999999999999999.00/100%)", None),
    ] {
        assert_eq!(share(text), expected, "{text}");
    }
}

/// A node whose only disk is a loop device of this machine that calls itself `vdz`, with an image of 4 MiB.
struct Node {
    fake: Fake,
    real: Loop,
    config: Arc<HostConfig>,
    files: VmPaths,
    digest: Digest,
    content: Vec<u8>,
}

impl Node {
    fn new(format: &str) -> Self {
        let (fake, real) = (Fake::new("", &[]), Loop::new(8 * MIB));
        let number = fs::read_to_string(format!("/sys/block/{}/dev", real.name())).expect("its number");
        for (name, text) in [("dev", number.trim()), ("size", "16384"), ("wwid", "eui.1")] {
            fake.file(&format!("sys/block/vdz/{name}"), text);
        }
        fake.link("dev/vdz", &real.device);
        fake.link("usr", "/usr");
        let root = fake.tree.path("/");
        let content: Vec<u8> = (0..4 * MIB).map(|at| if at < MIB { 0 } else { (at % 251) as u8 }).collect();
        let (raw, image) = (root.join("raw"), root.join("image"));
        fs::write(&raw, &content).expect("written");
        let [raw, made] = [&raw, &image].map(|path| path.to_str().expect("a plain path"));
        tool("qemu-img", &["convert", "-f", "raw", "-O", format, raw, made]);
        let digest = Digest::of(&fs::read(&image).expect("made"));
        fs::create_dir(root.join("images")).expect("made");
        fs::rename(&image, root.join("images").join(digest.to_string())).expect("moved");
        let config = HostConfig {
            machines: root.join("vms"),
            images: root.join("images"),
            models: crate::vm::CpuModels::default(),
            vfio: Vec::new(),
            data_disks: Vec::new(),
            checks: CheckRunner::new(sound),
            root: root.clone(),
        };
        let files = VmPaths::new(&root.join("vms"), SystemUuid([7; 16]));
        Node { fake, real, config: Arc::new(config), files, digest, content }
    }

    fn volume(&self) -> Volume {
        volume(serde_json::json!({ "digest": self.digest }))
    }

    async fn write(&self, is_begun: bool) -> Result<u64, VmRefusal> {
        let progress = Arc::<WriteProgress>::default();
        let volumes = vec![(self.volume(), is_begun)];
        let task =
            DiskWrite { files: self.files.clone(), config: self.config.clone(), volumes, progress: progress.clone() };
        task.run().await?;
        assert_eq!(progress.bytes.load(Ordering::Relaxed), progress.of.load(Ordering::Relaxed));
        Ok(progress.of.load(Ordering::Relaxed))
    }

    fn disk(&self) -> fs::File {
        fs::OpenOptions::new().read(true).write(true).open(&self.real.device).expect("opened")
    }

    fn read(&self) -> Vec<u8> {
        let mut all = vec![0; 8 << 20];
        self.disk().read_exact_at(&mut all, 0).expect("read");
        all
    }

    fn put(&self, at: u64, bytes: &[u8]) {
        let disk = self.disk();
        disk.write_all_at(bytes, at).and_then(|()| disk.sync_all()).expect("written");
    }

    async fn leave(&self, wipe: bool) -> Result<(), String> {
        let left = LeftDisk { disk: "eui.1".parse().expect("an identity"), wipe, used: true };
        leave(self.config.clone(), Reservations::default(), SystemUuid([7; 16]), vec![left]).await
    }
}

#[tokio::test]
async fn an_image_is_written_compared_and_wiped_from_a_real_device() {
    for format in ["qcow2", "raw"] {
        let node = Node::new(format);
        node.put(5 * MIB, &[0xee; 4096]);
        node.put(6 * MIB, b"of somebody else");
        assert_eq!(node.write(false).await, Ok(8 * MIB), "written once, compared once");
        let on_disk = node.read();
        assert!(on_disk[..node.content.len()] == node.content[..], "{format}");
        assert!(on_disk[node.content.len()..].iter().all(|byte| *byte == 0), "and nothing else where that is cheap");
        assert!(ownership_marker::unwritten(&node.files, &spec(&node)).is_empty());
        assert_eq!(node.leave(false).await, Ok(()));
        assert!(node.read() == on_disk, "it is kept");
        assert_eq!(node.leave(true).await, Ok(()));
        assert!(node.read().iter().all(|byte| *byte == 0));
    }
}

fn spec(node: &Node) -> meshd_proto::vm::VmSpec {
    let mut spec = meshd_proto::vm::VmSpec::unknown("a".parse().expect("a name"), SystemUuid([7; 16]));
    spec.volumes = vec![node.volume()];
    spec
}

#[tokio::test]
async fn a_disk_that_holds_something_is_left_as_it_is_and_one_that_was_begun_is_begun_anew() {
    let node = Node::new("qcow2");
    node.put(0x200, b"EFI PART");
    let before = node.read();
    let refused = node.write(false).await.expect_err("half a partition table");
    assert_eq!(refused.reason, Reason::DiskNotEmpty);
    assert_eq!(refused.detail.split(';').next(), Some("volume root: `eui.1` holds: unrecognised data on vdz"));
    assert!(node.read() == before);
    assert_eq!(
        ownership_marker::of(&node.files, &spec(&node)).len(),
        0,
        "it is not the machine's, so its release wipes nothing"
    );
    node.write(true).await.expect("what was begun is its own");
}

#[tokio::test]
async fn a_disk_that_somebody_holds_or_that_is_another_by_now_is_neither_written_nor_wiped() {
    let node = Node::new("qcow2");
    node.real.ext4();
    node.real.mount();
    let before = node.read();
    // Its files say nothing of it: only the kernel knows.
    let mut overwrite = node.volume();
    if let VolumeSource::Raw { overwrite, .. } = &mut overwrite.source {
        *overwrite = true;
    }
    let begun = begin(&node.config, &node.files, &overwrite, false).map(drop).expect_err("it is mounted");
    assert!(begun.reason == Reason::DiskInUse && begun.detail.contains("is mounted, or part of"), "{begun:?}");
    let left = node.leave(true).await.expect_err("it is mounted");
    assert!(left.starts_with("disk eui.1 is not wiped: ") && left.contains("is mounted, or part of"), "{left}");
    assert!(node.read() == before);
    node.real.umount();
    node.fake.file("sys/block/vdz/dev", "7:999");
    let left = node.leave(true).await.expect_err("the name is another disk's");
    assert!(left.contains("is another disk than a moment ago"), "{left}");
    node.fake.process(12, "qemu-system-x86", "/dev/vdz");
    let left = node.leave(false).await.expect_err("somebody has it open");
    assert_eq!(left, "disk eui.1 is not idle: /dev/vdz is open in qemu-system-x86 (12)");
}
