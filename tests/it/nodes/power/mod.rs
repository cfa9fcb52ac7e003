//! Orders to BMCs, with the real daemon, `ipmi_sim` and `ipmitool`, and a program of the site that
//! lies, hangs and refuses. Machines boot over real sockets.
//!
//! | module | what it holds |
//! | --- | --- |
//! | here | orders of the command line, to their effect |
//! | `console_logs` | consoles of booting machines, in the logs of their boots |
//! | `fenced` | a hung node whose power is cut, and its VM |
//! | `found` | BMCs that get their addresses from meshd |
//! | `ladders` | ladders that a rule names |
//! | `logins` | logins over restarts and as secrets of the site |
//! | `many` | 200 machines, from a list to their approval |
//! | `reports` | sensors, event log and versions |
//! | `stall_retries` | stalled boots that meshd retries by the BMC |
//! | `steps` | orders beside other work, with a clock that is turned by hand |
//! | `warewulf` | a user of Warewulf, from `nodes.conf` to a node that is online |

mod console_logs;
mod fenced;
mod found;
mod ladders;
mod logins;
mod many;
mod reports;
mod stall_retries;
mod steps;
mod warewulf;

use crate::world::{World, dhcp::As, eventually, node::PxeNode, stderr, write_program};
use meshd_lab::Namespace;
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    thread,
};

pub const PASSWORD: &str = "correct-horse";

/// A program of the site that switches machines: it notes each request in `requests`, and obeys
/// the file `answer-REQUEST`.
const PROGRAM: &str = r#"#!/bin/sh
dir=$(dirname "$0")
echo "$*" >>"$dir/requests"
[ -e "$dir/answer-$1" ] && . "$dir/answer-$1"
case $1 in
status) cat "$dir/power-$MESHD_MAC" 2>/dev/null || echo off ;;
on | cycle | reset) echo on >"$dir/power-$MESHD_MAC" ;;
shut-down | off) echo off >"$dir/power-$MESHD_MAC" ;;
esac
"#;

/// The chassis of `ipmi_sim`: its power is the file `power`.
const CHASSIS: &str = r#"#!/bin/sh
dir=$(dirname "$0")
shift
echo "$*" >>"$dir/requests"
case "$1 $2" in
"get power") echo "power:$(cat "$dir/power" 2>/dev/null || echo 0)" ;;
"set power") echo "$3" >"$dir/power" ;;
"set shutdown") [ -e "$dir/deaf" ] || echo 0 >"$dir/power" ;;
esac
exit 0
"#;

/// A folder with what a BMC of these tests consists of.
pub struct Bench(pub PathBuf);

impl Bench {
    pub fn new(world: &World) -> Self {
        let folder = world.path("bmc");
        fs::create_dir_all(&folder).unwrap();
        let bench = Bench(folder);
        write_program(&bench.0.join("program"), PROGRAM);
        write_program(&bench.0.join("chassis"), CHASSIS);
        bench.write_password(PASSWORD, 0o600);
        bench
    }

    pub fn write_password(&self, text: &str, mode: u32) {
        let file = self.0.join("password");
        let _ = fs::remove_file(&file);
        fs::write(&file, text).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.0.join(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap_or_default()
    }

    /// The same for a clock that is turned by hand: a machine has to appear within a minute.
    pub fn sections_by_hand(&self) -> String {
        self.sections("command", "").replace("\"10m\"", "\"60s\"")
    }

    /// The requests that changed something.
    pub fn changes(&self) -> Vec<String> {
        let all = self.read("requests");
        let is_change = |line: &&str| !line.starts_with("get ") && *line != "status";
        all.lines().filter(is_change).map(str::to_owned).collect()
    }

    /// Sections for the site, with further keys of the rule. A machine appears in time, also on a
    /// busy computer.
    pub fn sections(&self, driver: &str, more: &str) -> String {
        let program = match driver {
            "command" => format!("program = \"{}\"\n", self.0.join("program").display()),
            "redfish" => String::new(),
            _ => "address = \"127.0.0.1\"\nnodes = [\"gpu001\"]\ncipher_suite = 3\n".to_owned(),
        };
        format!(
            "[power]\nappear_within = \"10m\"\nstagger = \"2s\"\n[[power.bmc]]\ndriver = \"{driver}\"\n{program}user = \"meshd\"\npassword_file = \"{}\"\n{more}\n[defaults]",
            self.0.join("password").display()
        )
    }
}

pub fn world_with(driver: &str, policy: &str) -> (World, Bench) {
    let mut world = World::prepared(policy);
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections(driver, ""));
    world.start();
    (world, bench)
}

/// A BMC that speaks IPMI; ended when it is dropped.
struct IpmiSim(Child);

impl IpmiSim {
    fn start(world: &World, bench: &Bench) -> Self {
        Self::start_with(world, bench, "")
    }

    /// Starts with further lines of `lan.conf`.
    fn start_with(world: &World, bench: &Bench, more: &str) -> Self {
        Self::start_at(&world.central, "127.0.0.1", bench, more)
    }

    /// Starts inside of a namespace, with an address of it.
    fn start_at(inside: &Namespace, address: &str, bench: &Bench, more: &str) -> Self {
        let chassis = bench.0.join("chassis");
        let lan = format!(
            "name \"lab\"\nset_working_mc 0x20\nstartlan 1\naddr {address} 623\npriv_limit admin\n\
             allowed_auths_admin none md2 md5 straight\nguid a123456789abcdefa123456789abcdef\nendlan\n{more}\
             chassis_control \"{} 0x20\"\nuser 2 true \"meshd\" \"{PASSWORD}\" admin 10 none md2 md5 straight\n",
            chassis.display()
        );
        bench.write("lan.conf", &lan);
        bench.write(
            "sim.emu",
            &format!("mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\n{}mc_enable 0x20\n", reports::SENSORS),
        );
        let state = bench.0.join("state");
        let mut command = Command::new("ipmi_sim");
        command.args(["-n", "-c"]).arg(bench.0.join("lan.conf"));
        command.arg("-f").arg(bench.0.join("sim.emu")).arg("-s").arg(&state);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        fs::create_dir_all(&state).unwrap();
        IpmiSim(inside.spawn(&mut command).unwrap())
    }
}

impl Drop for IpmiSim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Makes a machine known under a name.
pub fn seen_machine<'a>(world: &'a World, number: u8, name: &str) -> PxeNode<'a> {
    let machine = PxeNode::new(world, number);
    machine.ipxe().unwrap();
    let nodes = world.json(&["node", "list", "-o", "json"]);
    let mac = machine.mac.to_string();
    let node = nodes.as_array().unwrap().iter().find(|node| node["mac"] == mac.as_str()).unwrap();
    let renamed = world.meshd(&["node", "rename", node["id"].as_str().unwrap(), name]);
    assert!(renamed.status.success(), "{}", stderr(&renamed));
    machine
}

/// Runs an order, and `machine` beside it until the order ends. A packet counts once the BMC has
/// answered, so a machine in iPXE repeats DHCP, as real ones do.
pub fn order(world: &World, args: &[&str], mut machine: impl FnMut()) -> (Option<i32>, String) {
    thread::scope(|scope| {
        let order = scope.spawn(|| world.meshd(args));
        eventually("the order ends", || {
            machine();
            if order.is_finished() { Ok(()) } else { Err(world.log_text()) }
        });
        let output = order.join().unwrap();
        (output.status.code(), stderr(&output))
    })
}

pub fn state(world: &World, name: &str) -> Value {
    let output = world.meshd(&["node", "power", "status", name, "-o", "json"]);
    serde_json::from_slice::<Value>(&output.stdout).unwrap()[0].clone()
}

fn until_off(world: &World, name: &str) {
    eventually("the BMC answers", || {
        let state = state(world, name);
        if state["state"] == "off" { Ok(()) } else { Err(state.to_string()) }
    });
}

#[test]
fn machine_is_switched_by_ipmi_and_seen_before_an_order_is_done() {
    let (world, bench) = world_with("ipmi", "approve");
    let _sim = IpmiSim::start(&world, &bench);
    let machine = seen_machine(&world, 1, "gpu001");
    until_off(&world, "gpu001");
    let mut booted = false;
    let (code, text) = order(&world, &["node", "power", "on", "gpu001"], || {
        if bench.read("power").trim() == "1" {
            machine.dhcp(As::Ipxe);
            booted = true;
        }
    });
    assert!(booted && code == Some(0) && text.contains("1 done"), "{booted} {code:?} {text}");
    assert_eq!(bench.changes(), ["set power 1"]);
    assert_eq!(state(&world, "gpu001")["state"], "on");

    bench.write("deaf", "");
    let (code, text) = order(&world, &["node", "power", "off", "--now", "--yes", "gpu001"], || {});
    assert!(code == Some(0) && text.contains("1 done"), "{text}");
    assert_eq!(bench.changes(), ["set power 1", "set power 0"]);

    for args in [&["boot-device", "pxe"][..], &["identify", "on"]] {
        let (code, text) = order(&world, &[&["node"], args, &["gpu001"]].concat(), || {});
        assert_eq!(code, Some(0), "{text}");
    }
    let requests = bench.read("requests");
    assert!(requests.contains("set boot pxe") && requests.contains("set identify"), "{requests}");
    let audit = world.json(&["audit", "-o", "json"]);
    for verb in ["power", "boot-device", "identify"] {
        let has = audit.as_array().unwrap().iter().any(|line| line["verb"] == verb);
        assert!(has, "{verb}: {audit}");
    }
    let stored = world.state_bytes();
    let secret = PASSWORD.as_bytes();
    assert!(!stored.windows(secret.len()).any(|part| part == secret), "the password is stored");
}

#[test]
fn refused_password_is_tried_once_until_its_file_changes() {
    let (world, bench) = world_with("command", "approve");
    let _machine = seen_machine(&world, 1, "gpu001");
    bench.write("answer-status", "[ \"$MESHD_BMC_PASSWORD\" = new ] || exit 3\n");
    for _ in 0..3 {
        let state = state(&world, "gpu001");
        assert_eq!(state["state"], Value::Null, "{state}");
    }
    let (code, text) = order(&world, &["node", "power", "on", "gpu001"], || {});
    assert!(code == Some(1) && text.contains("refused"), "{text}");
    assert_eq!(bench.read("requests").lines().count(), 1, "a third try may lock the account");
    bench.write_password("new\r\n", 0o600);
    assert_eq!(state(&world, "gpu001")["state"], "off");
}

#[test]
fn password_file_is_checked_before_it_is_needed() {
    let world = World::prepared("approve");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("command", ""));
    for (text, mode, fault) in [
        ("secret", 0o640, "may be read by others"),
        ("\n", 0o600, "is empty"),
        ("a\nb", 0o600, "has several lines"),
    ] {
        bench.write_password(text, mode);
        let checked = world.meshd(&["check"]);
        let text = stderr(&checked);
        assert!(checked.status.code() == Some(1) && text.contains(fault), "{fault}: {text}");
        assert!(world.serve_and_fail().contains(fault), "{fault}");
    }
    fs::remove_file(bench.0.join("password")).unwrap();
    assert!(world.serve_and_fail().contains("cannot be read"));
}

#[test]
fn machine_without_a_bmc_is_refused_with_the_key_to_write() {
    let world = World::new("approve");
    let _machine = seen_machine(&world, 1, "gpu001");
    let refused = world.meshd(&["node", "power", "on", "gpu001"]);
    let text = stderr(&refused);
    assert!(refused.status.code() == Some(1) && text.contains("[[power.bmc]]"), "{text}");
    let reboot = world.meshd(&["node", "reboot", "--yes", "gpu001"]);
    assert!(stderr(&reboot).contains("node power cycle"), "{}", stderr(&reboot));
}

#[test]
fn two_machines_with_one_bmc_are_refused() {
    let mut world = World::prepared("approve");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("ipmi", ""));
    world.start();
    let file = world.path("machines.csv");
    let import = |lines: &str| {
        let list = format!("mac,name,address,profile,labels,bmc_driver,bmc_address\n{lines}");
        fs::write(&file, list).unwrap();
        let imported = world.meshd(&["node", "import", file.to_str().unwrap()]);
        (imported.status.code(), stderr(&imported))
    };
    let third = "52:54:00:00:00:03,gpu003,,,,ipmi,10.1.0.1\n";
    let fourth = third.replace('3', "4");
    let (code, text) = import(&format!("{third}{fourth}"));
    assert!(code == Some(1), "{text}");
    assert!(text.contains("csv:3: bmc_address: `10.1.0.1` is the BMC of gpu003, too"), "{text}");
    // The same BMC in another spelling, or with another protocol.
    for other in ["ipmi,10.1.0.1:623", "redfish,https://10.1.0.1/redfish/v1/Systems/1"] {
        let (code, text) = import(&format!("{third}{}", fourth.replace("ipmi,10.1.0.1", other)));
        assert!(code == Some(1) && text.contains("is the BMC of gpu003, too"), "{other}: {text}");
    }
    let (code, text) = import(third);
    assert!(code == Some(0), "{text}");
    let (code, text) = import(&fourth);
    assert!(code == Some(1) && text.contains("is the BMC of gpu003, too"), "{text}");
    let (code, text) = import(&format!("{}{fourth}", third.replace("10.1.0.1", "10.1.0.2")));
    assert!(code == Some(0), "it moves: {text}");

    // The rule gives gpu001 this BMC.
    let (code, text) = import("52:54:00:00:00:02,gpu002,,,,ipmi,127.0.0.1\n");
    assert!(code == Some(0), "{text}");
    let _machine = seen_machine(&world, 1, "gpu001");
    let refused = world.meshd(&["node", "power", "cycle", "--yes", "gpu001"]);
    let text = stderr(&refused);
    assert!(refused.status.code() == Some(1) && text.contains("that of gpu002, too"), "{text}");
}

#[test]
fn order_goes_on_after_the_end_of_the_process_without_a_second_cycle() {
    let (mut world, bench) = world_with("command", "approve");
    let mac = seen_machine(&world, 1, "gpu001").mac;
    bench.write(&format!("power-{mac}"), "on\n");
    // The request is under way, or has been carried out, when the process ends.
    bench.write("answer-cycle", "sleep 60\n");
    let ordered = world.meshd(&["node", "power", "cycle", "--yes", "--no-wait", "gpu001"]);
    assert!(ordered.status.success(), "{}", stderr(&ordered));
    eventually("the request is sent", || {
        if bench.changes().is_empty() { Err(bench.read("requests")) } else { Ok(()) }
    });
    world.kill();
    world.start();
    let operations = world.json(&["operation", "list", "-o", "json"]);
    let operation = operations[0]["id"].as_str().unwrap();
    assert_eq!(operations[0]["state"], "running");
    let machine = PxeNode::new(&world, 1);
    machine.dhcp(As::Ipxe);
    let followed = world.meshd(&["operation", "follow", operation]);
    assert!(followed.status.success(), "{}", stderr(&followed));
    assert_eq!(bench.changes(), ["cycle"]);
}

#[test]
fn imported_machine_is_powered_on_before_it_is_a_node() {
    let (world, bench) = world_with("command", "approve");
    let list = "mac,name,address,profile,labels\n52:54:00:00:00:01,gpu001,,,\n52:54:00:00:00:02,gpu002,,,\n";
    fs::write(world.path("machines.csv"), list).unwrap();
    let file = world.path("machines.csv");
    let imported = world.meshd(&["node", "import", file.to_str().unwrap()]);
    assert!(imported.status.success(), "{}", stderr(&imported));
    assert_eq!(state(&world, "gpu001")["state"], "off");
    let machines = [1, 2].map(|number| PxeNode::new(&world, number));
    let mut booted = [false; 2];
    let (code, text) = order(&world, &["node", "power", "on", "gpu[001-002]"], || {
        for (machine, booted) in machines.iter().zip(&mut booted) {
            if !*booted && bench.read(&format!("power-{}", machine.mac)).trim() == "on" {
                machine.ipxe().unwrap();
                *booted = true;
            }
        }
    });
    assert!(code == Some(0) && text.contains("2 done"), "{text}");
    let nodes = world.json(&["node", "list", "-o", "json"]);
    let mut names: Vec<_> =
        nodes.as_array().unwrap().iter().map(|node| node["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["gpu001", "gpu002"]);
}

#[test]
fn reboot_with_power_cycles_a_machine_without_a_link_and_can_be_cancelled() {
    let (world, bench) = world_with("command", "approve");
    let machine = seen_machine(&world, 1, "gpu001");
    bench.write(&format!("power-{}", machine.mac), "on\n");
    let mut booted = false;
    let (code, text) = order(&world, &["node", "reboot", "--power", "--yes", "gpu001"], || {
        if bench.changes() == ["cycle"] {
            machine.dhcp(As::Ipxe);
            booted = true;
        }
    });
    assert!(booted && code == Some(0) && text.contains("1 done"), "{text}");
    bench.write("answer-reset", "exit 0\n");
    let reset = ["node", "power", "reset", "--yes", "--no-wait", "gpu001"];
    assert!(world.meshd(&reset).status.success());
    let operations = world.json(&["operation", "list", "-o", "json"]);
    let ids = operations.as_array().unwrap().iter();
    let running = ids.clone().find(|operation| operation["state"] == "running").unwrap();
    let cancelled = world.meshd(&["operation", "cancel", running["id"].as_str().unwrap()]);
    assert!(stderr(&cancelled).contains("1 of 1 nodes cancelled"), "{}", stderr(&cancelled));
}

#[test]
fn silent_machine_is_fenced_at_once_if_its_bmc_reports_it_off() {
    let (world, bench) = world_with("command", "auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let mut agent = machine.start_agent(&overlay);
    let node = world.wait_for_phase("online");
    let id = node["id"].as_str().unwrap();
    let name = node["name"].as_str().unwrap();
    let power = format!("power-{}", machine.mac);
    bench.write(&power, "on\n");
    let powered = world.meshd(&["node", "power", "on", id]);
    assert!(powered.status.success(), "it is on and has a link: {}", stderr(&powered));
    assert!(bench.changes().is_empty());
    agent.cut_power();
    let fence = ["node", "fence", id, "--confirm", name];
    let refused = world.meshd(&fence);
    assert_eq!(refused.status.code(), Some(1), "its BMC reports that it is on");
    bench.write(&power, "off\n");
    let fenced = world.meshd(&fence);
    assert!(fenced.status.success(), "{}", stderr(&fenced));
}

#[test]
fn report_of_a_bmc_of_two_machines_fences_none() {
    let mut world = World::prepared("auto");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("ipmi", ""));
    world.start();
    // `gpu002` is off. Its BMC counts as that of `gpu001`, too: the rule of the site is wrong.
    let _sim = IpmiSim::start(&world, &bench);
    let list = "mac,name,address,profile,labels,bmc_driver,bmc_address\n\
                52:54:00:00:00:01,gpu001,,,,,\n52:54:00:00:00:02,gpu002,,,,ipmi,127.0.0.1:623\n";
    fs::write(world.path("machines.csv"), list).unwrap();
    let file = world.path("machines.csv");
    let imported = world.meshd(&["node", "import", file.to_str().unwrap()]);
    assert!(imported.status.success(), "{}", stderr(&imported));
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let mut agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    until_off(&world, "gpu001");
    agent.cut_power();
    let fence = world.meshd(&["node", "fence", "gpu001", "--confirm", "gpu001"]);
    let text = stderr(&fence);
    assert!(fence.status.code() == Some(1) && text.contains("its last message was"), "{text}");
}

#[test]
fn reboot_with_power_cycles_a_hung_node_in_maintenance() {
    let (world, bench) = world_with("command", "auto");
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let mut agent = machine.start_agent(&overlay);
    let node = world.wait_for_phase("online");
    let id = node["id"].as_str().unwrap();
    bench.write(&format!("power-{}", machine.mac), "on\n");
    let ordered = world.meshd(&["node", "maintenance", id]);
    assert!(ordered.status.success(), "{}", stderr(&ordered));
    agent.cut_power();
    eventually("the link ends", || {
        let state = state(&world, id);
        if state["is_linked"] == false { Ok(()) } else { Err(state.to_string()) }
    });
    let mut booted = false;
    let (code, text) = order(&world, &["node", "reboot", "--power", "--yes", id], || {
        if bench.changes() == ["cycle"] {
            machine.dhcp(As::Ipxe);
            booted = true;
        }
    });
    assert!(booted && code == Some(0) && text.contains("1 done"), "{text}");
}
