//! A machine that is off, and its BMC: `ipmi_sim`, or `sushy-emulator` behind a proxy. Its chassis
//! is the emulator of the rack.

use crate::{
    kit::redfish,
    racks::{BOOT, OrEnd as _, SOON, TestRack, up},
};
use meshd_lab::{Options, Power, Rack, Wait};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub const NODE: u8 = 1;
pub const PASSWORD: &str = "correct-horse";
/// Pause between two looks at what the BMC wants.
const PAUSE: Duration = Duration::from_millis(100);

/// Writes what the chassis is to do into `wanted`, and reports what is in `power`. It lies: it
/// accepts as many changes of the power as `ignore` says and does nothing, and it refuses each
/// shutdown if `deaf` exists.
const CHASSIS: &str = r#"#!/bin/sh
dir=$(dirname "$0")
shift
echo "$*" >>"$dir/requests"
want() {
    echo "$1" >"$dir/wanted.new" && mv "$dir/wanted.new" "$dir/wanted"
}
case "$1 $2" in
"get power") echo "power:$(cat "$dir/power")" ;;
"set power")
    left=$(cat "$dir/ignore" 2>/dev/null || echo 0)
    if [ "$left" -gt 0 ]; then
        echo $((left - 1)) >"$dir/ignore"
    elif [ "$3" = 1 ]; then
        want On
    else
        want ForceOff
    fi
    ;;
"set shutdown") [ ! -e "$dir/deaf" ] && want GracefulShutdown ;;
"set reset") want ForceRestart ;;
esac
"#;

/// A BMC that speaks IPMI; ended when it is dropped.
pub struct IpmiSim(Child);

impl IpmiSim {
    pub fn start(rack: &Rack, folder: &Path) -> Self {
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

/// A rack with one machine that is off, in the list of machines as `gpu001`; with the folder of its
/// BMC.
pub struct MachineRack {
    pub test: TestRack,
    pub bmc: tempfile::TempDir,
}

impl MachineRack {
    /// `rule` has the further keys of the rule of the BMC, by its folder.
    pub fn up(rule: impl FnOnce(&Path) -> String) -> Self {
        let bmc = tempfile::tempdir().unwrap();
        write_password(bmc.path(), PASSWORD);
        let rule = format!(
            "[{{ address = \"127.0.0.1\", nodes = [\"gpu001\"], user = \"meshd\", password_file = \"{}\", {} }}]",
            bmc.path().join("password").display(),
            rule(bmc.path())
        );
        let test = up(|options, _| {
            let options = Options { nodes: 1, powered: false, ..options };
            options
                .set("enroll.policy", "auto")
                .set("power.bmc", &rule)
                .set("profiles.compute.warm", "allow")
        });
        let mac = test.rack.identity(NODE).mac.to_string();
        test.rack.run_cli(&["node", "add", "--mac", &mac, "--name", "gpu001"]).unwrap();
        assert!(test.rack.nodes().unwrap().is_empty(), "it has not booted");
        MachineRack { test, bmc }
    }

    /// The same with a BMC that speaks Redfish.
    pub fn up_with_redfish() -> (Self, redfish::Emulator) {
        let rule = |folder: &Path| {
            let certificate = redfish::make_certificate(folder);
            format!("driver = \"redfish\", certificates = [\"{certificate}\"]")
        };
        let machine = Self::up(rule);
        let inside = machine.test.rack.namespace();
        let bmc = redfish::Emulator::start(inside, machine.bmc.path(), "127.0.0.1", PASSWORD);
        // Its start is none of its lies.
        let answered = machine.test.rack.wait(SOON, "the BMC to answer", |rack| {
            // The command fails as long as the state is unknown.
            Ok(match rack.query(&["node", "power", "status", "gpu001"]) {
                Ok(state) => Wait::on(state[0]["state"] == "off", state.to_string()),
                Err(error) => Wait::NotYet(error.to_string()),
            })
        });
        answered.or_end();
        (machine, bmc)
    }

    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.bmc.path().join(name)
    }

    /// Runs a command of meshd that succeeds, and switches the machine as its BMC wants meanwhile.
    pub fn switch(&mut self, args: &[&str]) -> String {
        let (is_done, text) = self.try_switch(args);
        assert!(is_done, "{args:?}: {text}\n{}{}", self.read("log"), self.test.rack.central_log());
        text
    }

    /// Runs a command of meshd. Returns whether it succeeded, and what it reported.
    pub fn try_switch(&mut self, args: &[&str]) -> (bool, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_meshd"));
        command.arg("--site").arg(self.test.rack.site_file()).args(args).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let end = Instant::now() + BOOT;
        while child.try_wait().unwrap().is_none() {
            let rack = &self.test.rack;
            assert!(Instant::now() < end, "{args:?} does not end: {}", rack.central_log());
            self.obey();
            thread::park_timeout(PAUSE);
        }
        let output = child.wait_with_output().unwrap();
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Switches the machine as its BMC wants.
    fn obey(&mut self) {
        let Ok(wanted) = fs::read_to_string(self.path("wanted")) else { return };
        fs::remove_file(self.path("wanted")).unwrap();
        let (steps, state): (&[Power], _) = match wanted.trim() {
            "On" | "ForceOn" => (&[Power::On], "1"),
            "ForceOff" | "GracefulShutdown" => (&[Power::Off], "0"),
            _ => (&[Power::Off, Power::On], "1"),
        };
        for step in steps {
            self.test.rack.power(NODE, *step).unwrap();
        }
        self.write("power", state);
    }
}

/// Writes the file with the password of the BMC.
pub fn write_password(folder: &Path, password: &str) {
    let file = folder.join("password");
    let _ = fs::remove_file(&file);
    fs::write(&file, format!("{password}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
}
