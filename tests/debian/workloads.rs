//! What Debian nodes run: tasks and VMs with GPUs, in control groups that systemd delegates.

use crate::{
    guest::{DEADLINE, HELLO, Operator, SEEN},
    racks::{OrEnd, until_phase, until_written},
};
use meshd_lab::{Rack, Wait};
use serde_json::Value;
use std::{fs, path::Path};

/// The group of the unit `mesh-workloads.service`.
const DELEGATED: &str = "/system.slice/mesh-workloads.service/";
/// Settings of the overlays `tuning` and `kvm-host`, and units that failed.
const SETTINGS: &str = "cat /proc/sys/vm/swappiness /sys/kernel/mm/ksm/run; stat -f -c %T /var/lib/machines; systemctl show -p DefaultLimitMEMLOCK; systemctl --failed --no-legend --plain";
/// VMs have UUIDs as names; the store of volumes stays.
const LEFT: &str = "ls /var/lib/machines | grep -E '^[0-9a-f]{8}-'; ls -d /sys/fs/cgroup/meshd-vm-* 2>/dev/null; true";
/// One VM for each GPU.
const VMS: [&str; 2] = ["one", "two"];

/// Runs tasks on two nodes, and a VM with a GPU on each, which outlives its agent.
pub fn run(rack: &Rack, places: [u8; 2], image: &Path, site: &Path) {
    for place in places {
        let cgroup = exec(rack, place, &[], "cat /proc/self/cgroup; id -u; ulimit -l");
        let is_confined =
            cgroup.starts_with(&format!("0::{DELEGATED}")) && !cgroup.contains("\n0\n");
        assert!(is_confined, "{cgroup}");
        let settings = exec(rack, place, ROOT, SETTINGS);
        assert_eq!(settings, "7\n0\ntmpfs\nDefaultLimitMEMLOCK=infinity\n", "no unit failed");
    }
    let digest = rack.run_cli(&["volume", "add", image.to_str().expect("plain")]).or_end();
    let toml = site.with_file_name("vm.toml");
    let [first, second] = VMS;
    create_vm_with_gpu(rack, first, digest.trim(), &toml);
    let operator = Operator::attach(site);
    operator.expect_text(&format!("{HELLO}{SEEN}"));
    create_vm_with_gpu(rack, second, digest.trim(), &toml);
    for place in places {
        let serial = until_written(rack, place, "TRIAL-TAKEN", DEADLINE);
        // One vCPU, and 256 other threads.
        assert!(serial.contains("TRIAL-GROUP 1 257"), "QEMU is in its group, with its limits");
        assert!(serial.contains("TRIAL-TAKEN 1"), "QEMU outlives the agent");
    }
    // The console ended with the first agent.
    drop(operator);
    for name in VMS {
        rack.wait(DEADLINE, &format!("{name} has its GPU"), |rack| {
            let log = rack.run_cli(&["vm", "logs", name]);
            let is_there = log.as_ref().is_ok_and(|log| log.contains(SEEN));
            Ok(Wait::on(is_there, format!("{log:?}")))
        })
        .or_end();
        reaches(rack, name, "running after the restart of the agent", |vm| {
            vm["state"] == "running" && vm["restarts"] == 0
        });
    }
    let mut operator = Operator::attach(site);
    operator.expect_text(SEEN);
    operator.types(b'H');
    operator.expect_text(&format!("{SEEN}I"));
    drop(operator);
    for name in VMS {
        rack.run_cli(&["vm", "delete", name, "--yes"]).or_end();
    }
    rack.wait(DEADLINE, "the VMs are deleted", |rack| {
        let all = rack.query(&["vm", "list"])?;
        let is_gone = all.as_array().is_some_and(Vec::is_empty);
        Ok(Wait::some(is_gone.then_some(()), all.to_string()))
    })
    .or_end();
    for place in places {
        // A node takes tasks again when its new agent has reported its checks.
        until_phase(rack, place, "online", DEADLINE);
        rack.wait(DEADLINE, "nothing is left", |rack| {
            let left = exec(rack, place, ROOT, LEFT);
            Ok(Wait::some(left.is_empty().then_some(()), left))
        })
        .or_end();
    }
}

const ROOT: &[&str] = &["--user", "root"];

/// Runs a script on a node and returns its output.
fn exec(rack: &Rack, place: u8, options: &[&str], script: &str) -> String {
    let id = rack.id(place).to_string();
    let shell = [id.as_str(), "--", "/bin/sh", "-c", script];
    rack.run_cli(&[&["node", "exec"], options, &shell].concat()).or_end()
}

/// Creates a VM with the GPU of a node that has a free one.
fn create_vm_with_gpu(rack: &Rack, name: &str, digest: &str, toml: &Path) {
    let node = rack.query(&["node", "show", &rack.id(1).to_string()]).or_end();
    let unit = &node["facts"]["units"][0];
    assert_eq!(unit["members"][0]["driver"], "vfio-pci", "{unit}");
    let address = unit["members"][0]["address"].as_str().expect("the GPU");
    let text = format!(
        "name = \"{name}\"\nvcpus = 1\nmemory = \"64M\"\nunits = [\"{address}\"]\n\
         [[volume]]\nname = \"root\"\nformat = \"qcow2\"\ndigest = \"{digest}\"\n"
    );
    fs::write(toml, text).expect("written");
    rack.run_cli(&["vm", "create", "--start", "-f", toml.to_str().expect("plain")]).or_end();
    reaches(rack, name, "running", |vm| vm["state"] == "running");
}

fn reaches(rack: &Rack, name: &str, what: &str, is: impl Fn(&Value) -> bool) {
    let look = |rack: &Rack| {
        let vm = rack.query(&["vm", "show", name])?;
        Ok(Wait::some(is(&vm).then_some(()), vm.to_string()))
    };
    rack.wait(DEADLINE, what, look).or_end();
}
