//! Sensors, event log, versions and the serial console of `ipmi_sim`, by the real `ipmitool`.

use super::{Bench, IpmiSim, PASSWORD, seen_machine, state, until_off, world_with};
use crate::world::{World, eventually, program, stderr};
use serde_json::{Value, json};
use std::{
    fs,
    io::Write as _,
    process::{Child, Command, Stdio},
};

/// A temperature of 45 degrees, a fan with 30 turns a minute, and one event.
pub const SENSORS: &str = "\
sel_enable 0x20 1000 0x0a\n\
sensor_add 0x20 0 48 1 1\n\
sensor_set_value 0x20 0 48 45 0\n\
sensor_set_event_support 0x20 0 48 enable scanning per-state 000000000000000 000000000000000 \
000000000000000 000000000000000\n\
main_sdr_add 0x20 0x00 0x00 0x51 0x01 0x33 0x20 0x00 0x30 0x07 0x01 0x7f 0x68 0x01 0x01 0x00 \
0x00 0x00 0x00 0x00 0x00 0x00 0x01 0x00 0x00 0x01 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 \
0xff 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0xc8 0x43 0x50 0x55 0x20 0x54 \
0x65 0x6d 0x70\n\
sensor_add 0x20 0 49 4 1\n\
sensor_set_value 0x20 0 49 30 0\n\
sensor_set_event_support 0x20 0 49 enable scanning per-state 000000000000000 000000000000000 \
000000000000000 000000000000000\n\
main_sdr_add 0x20 0x00 0x00 0x51 0x01 0x30 0x20 0x00 0x31 0x07 0x01 0x7f 0x68 0x04 0x01 0x00 \
0x00 0x00 0x00 0x00 0x00 0x00 0x12 0x00 0x00 0x01 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 \
0xff 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0x00 0xc5 0x46 0x61 0x6e 0x20 0x31\n\
sel_add 0x20 0x02 0x00 0x00 0x00 0x00 0x20 0x00 0x04 0x01 0x30 0x01 0x59 0x00 0x00\n\
";

fn report(world: &World, verb: &str) -> Value {
    world.json(&["node", verb, "gpu001", "-o", "json"])
}

#[test]
fn sensors_events_and_versions_are_read_by_ipmi() {
    let (world, bench) = world_with("ipmi", "approve");
    let _sim = IpmiSim::start(&world, &bench);
    let _machine = seen_machine(&world, 1, "gpu001");
    until_off(&world, "gpu001");
    assert_eq!(
        report(&world, "sensors"),
        json!([
            { "name": "CPU Temp", "reading": "45 degrees C", "state": "ok" },
            { "name": "Fan 1", "reading": "30 RPM", "state": "ok" }
        ])
    );
    let events = report(&world, "sel");
    assert_eq!(events.as_array().unwrap().len(), 1, "{events}");
    assert_eq!((&events[0]["id"], &events[0]["state"]), (&"1".into(), &"Asserted".into()));
    assert!(events[0]["event"].as_str().unwrap().starts_with("Upper Critical going high"));
    let versions = report(&world, "firmware");
    assert_eq!(versions[0], json!({ "name": "BMC", "version": "9.08" }));

    let kept = world.meshd(&["node", "sel", "gpu001", "--clear"]);
    assert!(kept.status.code() == Some(1) && stderr(&kept).contains("Delete?"), "{kept:?}");
    assert_eq!(report(&world, "sel").as_array().unwrap().len(), 1, "without --yes, it stays");
    let cleared = world.meshd(&["node", "sel", "gpu001", "--clear", "--yes"]);
    assert!(cleared.status.success(), "{}", stderr(&cleared));
    assert_eq!(report(&world, "sel"), json!([]));
    let audit = world.json(&["audit", "-o", "json"]);
    let has = audit.as_array().unwrap().iter().any(|line| line["verb"] == "sel-clear");
    assert!(has, "{audit}");

    bench.write_password("wrong", 0o600);
    for _ in 0..3 {
        let refused = world.meshd(&["node", "sensors", "gpu001"]);
        let text = stderr(&refused);
        assert!(
            refused.status.code() == Some(1) && text.contains("refused this user")
                || text.contains("refuses the user"),
            "{text}"
        );
    }
    bench.write_password(PASSWORD, 0o600);
    assert_eq!(report(&world, "sensors")[1]["name"], "Fan 1");
}

/// A serial port that answers each piece with the piece in brackets. It writes its device to a file.
const SERIAL_PORT: &str = r#"
import os, pty, sys, tty
master, slave = pty.openpty()
tty.setraw(slave)
open(sys.argv[1], 'w').write(os.ttyname(slave) + '\n')
while True:
    os.write(master, b'[' + os.read(master, 1024).strip() + b']\r\n')
"#;

/// Ended when it is dropped.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn serial_console_carries_bytes_of_one_operator_at_a_time() {
    let (world, bench) = world_with("ipmi", "approve");
    let device = bench.0.join("device");
    let mut port = Command::new("python3");
    port.args(["-c", SERIAL_PORT]).arg(&device).stdin(Stdio::null());
    let _port = Ended(port.spawn().unwrap());
    let device = eventually("the serial port is there", || match bench.read("device") {
        device if device.ends_with('\n') => Ok(device.trim().to_owned()),
        other => Err(other),
    });
    let _sim = IpmiSim::start_with(&world, &bench, &format!("sol \"{device}\" 115200\n"));
    let _machine = seen_machine(&world, 1, "gpu001");
    until_off(&world, "gpu001");

    let shown = bench.0.join("shown");
    let mut console = Command::new(program(env!("CARGO_BIN_EXE_meshd")));
    console.arg("--site").arg(&world.site).args(["node", "console", "gpu001"]);
    console.stdin(Stdio::piped()).stdout(fs::File::create(&shown).unwrap());
    let mut console = Ended(console.spawn().unwrap());
    let mut keys = console.0.stdin.take().unwrap();
    // `ipmitool` shows its first line with the first byte of the machine.
    keys.write_all(b"~.hello\r").unwrap();
    eventually("the machine answers", || {
        let text = bench.read("shown");
        if text.contains("[~.hello]") { Ok(()) } else { Err(text) }
    });
    let second = world.meshd(&["node", "console", "gpu001", "--no-input"]);
    let text = stderr(&second);
    assert!(second.status.code() == Some(1) && text.contains("open already"), "{text}");
    assert_eq!(state(&world, "gpu001")["state"], "off", "other requests go on");
    // Ctrl-] leaves it.
    keys.write_all(b"\x1d").unwrap();
    assert!(console.0.wait().unwrap().success());
    let events = world.events("node_action");
    let is_own = |event: &&Value| event["detail"].to_string().contains("serial console");
    let event = events.iter().find(is_own).unwrap_or_else(|| panic!("{events:?}"));
    assert_eq!(event["by"]["verb"], "node-console");
    eventually("the console is free again", || {
        let mut again = Command::new(program(env!("CARGO_BIN_EXE_meshd")));
        again.arg("--site").arg(&world.site).args(["node", "console", "gpu001"]);
        let mut again = again.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        again.stdin.take().unwrap().write_all(b"\x1d").unwrap();
        let output = again.wait_with_output().unwrap();
        if output.status.success() { Ok(()) } else { Err(stderr(&output)) }
    });
}

#[test]
fn report_of_a_program_is_refused_with_its_driver() {
    let (world, _bench): (_, Bench) = world_with("command", "approve");
    let _machine = seen_machine(&world, 1, "gpu001");
    for verb in ["sensors", "sel", "firmware"] {
        let refused = world.meshd(&["node", verb, "gpu001"]);
        let text = stderr(&refused);
        let is_named = text.contains("driver command has no reports");
        assert!(refused.status.code() == Some(1) && is_named, "{verb}: {text}");
    }
}
