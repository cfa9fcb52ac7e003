//! Checks before a disk write, and writes to a loop device that has the name of a disk.

use super::*;
use crate::{
    fake::{FakeMachine, LoopDevice, run as tool},
    vm::{CheckRunner, disks::disk_release::release, reservations::Reservations},
};
use meshd_proto::{Check, CheckStatus, vm::ReleasedDisk};
use meshd_types::{Digest, SystemUuid};
use std::{fs, os::unix::fs::FileExt as _};

const MIB: u64 = 1 << 20;

fn check(name: &str, status: CheckStatus) -> Check {
    let detail = "seen".to_owned();
    let remediation = String::new();
    Check { name: name.into(), status, detail, remediation, unproven: false }
}

fn passing_checks() -> Vec<Check> {
    vec![
        check("store", CheckStatus::Warn),
        check("images", CheckStatus::Pass),
        check("vfio", CheckStatus::Skip),
    ]
}

fn volume(more: serde_json::Value) -> Volume {
    let mut volume = serde_json::json!({ "name": "root", "format": "raw", "disk": "slot:eui.1" });
    volume.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    serde_json::from_value(volume).expect("a volume")
}

#[test]
fn unfit_disk_is_refused_with_its_reason() {
    let disk = DiskFacts {
        name: "vdz".into(),
        wwid: Some("eui.1".into()),
        bytes: 8 * MIB,
        ..DiskFacts::default()
    };
    let checked = |disk: &DiskFacts, volume: &Volume, was_begun| {
        writable_disk(std::slice::from_ref(disk), volume, 8 * MIB, was_begun)
            .map(drop)
            .map_err(|refusal| refusal.reason)
    };
    let plain = volume(serde_json::json!({}));
    assert_eq!(checked(&disk, &plain, false), Ok(()));
    let used = DiskFacts { blocked: Some("disk vdz is mounted on /".into()), ..disk.clone() };
    assert_eq!(
        checked(&used, &plain, true),
        Err(Reason::DiskInUse),
        "even after an interrupted write"
    );
    assert_eq!(
        checked(&DiskFacts { bytes: MIB, ..disk.clone() }, &plain, false),
        Err(Reason::DiskTooSmall)
    );
    assert_eq!(
        checked(&DiskFacts { wwid: None, ..disk.clone() }, &plain, false),
        Err(Reason::DiskMissing)
    );
    let twins = writable_disk(&[disk.clone(), disk.clone()], &plain, MIB, false).map(drop);
    assert_eq!(
        twins.map_err(|refusal| refusal.reason),
        Err(Reason::DiskMissing),
        "two disks have the same identity"
    );
    let full = DiskFacts { signatures: vec!["ext file system on vdz1".into()], ..disk };
    let refused =
        writable_disk(std::slice::from_ref(&full), &plain, MIB, false).expect_err("not empty");
    assert!(
        refused.reason == Reason::DiskNotEmpty
            && refused.detail.contains("ext file system on vdz1"),
        "{refused:?}"
    );
    assert_eq!(checked(&full, &plain, true), Ok(()), "left by an interrupted write of the VM");
    assert_eq!(checked(&full, &volume(serde_json::json!({ "overwrite": true })), false), Ok(()));
}

#[test]
fn progress_of_qemu_img_is_parsed() {
    for (text, expected) in [
        ("    (0.00/100%)\r", Some(0)),
        ("    (12.50/100%)\r    (37.49/100%)\r", Some(3749)),
        ("(100.00/100%)\r\n", Some(10_000)),
        ("Images are identical.\n", None),
        ("(x/100%)", None),
        ("(999999999999999999999.00/100%)", None),
    ] {
        assert_eq!(parse_progress(text), expected, "{text}");
    }
}

/// A node whose only disk `vdz` is a loop device, with an image of 4 MiB.
struct Node {
    fake: FakeMachine,
    real: LoopDevice,
    config: Arc<HostConfig>,
    files: VmPaths,
    digest: Digest,
    content: Vec<u8>,
}

impl Node {
    fn new(format: &str) -> Self {
        let fake = FakeMachine::new("", &[]);
        let real = LoopDevice::new(8 * MIB);
        let number =
            fs::read_to_string(format!("/sys/block/{}/dev", real.name())).expect("its number");
        for (name, text) in [("dev", number.trim()), ("size", "16384"), ("wwid", "eui.1")] {
            fake.file(&format!("sys/block/vdz/{name}"), text);
        }
        fake.link("dev/vdz", &real.device);
        fake.link("usr", "/usr");
        let root = fake.tree.path("/");
        let content: Vec<u8> =
            (0..4 * MIB).map(|at| if at < MIB { 0 } else { (at % 251) as u8 }).collect();
        let raw = root.join("raw");
        let image = root.join("image");
        fs::write(&raw, &content).expect("written");
        let [raw, made] = [&raw, &image].map(|path| path.to_str().expect("a plain path"));
        tool("qemu-img", &["convert", "-f", "raw", "-O", format, raw, made]);
        let digest = Digest::of(&fs::read(&image).expect("made"));
        fs::create_dir(root.join("images")).expect("made");
        fs::rename(&image, root.join("images").join(digest.to_string())).expect("moved");
        let config =
            HostConfig { checks: CheckRunner::new(passing_checks), ..HostConfig::of_root(&root) };
        let files = VmPaths::new(&root.join("vms"), SystemUuid([7; 16]));
        Node { fake, real, config: Arc::new(config), files, digest, content }
    }

    fn volume(&self) -> Volume {
        volume(serde_json::json!({ "digest": self.digest }))
    }

    async fn write(&self, was_begun: bool) -> Result<u64, VmRefusal> {
        let progress = Arc::<WriteProgress>::default();
        let volumes = vec![(self.volume(), was_begun)];
        let task = DiskWrite {
            files: self.files.clone(),
            config: self.config.clone(),
            volumes,
            progress: progress.clone(),
        };
        task.run(&CancellationToken::new()).await?;
        assert_eq!(progress.bytes.load(Ordering::Relaxed), progress.total.load(Ordering::Relaxed));
        Ok(progress.total.load(Ordering::Relaxed))
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

    async fn release(&self, wipe: bool) -> Result<(), String> {
        let left = ReleasedDisk { disk: "eui.1".parse().expect("an identity"), wipe, used: true };
        release(self.config.clone(), Reservations::default(), SystemUuid([7; 16]), vec![left]).await
    }
}

#[tokio::test]
async fn image_is_written_compared_and_wiped() {
    for format in ["qcow2", "raw"] {
        let node = Node::new(format);
        node.put(5 * MIB, &[0xee; 4096]);
        node.put(6 * MIB, b"of somebody else");
        assert_eq!(node.write(false).await, Ok(8 * MIB), "written once, compared once");
        let on_disk = node.read();
        assert!(on_disk[..node.content.len()] == node.content[..], "{format}");
        assert!(
            on_disk[node.content.len()..].iter().all(|byte| *byte == 0),
            "the rest is discarded"
        );
        assert!(ownership_marker::unwritten_volumes(&node.files, &spec(&node)).is_empty());
        assert_eq!(node.release(false).await, Ok(()));
        assert!(node.read() == on_disk, "not wiped");
        assert_eq!(node.release(true).await, Ok(()));
        assert!(node.read().iter().all(|byte| *byte == 0));
    }
}

fn spec(node: &Node) -> meshd_proto::vm::VmSpec {
    let mut spec =
        meshd_proto::vm::VmSpec::unknown("a".parse().expect("a name"), SystemUuid([7; 16]));
    spec.volumes = vec![node.volume()];
    spec
}

#[tokio::test]
async fn disk_with_content_is_refused_but_an_interrupted_write_repeats() {
    let node = Node::new("qcow2");
    node.put(0x200, b"EFI PART");
    let before = node.read();
    let refused = node.write(false).await.expect_err("half a partition table");
    assert_eq!(refused.reason, Reason::DiskNotEmpty);
    assert_eq!(
        refused.detail.split(';').next(),
        Some("volume root: `eui.1` is not empty: unrecognised data on vdz")
    );
    assert!(node.read() == before);
    assert_eq!(
        ownership_marker::states(&node.files, &spec(&node)).len(),
        0,
        "the VM does not own the disk, so its release wipes nothing"
    );
    node.write(true).await.expect("the interrupted write is repeated");
}

#[tokio::test]
async fn busy_or_exchanged_disk_is_neither_written_nor_wiped() {
    let node = Node::new("qcow2");
    node.real.ext4();
    node.real.mount();
    let before = node.read();
    // The fake sysfs does not show the mount: only the kernel knows.
    let mut overwrite = node.volume();
    if let VolumeSource::Raw { overwrite, .. } = &mut overwrite.source {
        *overwrite = true;
    }
    let begun =
        begin(&node.config, &node.files, &overwrite, false).map(drop).expect_err("it is mounted");
    assert!(
        begun.reason == Reason::DiskInUse && begun.detail.contains("is mounted, or part of"),
        "{begun:?}"
    );
    let error = node.release(true).await.expect_err("it is mounted");
    assert!(
        error.starts_with("cannot wipe disk eui.1: ") && error.contains("is mounted, or part of"),
        "{error}"
    );
    assert!(node.read() == before);
    node.real.umount();
    node.fake.file("sys/block/vdz/dev", "7:999");
    let error = node.release(true).await.expect_err("another disk has the name");
    assert!(error.contains("is a different disk now"), "{error}");
    node.fake.process(12, "qemu-system-x86", "/dev/vdz");
    let error = node.release(false).await.expect_err("open in a process");
    assert_eq!(error, "disk eui.1 is not idle: /dev/vdz is open in qemu-system-x86 (12)");
}
