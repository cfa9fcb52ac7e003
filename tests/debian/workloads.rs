//! What a Debian node runs: tasks and a VM with a GPU, in control groups that systemd delegates.

use crate::{
    NODE,
    guest::{DEADLINE, HELLO, Operator, SEEN},
    overlays,
    racks::{OrEnd, repository, until_phase, until_written},
};
use meshd_lab::{Rack, Wait};
use serde_json::Value;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Looks at the VM and kills the agent, as a unit of the node.
const TRIAL: &str = include_str!("trial.sh");
const TRIAL_UNIT: &str = "[Service]\nExecStart=/opt/trial/trial.sh\nRemainAfterExit=yes\n";
const TRIAL_MANIFEST: &str = "description = \"on trial\"\nsystems = [\"systemd\"]\n[systemd]\nunits = [\"trial.service\"]\n[files.\"/opt/trial/trial.sh\"]\nmode = \"0755\"\n";
/// The group of the unit `mesh-workloads.service`.
const DELEGATED: &str = "/system.slice/mesh-workloads.service/";

/// The overlays of the site, and `trial`.
pub fn with_trial(dir: &Path) -> PathBuf {
    let all = dir.join("overlays");
    overlays::copy(&repository().join("overlays"), &all);
    let files = [
        ("overlay.toml", TRIAL_MANIFEST),
        ("rootfs/opt/trial/trial.sh", TRIAL),
        ("rootfs/etc/systemd/system/trial.service", TRIAL_UNIT),
    ];
    for (path, text) in files {
        let path = all.join("trial").join(path);
        fs::create_dir_all(path.parent().expect("below the overlay")).expect("made");
        fs::write(path, text).expect("written");
    }
    all
}

/// Runs tasks, and a VM that outlives the agent.
pub fn run(rack: &Rack, image: &Path, site: &Path) {
    let cgroup = task(rack, &[], "cat /proc/self/cgroup; id -u; ulimit -l");
    let is_confined = cgroup.starts_with(&format!("0::{DELEGATED}")) && !cgroup.contains("\n0\n");
    assert!(is_confined, "{cgroup}");
    let settings = "cat /proc/sys/vm/swappiness /sys/kernel/mm/ksm/run; stat -f -c %T /var/lib/machines; systemctl show -p DefaultLimitMEMLOCK; systemctl --failed --no-legend --plain";
    let settings = task(rack, ROOT, settings);
    assert_eq!(settings, "7\n0\ntmpfs\nDefaultLimitMEMLOCK=infinity\n", "no unit failed");

    let digest = rack.run_cli(&["volume", "add", image.to_str().expect("plain")]).or_end();
    let toml = site.with_file_name("one.toml");
    create_vm_with_gpu(rack, digest.trim(), &toml);
    let operator = Operator::attach(site);
    operator.expect_text(&format!("{HELLO}{SEEN}"));
    let serial = until_written(rack, NODE, "TRIAL-TAKEN", DEADLINE);
    // One vCPU, and 256 other threads.
    assert!(serial.contains("TRIAL-GROUP 1 257"), "QEMU is in its group, with its limits");
    assert!(serial.contains("TRIAL-TAKEN 1"), "QEMU outlives the agent");
    // The console ended with the first agent.
    drop(operator);
    let reattach = |rack: &Rack| {
        let log = rack.run_cli(&["vm", "logs", "one"]);
        let is_there = log.as_ref().is_ok_and(|log| log.contains(SEEN));
        Ok(Wait::some(is_there.then(|| Operator::attach(site)), format!("{log:?}")))
    };
    let mut operator = rack.wait(DEADLINE, "the console is brought again", reattach).or_end();
    operator.expect_text(SEEN);
    reaches(rack, "running after the restart of the agent", |vm| {
        vm["state"] == "running" && vm["restarts"] == 0
    });
    operator.types(b'H');
    operator.expect_text(&format!("{SEEN}I"));
    drop(operator);
    rack.run_cli(&["vm", "delete", "one", "--yes"]).or_end();
    rack.wait(DEADLINE, "the VM is deleted", |rack| {
        let all = rack.query(&["vm", "list"])?;
        let is_gone = all.as_array().is_some_and(Vec::is_empty);
        Ok(Wait::some(is_gone.then_some(()), all.to_string()))
    })
    .or_end();
    // A node takes tasks again when its new agent has reported its checks.
    until_phase(rack, NODE, "online", DEADLINE);
    // VMs have UUIDs as names; the store of volumes stays.
    let left = "ls /var/lib/machines | grep -E '^[0-9a-f]{8}-'; ls -d /sys/fs/cgroup/meshd-vm-* 2>/dev/null; true";
    rack.wait(DEADLINE, "nothing is left", |rack| {
        let left = task(rack, ROOT, left);
        Ok(Wait::some(left.is_empty().then_some(()), left))
    })
    .or_end();
}

const ROOT: &[&str] = &["--user", "root"];

fn shell(script: &str) -> [&str; 6] {
    ["--launcher", "none", "--", "/bin/sh", "-c", script]
}

/// Runs a script on the node and returns its output.
fn task(rack: &Rack, options: &[&str], script: &str) -> String {
    rack.run_cli(&[&["task", "run", "--group", "one"], options, &shell(script)].concat()).or_end()
}

fn create_vm_with_gpu(rack: &Rack, digest: &str, toml: &Path) {
    let node = rack.query(&["node", "show", &rack.id(NODE).to_string()]).or_end();
    let unit = &node["facts"]["units"][0];
    assert_eq!(
        (&unit["state"], &unit["members"][0]["driver"]),
        (&"ready".into(), &"vfio-pci".into())
    );
    let address = unit["members"][0]["address"].as_str().expect("the GPU");
    let text = format!(
        "name = \"one\"\nvcpus = 1\nmemory = \"64M\"\nunits = [\"{address}\"]\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n"
    );
    fs::write(toml, text).expect("written");
    rack.run_cli(&["vm", "create", "--start", "-f", toml.to_str().expect("plain")]).or_end();
    reaches(rack, "running", |vm| vm["state"] == "running");
}

fn reaches(rack: &Rack, what: &str, is: impl Fn(&Value) -> bool) {
    let look = |rack: &Rack| {
        let vm = rack.query(&["vm", "show", "one"])?;
        Ok(Wait::some(is(&vm).then_some(()), vm.to_string()))
    };
    rack.wait(DEADLINE, what, look).or_end();
}
