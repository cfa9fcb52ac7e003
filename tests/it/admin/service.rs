//! The service files in the tree, as those programs read them that start services.

use std::{fs, path::Path, process::Command};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/service");
/// What `systemd-analyze security` may say at most: 10 is a service without any bounds.
const MOST_EXPOSED: f64 = 2.5;

fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn systemd_unit_is_valid_and_hardened() {
    // Where the program is and whom it runs as, differ on this machine.
    let unit = fs::read_to_string(Path::new(FOLDER).join("meshd.service")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let copy = dir.path().join("meshd.service");
    let here = unit.replace("/usr/bin/meshd", "/bin/true").replace("User=meshd", "User=daemon");
    fs::write(
        &copy,
        here.replace("Group=meshd", "Group=daemon").replace("Documentation=file:", "#"),
    )
    .unwrap();
    let (sound, report) =
        run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy));
    assert!(sound, "{report}");
    for word in ["Unknown", "ignoring", "Failed to parse"] {
        assert!(!report.contains(word), "{report}");
    }
    let (_, report) = run(Command::new("systemd-analyze")
        .args(["security", "--offline=yes", "--no-pager"])
        .arg(&copy));
    let exposed =
        report.lines().find_map(|line| line.split("exposure level for meshd.service: ").nth(1));
    let level: f64 = exposed
        .and_then(|rest| rest.split(' ').next())
        .and_then(|text| text.parse().ok())
        .expect(&report);
    assert!(level <= MOST_EXPOSED, "{report}");
}

#[test]
fn openrc_script_is_valid_shell() {
    let script = Path::new(FOLDER).join("meshd.initd");
    let (sound, report) = run(Command::new("sh").arg("-n").arg(&script));
    assert!(sound && report.is_empty(), "{report}");
    let text = fs::read_to_string(&script).unwrap();
    assert!(text.starts_with("#!/sbin/openrc-run\n"));
    for needed in ["depend()", "start_pre()", "checkpath", "pidfile="] {
        assert!(text.contains(needed), "{needed}");
    }
}
