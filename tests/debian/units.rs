//! Overlays of the tests' own for nodes with systemd: each has a program and a unit that starts it.

use crate::{
    overlays::{self, LOOK},
    racks::repository,
};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Looks at the VM and kills the agent.
const TRIAL: &str = include_str!("trial.sh");
const TRIAL_UNIT: &str = "[Service]\nExecStart=/opt/trial/run.sh\nRemainAfterExit=yes\n";
/// getty hangs up whoever has the port open.
const PEEK_START: &str = "
read_token
peek 2>&1 | while read -r line; do echo \"$line\" >/dev/ttyS0; done &
";
const PEEK_UNIT: &str = "[Unit]\nBefore=mesh-agent.service\n\
     [Service]\nType=forking\nGuessMainPID=no\nRemainAfterExit=yes\nExecStart=/opt/peek/run.sh\n";

/// The overlays of the site, `trial`, and `peek`, which tells what a user of the node can see.
pub fn with_trial_and_peek(dir: &Path) -> PathBuf {
    let all = dir.join("overlays");
    overlays::copy(&repository().join("overlays"), &all);
    write(&all, "trial", TRIAL, TRIAL_UNIT);
    write(&all, "peek", &format!("#!/bin/sh\n{LOOK}{PEEK_START}"), PEEK_UNIT);
    all
}

fn write(all: &Path, name: &str, program: &str, unit: &str) {
    let manifest = format!(
        "description = \"of a test\"\nsystems = [\"systemd\"]\n\
         [systemd]\nunits = [\"{name}.service\"]\n\
         [files.\"/opt/{name}/run.sh\"]\nmode = \"0755\"\n"
    );
    let files = [
        ("overlay.toml".to_owned(), manifest.as_str()),
        (format!("rootfs/opt/{name}/run.sh"), program),
        (format!("rootfs/etc/systemd/system/{name}.service"), unit),
    ];
    for (path, text) in files {
        let path = all.join(name).join(path);
        fs::create_dir_all(path.parent().expect("below the overlay")).expect("made");
        fs::write(path, text).expect("written");
    }
}
