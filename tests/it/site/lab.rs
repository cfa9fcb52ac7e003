//! `meshd lab` with a site file of the user: changes are applied by `reload` and `restart`; a file
//! with errors changes nothing.

use crate::world::{eventually, stderr};
use serde_json::Value;
use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tempfile::TempDir;

/// A rack of one node that stays powered off; it ends with the test.
struct Lab {
    folder: TempDir,
}

impl Lab {
    fn up() -> Self {
        let folder = tempfile::Builder::new().prefix("meshd-lab").tempdir().unwrap();
        let lab = Lab { folder };
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = fs::read_to_string(repository.join("site.toml")).unwrap();
        lab.write(&text);
        for name in ["overlays", "images"] {
            std::os::unix::fs::symlink(repository.join(name), lab.path(name)).unwrap();
        }
        let blobs = blobs().display().to_string();
        let agent =
            format!("agent.binary={}", repository.join("target/agent/x86_64/mesh-agent").display());
        let site = lab.path("site.toml").display().to_string();
        let up = [
            "--site",
            &site,
            "lab",
            "up",
            "--nodes",
            "1",
            "--powered-off",
            "--blobs",
            &blobs,
            "--set",
            &agent,
        ];
        // The caller holds a lock, as a script does that starts a rack.
        let lock = lab.path("lock").display().to_string();
        let locked =
            ["-c", "exec 7>\"$0\"; flock 7; exec \"$@\"", &lock, env!("CARGO_BIN_EXE_meshd")];
        let mut command = Command::new("bash");
        command.args([&locked[..], &up, &["--dir", &lab.dir()]].concat());
        succeeded(&command.output().unwrap());
        let free = Command::new("flock").args(["-n", &lock, "true"]).status().unwrap();
        assert!(free.success(), "programs of the rack hold the lock of the caller");
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn dir(&self) -> String {
        self.path("lab").display().to_string()
    }

    fn write(&self, text: &str) {
        fs::write(self.path("site.toml"), text).unwrap();
    }

    fn text(&self) -> String {
        fs::read_to_string(self.path("site.toml")).unwrap()
    }

    fn meshd(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_meshd")).args(args).output().unwrap()
    }

    fn lab(&self, verb: &str) -> Output {
        self.meshd(&["lab", verb, "--dir", &self.dir()])
    }

    /// An answer of the rack's meshd: `profile list` of the command line would read the file.
    fn api(&self, path: &str) -> Value {
        let socket = self.path("lab/admin.sock");
        let mut curl = Command::new("curl");
        curl.arg("--silent").arg("--unix-socket").arg(socket);
        let text = succeeded(&curl.arg(format!("http://meshd/v1/{path}")).output().unwrap());
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    }

    fn has_profile(&self, name: &str) -> bool {
        self.api("profiles").as_array().unwrap().iter().any(|profile| profile["name"] == name)
    }
}

fn blobs() -> PathBuf {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    env::var_os("MESHD_E2E_BLOBS").map_or_else(|| repository.join(".lab/blobs"), PathBuf::from)
}

impl Drop for Lab {
    fn drop(&mut self) {
        let down = self.lab("down");
        if !std::thread::panicking() {
            succeeded(&down);
        }
    }
}

fn succeeded(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn lab_rack_applies_changes_of_the_users_site_file() {
    let lab = Lab::up();
    let first = lab.api("status");
    assert!(!lab.has_profile("spare"));

    let text = lab.text();
    lab.write(
        &format!("{text}\n[profiles.spare]\nextends = \"base\"\n")
            .replace("extends = \"base\"", &extends(&text)),
    );
    succeeded(&lab.lab("reload"));
    assert!(lab.has_profile("spare"));
    assert_eq!(lab.api("status")["pid"], first["pid"], "the same process");

    // A file with errors is refused, and the rack keeps what it has.
    let good = lab.text();
    lab.write(&good.replace("[profiles.spare]", "[profiles.spare]\nimgae = 1"));
    for verb in ["reload", "restart"] {
        let refused = lab.lab(verb);
        let message = stderr(&refused);
        assert!(!refused.status.success() && message.contains("imgae"), "{verb}: {message}");
    }
    assert!(lab.has_profile("spare"));
    assert_eq!(lab.api("status")["pid"], first["pid"]);

    // The name of the site is read at the start only.
    lab.write(&good.replacen("name = \"rack-a\"", "name = \"rack-b\"", 1));
    succeeded(&lab.lab("restart"));
    let last = lab.api("status");
    assert_eq!(last["site"], "rack-b");
    assert_ne!(last["pid"], first["pid"]);
    assert!(lab.has_profile("spare"));
}

#[test]
fn lab_restart_moves_the_rack_to_the_address_of_the_users_site_file() {
    let lab = Lab::up();
    let changed = lab.text().replacen("address = \"10.77.0.1\"", "address = \"10.77.0.2\"", 1);
    assert_ne!(changed, lab.text());
    lab.write(&changed);
    succeeded(&lab.lab("restart"));
    let segment = lab.api("segments")[0].clone();
    assert_eq!(segment["address"], "10.77.0.2", "{segment}");
}

/// The list of the versions that a rack uses.
fn list(lab: &Lab) -> PathBuf {
    let id = fs::read_to_string(lab.path("lab/state/site-id")).unwrap();
    blobs().join("in-use").join(format!("rack-a.{}", id.trim()))
}

#[test]
fn lists_of_a_killed_rack_are_removed_by_the_next_rack_and_others_stay() {
    let killed = Lab::up();
    let living = Lab::up();
    for lab in [&killed, &living] {
        eventually("the list", || list(lab).is_file().then_some(()).ok_or("none".to_owned()));
    }
    let record = fs::read_to_string(killed.path("lab/rack.json")).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    let pid = record["central"]["pid"].to_string();
    let kill = Command::new("kill").args(["-KILL", &pid]).status().unwrap();
    assert!(kill.success());
    let of_killed = list(&killed);
    eventually("the end of meshd", || {
        let state = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        if state.is_empty() || state.contains(") Z ") { Ok(()) } else { Err(state) }
    });
    assert!(of_killed.is_file());
    let _next = Lab::up();
    assert!(!of_killed.exists() && list(&living).is_file());
}

/// Extends the first profile of a site file.
fn extends(text: &str) -> String {
    let name =
        text.lines().find_map(|line| line.strip_prefix("[profiles.")?.strip_suffix(']')).unwrap();
    format!("extends = \"{name}\"")
}
