//! A machine that is off: an operator imports it and powers it on by IPMI. `ipmi_sim` is its BMC,
//! whose chassis is the emulator.

use crate::racks::{BOOT, SOON, until_phase, up};
use meshd_lab::{Power, Rack};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const NODE: u8 = 1;
const PASSWORD: &str = "correct-horse";
/// Pause between two looks at what the BMC wants.
const PAUSE: Duration = Duration::from_millis(100);

/// Writes what the chassis is to do into `wanted`, and reports what is in `power`.
const CHASSIS: &str = r#"#!/bin/sh
dir=$(dirname "$0")
shift
case "$1 $2" in
"get power") echo "power:$(cat "$dir/power")" ;;
"set power") echo "$3" >"$dir/wanted" ;;
esac
exit 0
"#;

/// A BMC that speaks IPMI; ended when it is dropped.
struct IpmiSim(Child);

impl IpmiSim {
    fn start(rack: &Rack, folder: &Path) -> Self {
        let write = |name: &str, text: &str, mode: u32| {
            fs::write(folder.join(name), text).unwrap();
            fs::set_permissions(folder.join(name), fs::Permissions::from_mode(mode)).unwrap();
        };
        write("chassis", CHASSIS, 0o755);
        write("power", "0", 0o644);
        let lan = format!(
            "name \"lab\"\nset_working_mc 0x20\nstartlan 1\naddr 127.0.0.1 623\npriv_limit admin\n\
             allowed_auths_admin none md2 md5 straight\nguid a123456789abcdefa123456789abcdef\nendlan\n\
             chassis_control \"{}/chassis 0x20\"\nuser 2 true \"meshd\" \"{PASSWORD}\" admin 10 none md2 md5 straight\n",
            folder.display()
        );
        write("lan.conf", &lan, 0o644);
        let emulation = "mc_setbmc 0x20\nmc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr\nmc_enable 0x20\n";
        write("sim.emu", emulation, 0o644);
        let mut command = Command::new("ipmi_sim");
        command.args(["-n", "-c"]).arg(folder.join("lan.conf"));
        command.arg("-f").arg(folder.join("sim.emu")).arg("-s").arg(folder);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        IpmiSim(rack.namespace().spawn(&mut command).unwrap())
    }
}

impl Drop for IpmiSim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a command of meshd, and switches the machine as its BMC wants meanwhile.
fn switch(rack: &mut Rack, folder: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
    command.arg("--site").arg(rack.site_file()).args(args).stdin(Stdio::null());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let end = Instant::now() + BOOT;
    while child.try_wait().unwrap().is_none() {
        assert!(Instant::now() < end, "{args:?} does not end: {}", rack.central_log());
        if let Ok(wanted) = fs::read_to_string(folder.join("wanted")) {
            let (power, state) =
                if wanted.trim() == "1" { (Power::On, "1") } else { (Power::Off, "0") };
            fs::remove_file(folder.join("wanted")).unwrap();
            rack.power(NODE, power).unwrap();
            fs::write(folder.join("power"), state).unwrap();
        }
        thread::park_timeout(PAUSE);
    }
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{args:?}: {text}\n{}", rack.central_log());
    text
}

#[test]
fn machine_that_is_off_comes_online_by_ipmi_and_goes_off_again() {
    let bmc = tempfile::tempdir().unwrap();
    let password = bmc.path().join("password");
    fs::write(&password, format!("{PASSWORD}\n")).unwrap();
    fs::set_permissions(&password, fs::Permissions::from_mode(0o600)).unwrap();
    let rule = format!(
        "[{{ driver = \"ipmi\", address = \"127.0.0.1\", nodes = [\"gpu001\"], user = \"meshd\", password_file = \"{}\", cipher_suite = 3 }}]",
        password.display()
    );
    let mut test = up(|mut options, _| {
        options.nodes = 1;
        options.powered = false;
        options.set("enroll.policy", "auto").set("power.bmc", &rule)
    });
    let rack = &mut test.rack;
    let _sim = IpmiSim::start(rack, bmc.path());
    let mac = rack.identity(NODE).mac.to_string();
    rack.run_cli(&["node", "add", "--mac", &mac, "--name", "gpu001"]).unwrap();
    assert!(rack.nodes().unwrap().is_empty(), "it has not booted");
    let text = switch(rack, bmc.path(), &["node", "power", "on", "gpu001"]);
    assert!(text.contains("1 done"), "{text}");
    until_phase(rack, NODE, "online", BOOT);
    let text = switch(rack, bmc.path(), &["node", "power", "off", "--now", "--yes", "gpu001"]);
    assert!(text.contains("1 done"), "{text}");
    until_phase(rack, NODE, "offline", SOON * 3);
}
