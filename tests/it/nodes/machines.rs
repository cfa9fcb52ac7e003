//! Machines that are defined before they boot: import, reservation, adoption, removal. The real
//! program serves DHCP.

use crate::{
    boot::sessions::rig::{Rig, ordered},
    world::{World, node::PxeNode, stderr},
};
use meshd_central::{BATCH, ImportOptions};
use meshd_model::fleet::{Fingerprint, MachineRow, Node, Verb};
use meshd_store::StoreError;
use meshd_types::{Basis, MacAddr};
use serde_json::Value;
use std::{fs, process::Command};

const HEADER: &str = "mac,name,address,profile,labels\n";

/// The line of a machine: its address is 10.77.0.20 plus its number, outside of the range of leases.
fn line(number: u8) -> String {
    let address = u16::from(number) + if number < 80 { 20 } else { 31 };
    format!(
        "52:54:00:00:00:{number:02x},gpu{number:03},10.77.0.{address},compute,rack=a slot={number}\n"
    )
}

fn list(numbers: impl IntoIterator<Item = u8>) -> String {
    [HEADER.to_owned()].into_iter().chain(numbers.into_iter().map(line)).collect()
}

/// Writes a list and imports it. Returns the exit code and standard error.
fn import(world: &World, text: impl AsRef<[u8]>, more: &[&str]) -> (Option<i32>, String) {
    let file = world.path("machines.csv");
    fs::write(&file, text).unwrap();
    run(world, &[&["node", "import", file.to_str().unwrap()], more].concat())
}

fn run(world: &World, args: &[&str]) -> (Option<i32>, String) {
    let output = world.meshd(args);
    (output.status.code(), stderr(&output))
}

fn expected(world: &World) -> usize {
    let machines = world.json(&["node", "list", "--expected", "-o", "json"]);
    machines.as_array().unwrap().len()
}

fn node(world: &World, name: &str) -> Value {
    world.json(&["node", "show", name, "-o", "json"])
}

#[test]
fn imported_machine_boots_with_its_address_name_profile_and_labels() {
    let mut world = World::new("approve");
    let (code, text) = import(&world, list(1..=200), &["--dry-run"]);
    assert!(code == Some(0) && text.contains("would be 200 added"), "{text}");
    assert_eq!(expected(&world), 0, "a dry run changes nothing");
    let (code, text) = import(&world, list(1..=200), &[]);
    assert!(code == Some(0) && text.contains("200 added, 0 changed, 0 unchanged"), "{text}");
    assert_eq!(expected(&world), 200);

    let machine = PxeNode::new(&world, 7);
    machine.ipxe().unwrap();
    assert_eq!(machine.address.get(), Some([10, 77, 0, 27].into()), "without a restart");
    let seen = node(&world, "gpu007");
    assert_eq!(seen["address"], "10.77.0.27");
    assert_eq!((&seen["profile"], &seen["phase"]), (&"compute".into(), &"discovered".into()));
    assert_eq!(seen["labels"], serde_json::json!({ "rack": "a", "slot": "7" }));
    assert_eq!(expected(&world), 199);
    let (code, text) = run(&world, &["node", "approve", "gpu[007]"]);
    assert!(code == Some(0) && text.contains("gpu007"), "{text}");

    // Another machine takes no reserved address.
    let stranger = PxeNode::new(&world, 201);
    stranger.ipxe().unwrap();
    let address = stranger.address.get().unwrap();
    assert!((100..=110).contains(&address.octets()[3]), "{address}");

    world.kill();
    world.start();
    assert_eq!(expected(&world), 199, "the records survive the end of the process");
    let (code, text) = import(&world, list(1..=200), &[]);
    assert!(code == Some(0) && text.contains("0 added, 0 changed, 200 unchanged"), "{text}");
    let moved = list([8]).replace("10.77.0.28", "10.77.0.240");
    let (code, text) = import(&world, moved, &[]);
    assert!(code == Some(0) && text.contains("1 changed"), "{text}");
    let machine = PxeNode::new(&world, 8);
    machine.ipxe().unwrap();
    assert_eq!(machine.address.get(), Some([10, 77, 0, 240].into()));
    assert_eq!(world.events("machines_expected").len(), 2);
}

#[test]
fn machine_imported_for_approval_is_approved_when_it_appears() {
    let world = World::new("approve");
    let early = PxeNode::new(&world, 3);
    early.ipxe().unwrap();
    let (code, text) = import(&world, list([3, 4]), &["--approve"]);
    assert!(code == Some(0) && text.contains("they are approved when they appear"), "{text}");
    assert_eq!(node(&world, "gpu003")["phase"], "approved", "it waited already");
    PxeNode::new(&world, 4).ipxe().unwrap();
    assert_eq!(node(&world, "gpu004")["phase"], "booting", "it was approved and has its script");
    let args = [
        "node",
        "add",
        "--mac",
        "52:54:00:00:00:05",
        "--name",
        "login1",
        "--label",
        "a=b",
        "--approve",
        "--serial",
        "other",
    ];
    assert_eq!(run(&world, &args).0, Some(0));
    PxeNode::new(&world, 5).ipxe().unwrap();
    let nodes = world.json(&["node", "list", "-o", "json", "--phase", "discovered"]);
    let nodes = nodes.as_array().unwrap();
    assert!(nodes.len() == 1 && nodes[0]["name"] != "login1", "another serial number: {nodes:?}");
}

#[test]
fn list_with_faults_changes_nothing_and_names_all_lines() {
    let world = World::new("approve");
    PxeNode::new(&world, 9).ipxe().unwrap();
    let nodes = world.json(&["node", "list", "-o", "json"]);
    let id = nodes[0]["id"].as_str().unwrap();
    assert_eq!(run(&world, &["node", "rename", id, "taken"]).0, Some(0));
    let text = [
        "\u{feff}MAC,Name,Address,Profile,Labels\r\n",
        "52:54:00:00:00:01,gpu001,10.77.0.21,compute,rack=a\r\n",
        "52:54:00:00:00:01,gpu001,10.77.0.21,compute,\r\n",
        "52:54:00:00:0x:02,GPU_2,10.77.0.256,compte,rack\r\n",
        "52:54:00:00:00:03,taken,10.77.0.255,,\r\n",
        "52:54:00:00:00:04,\"gpu004\",192.0.2.4,,\"rack=a, b=c\"\r\n",
        "52:54:00:00:00:06,gpu006,10.77.0.1,,\r\n",
    ];
    let (code, text) = import(&world, text.concat(), &[]);
    assert_eq!(code, Some(1), "{text}");
    for part in [
        "machines.csv:3: mac: `52:54:00:00:00:01` is on line 2, too",
        "machines.csv:3: name: `gpu001` is on line 2, too",
        "machines.csv:3: address: `10.77.0.21` is on line 2, too",
        "machines.csv:4: mac: `52:54:00:00:0x:02` is not a MAC address",
        "machines.csv:4: name: `GPU_2` is not a valid host name",
        "machines.csv:4: address: `10.77.0.256` is not an IPv4 address",
        "machines.csv:4: labels: `rack` is not a label",
        "machines.csv:5: name: `taken` is the name of node",
        "machines.csv:5: address: 10.77.0.255 is",
        "machines.csv:6: labels:",
        "machines.csv:6: address: 192.0.2.4 is in the network of no segment",
        "machines.csv:7: address: 10.77.0.1 is an address of this central node",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(expected(&world), 0);
    let (code, text) = import(&world, "name,address\nx,10.77.0.21\n", &[]);
    assert!(code == Some(1) && text.contains("the column `mac` is missing"), "{text}");
    let text = list([1]).replace("compute", "compte");
    let (code, text) = import(&world, text, &[]);
    assert!(code == Some(1) && text.contains("there is no profile `compte`"), "{text}");
    let args = ["node", "add", "--mac", "x", "--name", "A"];
    let (code, text) = run(&world, &args);
    assert!(code == Some(1) && text.contains("--mac:") && text.contains("--name:"), "{text}");
}

#[test]
fn exports_of_other_programs_are_imported_by_their_content() {
    let world = World::new("approve");
    let import = |name: &str, text: &str| {
        fs::write(world.path(name), text).unwrap();
        run(&world, &["node", "import", world.path(name).to_str().unwrap()])
    };
    let maas = r#"[
  {
    "hostname": "gpu001", "tag_names": ["gpu"], "zone": {"name": "row-a"},
    "boot_interface": {"mac_address": "52:54:00:00:00:01",
      "links": [{"mode": "static", "ip_address": "10.77.0.21"}]}
  },
  {
    "hostname": "gpu002"
  },
  {
    "hostname": "gpu001", "boot_interface": {"mac_address": "52:54:00:00:00:01"}
  }
]"#;
    let (code, text) = import("maas.json", maas);
    assert_eq!(code, Some(1), "{text}");
    for part in ["machine gpu002 has no boot interface", "mac: `52:54:00:00:00:01` is on line"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert_eq!(expected(&world), 0, "with a fault, nothing is imported");
    let rest = maas[maas.find("  },\n  {\n    \"hostname\": \"gpu002\"").unwrap()..].to_owned();
    let (code, text) = import("maas.json", &maas.replace(&rest, "  }\n]"));
    assert!(code == Some(0) && text.contains("1 added"), "{text}");
    let xcat = "# <xCAT data object stanza file>\n\ngpu003:\n    objtype=node\n    bmc=10.1.0.3\n    groups=all,compute\n    mac=52:54:00:00:00:03!gpu003\n    mgt=ipmi\n    rack=b\n";
    let (code, text) = import("nodes.stanza", xcat);
    assert!(code == Some(0) && text.contains("1 added"), "{text}");
    let machine = world.path("machines/gpu004");
    fs::create_dir_all(&machine).unwrap();
    fs::write(machine.join("UUID"), "10eff964\n").unwrap();
    let folder = world.path("machines");
    let folder = folder.to_str().unwrap();
    let (code, text) = run(&world, &["node", "import", folder]);
    assert!(code == Some(1) && text.contains("gpu004/MAC: "), "{text}");
    fs::write(machine.join("MAC"), "52:54:00:00:00:04\n").unwrap();
    let (code, text) = run(&world, &["node", "import", folder]);
    assert!(code == Some(0) && text.contains("1 added"), "{text}");
    let csv = world.meshd(&["node", "list", "--expected", "-o", "csv", "--no-headers"]);
    assert_eq!(
        String::from_utf8_lossy(&csv.stdout),
        "52:54:00:00:00:01,gpu001,10.77.0.21,,gpu=true zone=row-a,,,,\n\
         52:54:00:00:00:03,gpu003,,,compute=true rack=b,,ipmi,10.1.0.3,\n\
         52:54:00:00:00:04,gpu004,,,,,,,\n"
    );
}

#[test]
fn ten_thousand_machines_are_imported_and_removed() {
    let world = World::new("approve");
    let row = |number: u32| {
        format!(
            "02:00:00:00:{:02x}:{:02x},n{number:05},,,rack=r{}\n",
            number >> 8,
            number & 255,
            number / 40
        )
    };
    let text: String = [HEADER.to_owned()].into_iter().chain((0..10_000).map(row)).collect();
    let (code, message) = import(&world, &text, &[]);
    assert!(code == Some(0) && message.contains("10000 added"), "{message}");
    assert_eq!(expected(&world), 10_000);
    let (code, message) = import(&world, text.clone() + row(10_000).as_str(), &[]);
    assert!(code == Some(1) && message.contains("10001 machines are too many"), "{message}");
    // Each machine takes the name of the next one, which the same list gives up.
    let renamed = |number: u32| {
        row(number).replace(&format!("n{number:05}"), &format!("n{:05}", (number + 1) % 10_000))
    };
    let rotated: String = [HEADER.to_owned()].into_iter().chain((0..10_000).map(renamed)).collect();
    let (code, message) = import(&world, &rotated, &[]);
    assert!(code == Some(0) && message.contains("10000 changed"), "{message}");
    let (code, message) = run(&world, &["node", "remove", "--expected", "n0[0000-0099]", "--yes"]);
    assert_eq!(code, Some(0), "{message}");
    assert_eq!(expected(&world), 9_900);
}

/// The check finds no fault, but another order takes the last name before its batch is stored.
#[tokio::test]
async fn import_with_a_late_conflict_counts_only_the_stored_machines() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mac = MacAddr([2, 9, 9, 0, 0, 0]);
    let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, rig.central.now());
    let id = node.id;
    let stored = rig.central.store().commit(|tx| {
        tx.put_node(node);
        Ok::<_, StoreError>(())
    });
    stored.await.unwrap();
    let nodes = &rig.central.nodes;
    let import = ordered(Verb::MachineImport);
    let rename = ordered(Verb::Rename);
    // A disk that is fast lets both batches pass before the new name: the next list is tried.
    for list in 1..30u8 {
        let row = |number: usize| MachineRow {
            mac: MacAddr([2, 9, 9, list, (number >> 8) as u8, number as u8]).to_string(),
            name: format!("n{list}-{number}"),
            ..MachineRow::default()
        };
        let rows: Vec<MachineRow> = (0..BATCH + 1).map(row).collect();
        let last = format!("n{list}-{BATCH}");
        let before = nodes.expected_machines().len();
        let (report, renamed) = tokio::join!(
            nodes.import_machines(&rows, ImportOptions::default(), &import),
            nodes.rename(id, &last, &rename)
        );
        let report = report.unwrap();
        if renamed.is_err() {
            assert_eq!((report.added, report.faults.len()), (BATCH + 1, 0));
            continue;
        }
        assert_eq!(report.faults.len(), 1, "{report:?}");
        assert_eq!((report.added, report.changed, report.unchanged), (BATCH, 0, 0));
        assert_eq!(nodes.expected_machines().len(), before + BATCH);
        return;
    }
    panic!("no new name came between two batches");
}

#[test]
fn removed_machine_is_a_stranger_again() {
    let world = World::new("approve");
    assert_eq!(import(&world, list([1, 2]), &[]).0, Some(0));
    let (code, text) = run(&world, &["node", "remove", "--expected", "gpu[001,003]", "--yes"]);
    assert!(code == Some(1) && text.contains("`gpu003`"), "{text}");
    let (code, text) = run(&world, &["node", "remove", "--expected", "52:54:00:00:00:01"]);
    assert!(code == Some(1) && text.contains("gpu001 is no longer expected. Remove?"), "{text}");
    let (code, text) = run(&world, &["node", "remove", "--expected", "gpu001", "--yes"]);
    assert_eq!(code, Some(0), "{text}");
    let machine = PxeNode::new(&world, 1);
    machine.ipxe().unwrap();
    let nodes = world.json(&["node", "list", "-o", "json"]);
    assert!(nodes[0]["name"].as_str().unwrap().starts_with("node-"), "{nodes}");
    assert_ne!(machine.address.get(), Some([10, 77, 0, 21].into()));
    PxeNode::new(&world, 2).ipxe().unwrap();
    assert_eq!(run(&world, &["node", "remove", "gpu002", "--yes"]).0, Some(0));
    assert_eq!(world.json(&["node", "list", "--expected", "-o", "json"]), serde_json::json!([]));
}

#[test]
fn export_is_read_by_the_import_and_by_other_programs() {
    let world = World::new("approve");
    assert_eq!(import(&world, list([1, 2]), &[]).0, Some(0));
    PxeNode::new(&world, 1).ipxe().unwrap();
    let export = |format: &str| {
        let output = world.meshd(&["node", "export", "--format", format]);
        assert!(output.status.success(), "{}", stderr(&output));
        String::from_utf8(output.stdout).unwrap()
    };
    let (code, text) = import(&world, export("csv"), &[]);
    assert!(code == Some(0) && text.contains("0 added, 0 changed, 2 unchanged"), "{text}");
    assert!(export("hosts").starts_with("10.77.0.21 gpu001 node-"), "{}", export("hosts"));
    let write = |name: &str, text: String| {
        fs::write(world.path(name), text).unwrap();
        world.path(name).to_str().unwrap().to_owned()
    };
    let hosts = write("hosts", export("hosts"));
    let script = format!("mount --bind {hosts} /etc/hosts && getent -s files hosts gpu001");
    let found = read_by("unshare", &["--mount", "sh", "-c", &script]);
    assert_eq!(found.split_whitespace().next(), Some("10.77.0.21"), "{found}");

    let inventory = write("inventory.json", export("ansible"));
    let list = read_by("ansible-inventory", &["-i", &inventory, "--list"]);
    let list: Value = serde_json::from_str(&list).unwrap_or_else(|error| panic!("{error}: {list}"));
    assert_eq!(list["_meta"]["hostvars"]["gpu001"]["ansible_host"], "10.77.0.21", "{list}");
    assert_eq!(list["rack_a"]["hosts"], serde_json::json!(["gpu001"]), "{list}");

    let targets = write("targets.json", export("prometheus"));
    let config = format!(
        "scrape_configs:\n  - job_name: nodes\n    file_sd_configs:\n      - files: [\"{targets}\"]\n"
    );
    let config = write("prometheus.yml", config);
    read_by("promtool", &["check", "config", &config]);
    let targets: Value = serde_json::from_str(&export("prometheus")).unwrap();
    assert_eq!(targets[0]["targets"][0], "10.77.0.21:9100");
    assert_eq!(targets[0]["labels"]["label_rack"], "a");
}

/// Runs the program that an export is for, and returns its standard output.
fn read_by(program: &str, args: &[&str]) -> String {
    let output = Command::new(program).args(args).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}; run .ci/setup test"));
    assert!(output.status.success(), "{program}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
