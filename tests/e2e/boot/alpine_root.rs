//! Alpine as a root image: a node installs nothing when it boots. Then its root stays on the central
//! node, also while OpenRC shuts it down.

use crate::racks::{BOOT, OrEnd, kernel_starts, reboot_warm, stages, until_phase, up_one_by_one};
use meshd_lab::{Power, Rack};
use serde_json::Value;

const NODE: u8 = 1;
/// What the overlays, apk and the service coldplug left on the node.
const LOOK: &str = ". /etc/os-release; echo \"$ID $(hostname) $(apk info -e alpine-base) \
                    $(cut -d' ' -f1 /proc/modules | grep -x ahci) $(grep -c ' / overlay ' /proc/mounts)\"";

#[test]
fn alpine_root_boots_without_packages_and_outlives_its_services_when_tethered() {
    let mut test = up_one_by_one(|mut options, _| {
        (options.nodes, options.powered) = (1, false);
        options = options
            .set("enroll.policy", "auto")
            .set("profiles.discovery.image", "alpine-root")
            .set("profiles.compute.root_mode", "tethered")
            .set("profiles.compute.warm", "allow");
        Rack::prepare(&options, &mut |word| eprintln!("{word}")).or_end();
        options
    });
    let rack = &mut test.rack;
    rack.power(NODE, Power::On).or_end();
    let former = until_phase(rack, NODE, "online", BOOT);
    let reached = stages(&former);
    assert!(reached.contains(&"root"), "{reached:?}");
    assert!(!reached.contains(&"packages") && !reached.contains(&"modloop"), "{reached:?}");
    assert_eq!(kernel_starts(rack, NODE), 1, "it came up at its first try");
    let id = rack.id(NODE).to_string();
    let look = ["node", "exec", "--user", "root", &id, "--", "/bin/sh", "-c", LOOK];
    assert_eq!(rack.run_cli(&look).or_end().trim(), "alpine node1 alpine-base ahci 1");
    passes_all_checks(rack, &id);

    rack.run_cli(&["node", "assign-profile", &id, "compute", "--reboot"]).or_end();
    let is_compute = |node: &Value| {
        node["phase"] == "online"
            && node["profile"] == "compute"
            && node["boot"]["session"] != former["boot"]["session"]
    };
    rack.wait_node(NODE, BOOT, "online with another profile", is_compute).or_end();
    let doctor = passes_all_checks(rack, &id);
    assert!(doctor.contains(" MiB used by the tethered root of "), "{doctor}");

    // OpenRC ends all processes but the one that serves the root.
    reboot_warm(rack, NODE);
    assert_eq!(rack.run_cli(&look).or_end().trim(), "alpine node1 alpine-base ahci 1");
}

fn passes_all_checks(rack: &Rack, id: &str) -> String {
    let doctor = rack.query(&["node", "doctor", id]).or_end();
    assert_eq!(doctor["failures"], 0, "{doctor}");
    doctor.to_string()
}
