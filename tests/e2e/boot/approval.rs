//! Policy approve, everything by TFTP, and a central node that is killed in between: the node waits
//! for an operator without any secret, and goes on at once when it is let in. Its disk holds a
//! system of somebody else: the node boots ours (BC-17), and nothing writes to the disk (BC-9).

use crate::racks::{
    BOOT, OrEnd, SOON, count, events, kernel_starts, stages, until_phase, until_stage, up,
};
use meshd_lab::{Extra, Power, Rack, Wait};
use meshd_types::Digest;
use std::{fs, path::Path, process::Command};

const NODE: u8 = 1;
/// What the overlay on the disk would write to the console.
const FOREIGN: &str = "FOREIGN-OVERLAY-RUNS";

#[test]
fn new_node_by_tftp_waits_without_token_and_needs_no_reboot_on_approval() {
    let mut test = up(|mut options, _| {
        (options.nodes, options.powered) = (1, false);
        options.extras = vec![vec![Extra::Disk]];
        options.set("enroll.policy", "approve").set("boot.kernel_transport", "tftp")
    });
    let rack = &mut test.rack;
    let disk = foreign_disk(&rack.disk_file(NODE));
    rack.power(NODE, Power::On).or_end();

    until_stage(rack, NODE, "initramfs");
    rack.kill_central().or_end();
    assert!(
        !stages_now(rack).contains("Linux version"),
        "it was killed before the kernel ran: packages were on their way"
    );
    rack.start_central().or_end();

    let node = pending(rack);
    assert_eq!(node["phase"], "discovered");
    assert!(
        node["facts"]["disks"].as_array().is_some_and(|disks| !disks.is_empty()),
        "it sees its disk: {node}"
    );
    assert!(
        Digest::of(&fs::read(rack.disk_file(NODE)).unwrap()) == disk,
        "an unknown machine wrote to its disk"
    );
    let session = node["boot"]["session"].clone();
    for never in ["enrolled", "link", "online"] {
        assert!(!stages(&node).contains(&never), "nobody let it in: {node}");
    }
    assert_eq!(count(rack, NODE, "certificate_issued"), 0);

    rack.kill_central().or_end();
    rack.start_central().or_end();
    let id = rack.id(NODE).to_string();
    rack.run_cli(&["node", "approve", &id]).or_end();
    let node = until_phase(rack, NODE, "online", SOON * 2);
    assert_eq!(node["boot"]["session"], session, "through no firmware");
    assert_eq!(kernel_starts(rack, NODE), 1, "without a reboot");
    assert_eq!(count(rack, NODE, "certificate_issued"), 1);
    let by_operator =
        |event: &serde_json::Value| event["to"] == "approved" && event["actor"] == "operator";
    assert!(events(rack).iter().any(by_operator), "the approval is on record");
    assert!(!rack.serial(NODE).contains(FOREIGN), "it booted the overlay on its disk");
    assert!(
        Digest::of(&fs::read(rack.disk_file(NODE)).unwrap()) == disk,
        "the boot wrote to the disk"
    );
}

/// Formats a disk with what Alpine's init looks for on every disk that it finds: an apkovl, here of
/// somebody else. Returns the disk's digest.
fn foreign_disk(disk: &Path) -> Digest {
    let run = |command: &mut Command| {
        let output = command.output().unwrap();
        assert!(
            output.status.success(),
            "{command:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    };
    let dir = tempfile::tempdir().unwrap();
    let overlay = dir.path().join("overlay");
    let root = dir.path().join("root");
    fs::create_dir_all(overlay.join("etc")).unwrap();
    fs::create_dir_all(&root).unwrap();
    fs::write(overlay.join("etc/inittab"), format!("::sysinit:/bin/echo {FOREIGN}\n")).unwrap();
    fs::write(overlay.join("etc/hostname"), "foreign\n").unwrap();
    run(Command::new("tar")
        .arg("-C")
        .arg(&overlay)
        .arg("-czf")
        .arg(root.join("localhost.apkovl.tar.gz"))
        .arg("etc"));
    run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&root).arg(disk).arg("64M"));
    Digest::of(&fs::read(disk).unwrap())
}

fn stages_now(rack: &Rack) -> String {
    rack.serial(NODE)
}

/// Waits until the agent runs and tells of itself on a pending connection.
fn pending(rack: &Rack) -> serde_json::Value {
    let id = rack.id(NODE).to_string();
    rack.wait(BOOT, "the pending connection of node1", |rack| {
        let Ok(shown) = rack.query(&["node", "show", &id]) else {
            return Ok(Wait::NotYet("meshd does not know it".into()));
        };
        let tells = !shown["facts"].is_null();
        Ok(Wait::some(tells.then_some(shown), "it has told nothing of itself"))
    })
    .or_end()
}
