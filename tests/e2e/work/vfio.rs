//! VFIO, from the profile to a unit that can be given away: real IOMMU groups, real drivers. Two
//! racks, two nodes at a time.

use crate::{
    overlays::{self, PEEK_END, peeked},
    racks::{BOOT, OrEnd, SOON, command_lines, count, until_phase, until_written, up},
};
use meshd_lab::{Extra, Power, Rack};
use serde_json::Value;
use std::path::{Path, PathBuf};

const FIRST: u8 = 1;
const SECOND: u8 = 2;
const THIRD: u8 = 3;

/// Tells the serial port what vfio-pci has, and how the doctor ends.
const LOOK: &str = r#"#!/sbin/openrc-run
description="tells the serial port what became of the devices"

depend() {
	after mesh-agent
}

look() {
	echo "PEEK-BEGIN"
	echo "PEEK-BOUND $(ls /sys/bus/pci/drivers/vfio-pci | grep : | tr '\n' ' ')"
	echo "PEEK-GROUPS $(ls /dev/vfio | tr '\n' ' ')"
	echo "PEEK-AGAIN $(mesh-agent vfio bind | tr '\n' ' ')"
	echo "PEEK-DOCTOR $(mesh-agent doctor | tail -n 1)"
	echo "PEEK-END"
}

start() {
	look >/dev/ttyS0 2>&1 &
}
"#;

/// Once the agent has told how the node is: holds a group as a VM does, then lets a function of it
/// fall off the bus, and has the agent tell again.
const TRY: &str = r#"
	until grep -q "check report sent" /var/log/messages; do sleep 1; done
	group=$(ls /dev/vfio | grep '^[0-9]')
	[ -n "$group" ] || return 0
	( exec 3<>"/dev/vfio/$group"; echo "TRY-HELD $(mesh-agent vfio bind)" )
	echo "TRY-LET-GO $(mesh-agent vfio bind)"
	echo 1 >"/sys/bus/pci/devices/$(ls /sys/bus/pci/drivers/vfio-pci | grep : | head -n 1)/remove"
	echo "TRY-GONE $(mesh-agent vfio bind)"
	echo "TRY-END"
	rc-service mesh-agent restart
}
"#;

fn with_look(dir: &Path) -> PathBuf {
    overlays::with_service(dir, "look", LOOK)
}

fn with_try(dir: &Path) -> PathBuf {
    let end = "\techo \"PEEK-END\"\n";
    overlays::with_service(
        dir,
        "look",
        &LOOK.replacen(&format!("{end}}}\n"), &format!("{end}{TRY}"), 1),
    )
}

/// What the node wrote after a word.
fn tried(serial: &str, word: &str) -> String {
    let line =
        serial.lines().find_map(|line| line.split_once(&format!("{word} ")).map(|(_, rest)| rest));
    line.unwrap_or_else(|| panic!("the node wrote no {word}")).trim().to_owned()
}

fn shown(rack: &Rack, place: u8) -> Value {
    rack.query(&["node", "show", &rack.id(place).to_string()]).or_end()
}

fn last_line(rack: &Rack, place: u8) -> String {
    let text = rack.run_cli(&["node", "show", &rack.id(place).to_string()]).or_end();
    text.lines().last().unwrap_or_default().to_owned()
}

fn unit(shown: &Value) -> &Value {
    let units = shown["facts"]["units"].as_array().map(Vec::as_slice).unwrap_or_default();
    assert_eq!(units.len(), 1, "{units:?}");
    &units[0]
}

fn check(shown: &Value, name: &str) -> (String, String) {
    let checks = shown["checks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let check = checks
        .iter()
        .find(|check| check["name"] == name)
        .unwrap_or_else(|| panic!("no check {name}: {shown}"));
    let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
    (text("status"), text("detail"))
}

fn drivers(unit: &Value) -> Vec<(&str, &str)> {
    let members = unit["members"].as_array().map(Vec::as_slice).unwrap_or_default();
    let text =
        |member: &'_ Value, key: &str| member[key].as_str().map(str::to_owned).unwrap_or_default();
    members
        .iter()
        .map(|member| {
            let ids = format!("{}:{}", text(member, "vendor"), text(member, "device"));
            (ids.leak() as &str, member["driver"].as_str().unwrap_or_default())
        })
        .collect()
}

#[test]
fn vfio_profile_binds_gpu_and_missing_iommu_degrades_the_node() {
    let mut test = up(|mut options, dir| {
        options.extras = vec![vec![Extra::Iommu, Extra::Gpu], vec![Extra::Gpu]];
        options
            .set("enroll.policy", "auto")
            .set("site.overlays_dir", &with_look(dir).display().to_string())
            .set("profiles.vfio-host.extends", "discovery")
            .set("profiles.vfio-host.overlays", r#"["vfio", "look"]"#)
            .set("profiles.vfio-host.vfio.devices", r#"["class:0300"]"#)
    });
    let rack = &mut test.rack;
    for place in [FIRST, SECOND] {
        until_phase(rack, place, "online", BOOT);
        assert_eq!(
            shown(rack, place)["facts"]["units"],
            serde_json::json!([]),
            "discovery gives nothing away"
        );
        assert_eq!(check(&shown(rack, place), "iommu").0, "SKIP");
        rack.run_cli(&[
            "node",
            "assign-profile",
            &rack.id(place).to_string(),
            "vfio-host",
            "--reboot",
        ])
        .or_end();
    }
    let again = |phase: &'static str| {
        move |node: &Value| node["phase"] == phase && node["profile"] == "vfio-host"
    };
    let booted = |node: &Value| {
        node["boot"]["stages"]
            .as_array()
            .is_some_and(|stages| stages.iter().any(|s| s["stage"] == "link"))
    };
    let serial = until_written(rack, FIRST, PEEK_END, BOOT);
    rack.wait_node(FIRST, BOOT, "online as vfio-host", |node| {
        again("online")(node) && booted(node)
    })
    .or_end();
    assert!(
        command_lines(rack, FIRST)
            .last()
            .is_some_and(|line| line.contains("intel_iommu=on iommu=pt"))
    );
    assert!(!command_lines(rack, FIRST)[0].contains("iommu"), "only with the profile");
    let detail = shown(rack, FIRST);
    let gpu = unit(&detail);
    assert_eq!((&gpu["state"], &gpu["reason"]), (&Value::from("ready"), &Value::from("")));
    assert_eq!(drivers(gpu), [("1002:5046", "vfio-pci")]);
    let address = gpu["members"][0]["address"].as_str().unwrap_or_default();
    assert_eq!(peeked(&serial, "PEEK-BOUND"), address, "seen on the node");
    let own = gpu["group"].to_string();
    assert!(peeked(&serial, "PEEK-GROUPS").split(' ').any(|group| group == own));
    assert!(peeked(&serial, "PEEK-AGAIN").ends_with(": ready"), "again changes nothing");
    assert!(peeked(&serial, "PEEK-DOCTOR").ends_with("1/1 GPU unit(s) ready"));
    assert_eq!(last_line(rack, FIRST), "1/1 GPU unit(s) ready");
    for name in ["iommu", "vfio", "units"] {
        assert_eq!(check(&detail, name).0, "PASS", "{name}");
    }

    let serial = until_written(rack, SECOND, PEEK_END, BOOT);
    rack.wait_node(SECOND, BOOT, "degraded", again("degraded")).or_end();
    let is_reported = |node: &Value| node["conditions"].to_string().contains("no IOMMU groups");
    rack.wait_node(SECOND, SOON, "degraded with the reason", is_reported).or_end();
    let detail = shown(rack, SECOND);
    let (status, why) = check(&detail, "iommu");
    assert!(
        status == "FAIL" && why.starts_with("no IOMMU groups: disabled by BIOS or unsupported"),
        "{why}"
    );
    assert_eq!(unit(&detail)["state"], "unbound");
    assert_eq!(peeked(&serial, "PEEK-BOUND"), "", "nothing was bound");
    assert!(peeked(&serial, "PEEK-DOCTOR").ends_with("0/1 GPU unit(s) ready"));
    assert_eq!(last_line(rack, SECOND), "0/1 GPU unit(s) ready");
    assert_eq!(
        count(rack, SECOND, "certificate_issued"),
        2,
        "degraded, and still a member of the fleet"
    );
}

#[test]
fn vfio_binds_whole_group_reports_missing_and_spares_boot_nic() {
    let mut test = up(|mut options, dir| {
        let pair = vec![Extra::Iommu, Extra::Pair];
        let unsafe_pair = vec![Extra::IommuNoRemap, Extra::Pair];
        options.extras = vec![pair, vec![Extra::Iommu, Extra::SharedNic], unsafe_pair];
        (options.nodes, options.powered) = (3, false);
        options
            .set("enroll.policy", "auto")
            .set("site.overlays_dir", &with_try(dir).display().to_string())
            .set("profiles.vfio-nics.extends", "discovery")
            .set("profiles.vfio-nics.overlays", r#"["vfio", "look"]"#)
            .set("profiles.vfio-nics.vfio.devices", r#"["device:8086:100e"]"#)
            .set("defaults.profile", "vfio-nics")
    });
    let rack = &mut test.rack;
    rack.power(FIRST, Power::On).or_end();
    rack.power(SECOND, Power::On).or_end();

    let serial = until_written(rack, FIRST, "TRY-END", BOOT);
    assert_eq!(
        peeked(&serial, "PEEK-BOUND").split_whitespace().count(),
        2,
        "both, taken from e1000"
    );
    assert!(peeked(&serial, "PEEK-DOCTOR").ends_with("1/1 GPU unit(s) ready"));
    assert!(
        tried(&serial, "TRY-HELD").contains(": in_use; open in "),
        "{}",
        tried(&serial, "TRY-HELD")
    );
    assert!(tried(&serial, "TRY-LET-GO").ends_with(": ready"), "{}", tried(&serial, "TRY-LET-GO"));
    assert!(tried(&serial, "TRY-GONE").contains(": missing; "), "{}", tried(&serial, "TRY-GONE"));
    rack.wait_node(FIRST, SOON * 2, "degraded by what is gone", |node| {
        node["phase"] == "degraded"
            && node["conditions"].to_string().contains("(8086:100e) is gone")
    })
    .or_end();
    let detail = shown(rack, FIRST);
    assert_eq!(unit(&detail)["state"], "missing");
    assert_eq!(last_line(rack, FIRST), "0/1 GPU unit(s) ready");

    // Two at a time.
    rack.power(FIRST, Power::Off).or_end();
    rack.power(THIRD, Power::On).or_end();
    rack.wait_node(SECOND, BOOT, "degraded with the reason", |node| {
        node["phase"] == "degraded" && node["conditions"].to_string().contains("shared_with_host")
    })
    .or_end();
    let serial = until_written(rack, SECOND, PEEK_END, BOOT);
    let detail = shown(rack, SECOND);
    let shared = unit(&detail);
    assert_eq!(shared["state"], "shared_with_host");
    assert!(
        shared["reason"]
            .as_str()
            .unwrap_or_default()
            .ends_with("is the NIC that the node booted from"),
        "{shared}"
    );
    assert_eq!(shared["members"].as_array().map(Vec::len), Some(2));
    assert!(
        drivers(shared).iter().all(|(_, driver)| *driver != "vfio-pci"),
        "neither of them: {shared}"
    );
    assert_eq!(peeked(&serial, "PEEK-BOUND"), "");
    assert_eq!(last_line(rack, SECOND), "0/1 GPU unit(s) ready");

    rack.wait_node(THIRD, BOOT, "degraded with the reason", |node| {
        node["phase"] == "degraded"
            && node["conditions"].to_string().contains("interrupt remapping")
    })
    .or_end();
    let detail = shown(rack, THIRD);
    let refused = unit(&detail);
    assert_eq!(
        drivers(refused),
        [("8086:100e", "vfio-pci"), ("8086:100e", "vfio-pci")],
        "bound by name"
    );
    assert_eq!(refused["state"], "unbound", "and not ready, because the kernel does not give it");
    assert_eq!(check(&detail, "iommu").0, "PASS", "there are groups");
    assert_eq!(last_line(rack, THIRD), "0/1 GPU unit(s) ready");
}
