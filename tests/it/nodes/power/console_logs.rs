//! The serial consoles of booting machines in the logs of their boots: `ipmi_sim` with the real
//! `ipmitool`, and an `ipmitool` of the test that floods.

use super::{Bench, IpmiSim, order, reports::Ended, seen_machine};
use crate::world::{World, dhcp::As, eventually, node::PxeNode, program, stderr, write_program};
use std::{
    fs,
    io::Write as _,
    process::{Command, Stdio},
};

/// A serial port that shows what is written into a pipe, and drops what nobody reads.
const SHOWING_PORT: &str = r#"
import os, pty, sys, tty
master, slave = pty.openpty()
tty.setraw(slave)
os.set_blocking(master, False)
os.mkfifo(sys.argv[2])
pipe = os.open(sys.argv[2], os.O_RDWR)
open(sys.argv[1], 'w').write(os.ttyname(slave) + '\n')
while True:
    text = os.read(pipe, 1024)
    try:
        os.write(master, text)
    except BlockingIOError:
        pass
"#;

/// An `ipmitool` of the test: its console is the script `console`.
const IPMITOOL: &str = r#"#!/bin/sh
dir=$(dirname "$0")
case "$*" in
*"power status") echo "Chassis Power is $(cat "$dir/power" 2>/dev/null || echo off)" ;;
*"power on") echo on >"$dir/power" ;;
*"sol activate") . "$dir/console" ;;
esac
"#;

/// Text that is shown at the serial port of a machine, until it has an effect.
fn show_until(bench: &Bench, what: &str, text: &str, effect: impl Fn() -> Result<(), String>) {
    eventually(what, || {
        fs::write(bench.0.join("pipe"), text).unwrap();
        effect()
    });
}

fn console_log(world: &World, more: &[&str]) -> String {
    let args = ["node", "logs", "gpu001", "--source", "console"];
    let output = world.meshd(&[&args, more].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn logged(world: &World, text: &str) -> Result<(), String> {
    let log = console_log(world, &[]);
    if log.contains(text) { Ok(()) } else { Err(log) }
}

/// A site whose BMC is the `ipmitool` of the test. One machine is expected.
fn world_with_console(console: &str) -> (World, Bench) {
    let mut world = World::prepared("auto");
    let bench = Bench::new(&world);
    write_program(&bench.0.join("ipmitool"), IPMITOOL);
    bench.write("console", console);
    world.edit_site("[defaults]", &bench.sections("ipmi", ""));
    let path = format!("{}:{}", bench.0.display(), std::env::var("PATH").unwrap());
    world.start_with(&[("PATH", path)]);
    let mac = "52:54:00:00:00:01";
    let added = world.meshd(&["node", "add", "--mac", mac, "--name", "gpu001"]);
    assert!(added.status.success(), "{}", stderr(&added));
    (world, bench)
}

#[test]
fn console_of_a_booting_machine_is_logged_and_an_operator_takes_it_over() {
    let mut world = World::prepared("auto");
    let bench = Bench::new(&world);
    world.edit_site("[defaults]", &bench.sections("ipmi", ""));
    world.start();
    let device = bench.0.join("device");
    let pipe = bench.0.join("pipe");
    let mut port = Command::new("python3");
    port.args(["-c", SHOWING_PORT]).arg(&device).arg(&pipe).stdin(Stdio::null());
    let _port = Ended(port.spawn().unwrap());
    let device = eventually("the serial port is there", || match bench.read("device") {
        device if device.ends_with('\n') => Ok(device.trim().to_owned()),
        other => Err(other),
    });
    let _sim = IpmiSim::start_with(&world, &bench, &format!("sol \"{device}\" 115200\n"));
    let _machine = seen_machine(&world, 1, "gpu001");

    let line = "\u{1b}[1mKernel\u{1b}[0m panic <b>\r\n";
    show_until(&bench, "the console is logged", line, || logged(&world, "Kernel panic <b>\n"));
    assert!(!console_log(&world, &[]).contains('\u{1b}'), "a terminal shows no sequence of it");
    assert!(console_log(&world, &["--raw"]).contains("\u{1b}[1mKernel"), "it is stored as it is");

    let shown = bench.0.join("shown");
    let mut console = Command::new(program(env!("CARGO_BIN_EXE_meshd")));
    console.arg("--site").arg(&world.site).args(["node", "console", "gpu001"]);
    console.stdin(Stdio::piped()).stdout(fs::File::create(&shown).unwrap());
    let mut console = Ended(console.spawn().unwrap());
    show_until(&bench, "the operator has the console", "for the operator\r\n", || {
        let text = bench.read("shown");
        if text.contains("for the operator") { Ok(()) } else { Err(text) }
    });
    console.0.stdin.take().unwrap().write_all(b"\x1d").unwrap();
    assert!(console.0.wait().unwrap().success());
    show_until(&bench, "it is recorded again", "after the operator\r\n", || {
        logged(&world, "after the operator")
    });
    assert!(world.stop().success(), "a recorder ends with meshd");
}

#[test]
fn text_before_the_first_packet_is_in_the_log_of_the_boot_that_follows() {
    let (world, bench) =
        world_with_console("echo POST of the firmware\n: >\"$dir/opened\"\ncat >/dev/null\n");
    let machine = PxeNode::new(&world, 1);
    let mut booted = false;
    let (code, text) = order(&world, &["node", "power", "on", "gpu001"], || {
        if !booted && bench.0.join("opened").exists() {
            machine.ipxe().unwrap();
            booted = true;
        } else if booted {
            machine.dhcp(As::Ipxe);
        }
    });
    assert!(code == Some(0) && text.contains("1 done"), "{text}");
    eventually("the text is logged", || logged(&world, "POST of the firmware\n"));
}

#[test]
fn flood_of_a_console_is_bounded_and_ends_with_meshd() {
    let (mut world, bench) =
        world_with_console("yes \"$(head -c 100 /dev/zero | tr '\\0' x)\"\ncat >/dev/null\n");
    let machine = PxeNode::new(&world, 1);
    machine.ipxe().unwrap();
    eventually("what is lost is noted", || logged(&world, "bytes of the console are missing\n"));
    let session = world.events("boot_started")[0]["session"].as_str().unwrap().to_owned();
    let folder = world.path("state/boot-logs").join(session);
    let files = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let size: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(size <= 640 << 10, "{size} bytes");
    bench.write("power", "on\n");
    let on = world.meshd(&["node", "boot-device", "pxe", "gpu001"]);
    assert!(on.status.success(), "orders to the BMC go on: {}", stderr(&on));
    assert!(world.stop().success());
}
