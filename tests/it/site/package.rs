//! Scripts of the Debian package, with the folders of a host of their own.

use std::{path::Path, process::Command};

/// Runs shell commands in a mount namespace whose /etc, /run and /var/lib are empty. `$scripts` has
/// the package's scripts.
fn run(commands: &str) -> String {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join(".ci/package");
    let stubs = tempfile::tempdir().unwrap();
    for stub in
        ["getent", "deb-systemd-helper", "deb-systemd-invoke", "deluser", "delgroup", "systemctl"]
    {
        crate::world::write_program(&stubs.path().join(stub), "#!/bin/sh\n");
    }
    let users = "root:x:0:0::/:/bin/sh\nmeshd:x:901:901::/:/bin/sh\n";
    let groups = "root:x:0:\nmeshd:x:901:\n";
    let script = format!(
        "set -e\nfor folder in /etc /run /var/lib; do mount -t tmpfs tmpfs $folder; done\n\
         printf '{users}' >/etc/passwd; printf '{groups}' >/etc/group\n{commands}"
    );
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", stubs.path().display());
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", &script]).env("PATH", path).env("scripts", scripts);
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{text}");
    text
}

#[test]
fn purge_succeeds_when_the_state_folder_is_or_holds_a_mount() {
    let text = run(
        "mkdir -p /var/lib/meshd /etc/meshd /run/meshd; mount -t tmpfs tmpfs /var/lib/meshd\n\
                    mkdir -p /var/lib/meshd/store /var/lib/meshd/blobs; touch /var/lib/meshd/store/journal /etc/meshd/site.toml\n\
                    mount -t tmpfs tmpfs /var/lib/meshd/blobs; touch /var/lib/meshd/blobs/shared\n\
                    sh $scripts/postrm purge; find /var/lib/meshd /etc/meshd /run/meshd -type f 2>/dev/null || true",
    );
    let files: Vec<&str> = text.lines().filter(|line| line.starts_with('/')).collect();
    assert!(text.contains("unmount it") && files == ["/var/lib/meshd/blobs/shared"], "{text}");
    let text = run(
        "mkdir -p /var/lib/meshd/store; sh $scripts/postrm purge; ls -d /var/lib/meshd 2>/dev/null || echo gone",
    );
    assert_eq!(text, "gone\n", "a plain folder is removed");
}

#[test]
fn upgrade_keeps_the_owner_that_the_operator_gave_the_state_folder() {
    let show = "stat -c %U:%a /var/lib/meshd";
    let text = run(&format!("sh $scripts/postinst configure; {show}"));
    assert_eq!(text, "meshd:700\n", "the first installation makes it");
    let change = "mkdir -m 750 /var/lib/meshd; chown root:meshd /var/lib/meshd";
    let text = run(&format!("{change}; sh $scripts/postinst configure 1.0; {show}"));
    assert_eq!(text, "root:750\n");
}
