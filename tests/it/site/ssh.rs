//! Overlay `ssh` (SE-3): OpenSSH's own server, with the files of a rendered overlay, lets in the
//! site's key and refuses the right password.

use crate::world::{
    World,
    node::{Overlay, PxeNode},
    program::Program,
    stderr, write_program,
};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output},
};

const PASSWORD: &str = "correct-horse";

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Makes a key pair; returns the public half.
fn key(path: &Path) -> String {
    let made = run(Command::new("ssh-keygen")
        .args(["-q", "-t", "ed25519", "-N", "", "-C", "operator", "-f"])
        .arg(path));
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::read_to_string(path.with_extension("pub")).unwrap().trim().to_owned()
}

/// A site whose default profile has the overlay `ssh` with one key, and a host key as a secret.
fn world() -> (World, String) {
    let mut world = World::prepared("auto");
    let own = key(&world.path("operator"));
    let host = key(&world.path("host_key"));
    let profile = "image = \"small\"\noverlays = [\"base\", \"agent\"]";
    let with_ssh = format!(
        "image = \"small\"\noverlays = [\"base\", \"agent\", \"ssh\"]\nvars = {{ ssh_keys = [\"{own}\"], ssh_port = 2222 }}"
    );
    world.edit_site(profile, &with_ssh);
    world.edit_site("[defaults]", "[secrets]\nssh_host_key = { file = \"host_key\" }\n[defaults]");
    world.start();
    (world, host)
}

/// Runs OpenSSH's server with these files of the overlay in place of this machine's, where root's
/// password is [`PASSWORD`].
fn sshd(world: &World, options: &[&str]) -> Program {
    let hash = run(Command::new("openssl").args(["passwd", "-6", PASSWORD]));
    let shadow =
        format!("root:{}:19000:0:99999:7:::\n", String::from_utf8_lossy(&hash.stdout).trim());
    fs::write(world.path("shadow"), shadow).unwrap();
    fs::write(world.path("tree/etc/ssh/sshd_config"), "Include /etc/ssh/sshd_config.d/*.conf\n")
        .unwrap();
    let dir = world.path("");
    let script = format!(
        "cd {} && mount --bind tree/root /root && mount --bind tree/etc/ssh /etc/ssh && mount --bind shadow /etc/shadow \
         && mkdir -p /run/sshd && exec /usr/sbin/sshd -D -e {}",
        dir.display(),
        options.join(" ")
    );
    let server = Program::start(world, &world.nodes, "unshare", &["--mount", "sh", "-c", &script]);
    server.says("Server listening on", 1);
    server
}

/// Logs in as root by one method.
fn log_in(world: &World, method: &str) -> Output {
    log_in_as(world, method, &[])
}

/// The same, with more options of ssh.
fn log_in_as(world: &World, method: &str, options: &[&str]) -> Output {
    let askpass = world.path("askpass");
    write_program(&askpass, &format!("#!/bin/sh\necho {PASSWORD}\n"));
    let mut command = Command::new("ssh");
    command.args([
        "-F",
        "none",
        "-p",
        "2222",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "IdentitiesOnly=yes",
    ]);
    command.arg("-o").arg(format!("UserKnownHostsFile={}", world.path("known_hosts").display()));
    command
        .arg("-o")
        .arg(format!("PreferredAuthentications={method}"))
        .arg("-i")
        .arg(world.path("operator"));
    command.args(options).args(["root@127.0.0.1", "echo logged in"]);
    command.env("SSH_ASKPASS", &askpass).env("SSH_ASKPASS_REQUIRE", "force").env("DISPLAY", "none");
    let child = world
        .nodes
        .spawn(command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()));
    child.unwrap().wait_with_output().unwrap()
}

/// Writes the files of the overlay for [`sshd`].
fn install(world: &World, overlay: &Overlay) {
    let is_folder = |name: &str| overlay.keys().any(|other| other.starts_with(&format!("{name}/")));
    for (name, (mode, content)) in overlay {
        if (name.starts_with("root/") || name.starts_with("etc/ssh/")) && !is_folder(name) {
            let path = world.path("tree").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(*mode)).unwrap();
        }
    }
    fs::set_permissions(world.path("tree/root"), fs::Permissions::from_mode(0o700)).unwrap();
    world.nodes.ip(&["link", "set", "lo", "up"]).unwrap();
}

#[test]
fn se3_ssh_overlay_lets_in_its_key_and_refuses_the_right_password() {
    let (world, host_key) = world();
    install(&world, &PxeNode::new(&world, 1).boot());
    fs::write(world.path("known_hosts"), format!("[127.0.0.1]:2222 {host_key}\n")).unwrap();

    let server = sshd(&world, &[]);
    let by_key = log_in(&world, "publickey");
    assert_eq!(
        String::from_utf8_lossy(&by_key.stdout),
        "logged in\n",
        "{}\n{}",
        stderr(&by_key),
        server.log_text()
    );
    for method in ["password", "keyboard-interactive"] {
        let refused = log_in(&world, method);
        assert!(
            stderr(&refused).contains("Permission denied (publickey)"),
            "{method}: {}",
            stderr(&refused)
        );
    }
    drop(server);

    // The password is right, and nothing but the overlay's setting refuses it.
    let _server = sshd(&world, &["-o PasswordAuthentication=yes", "-o PermitRootLogin=yes"]);
    let by_password = log_in(&world, "password");
    assert_eq!(
        String::from_utf8_lossy(&by_password.stdout),
        "logged in\n",
        "{}",
        stderr(&by_password)
    );
}

#[test]
fn exported_known_hosts_are_those_of_the_ssh_server() {
    let (world, host_key) = world();
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    install(&world, &overlay);
    let _server = sshd(&world, &[]);
    // As `sshd-key` does on a node.
    let private = world.path("tree/etc/ssh/ssh_host_ed25519_key");
    let public = run(Command::new("ssh-keygen").arg("-y").arg("-f").arg(&private));
    let _agent = machine.start_agent_with(&overlay, |root| {
        fs::create_dir_all(root.join("etc/ssh")).unwrap();
        let file = root.join("etc/ssh/ssh_host_ed25519_key.pub");
        fs::write(file, &public.stdout).unwrap();
        fs::write(root.join("etc/ssh/ssh_host_rsa_key.pub"), "a,b c;d").unwrap();
    });
    world.wait_for_phase("online");
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let renamed = world.meshd(&["node", "rename", &id, "gpu001"]);
    assert!(renamed.status.success(), "{}", stderr(&renamed));

    let export = world.meshd(&["node", "export", "--format", "known-hosts", "--port", "2222"]);
    let text = String::from_utf8(export.stdout).unwrap();
    let file = world.path("known_hosts");
    fs::write(&file, &text).unwrap();
    let key = host_key.split(' ').nth(1).unwrap();
    let address = machine.address.get().unwrap();
    for host in ["gpu001".to_owned(), format!("node-{id}"), address.to_string()] {
        let mut find = Command::new("ssh-keygen");
        let found = run(find.args(["-F", &format!("[{host}]:2222"), "-f"]).arg(&file));
        let found = String::from_utf8_lossy(&found.stdout).into_owned();
        assert!(found.contains(key), "{host} in {text}: {found}");
    }
    assert_eq!(text.lines().count(), 1, "{text}");
    let mut scan = Command::new("ssh-keyscan");
    scan.args(["-p", "2222", "-t", "ed25519", "127.0.0.1"]).stdout(std::process::Stdio::piped());
    let scanned = world.nodes.spawn(&mut scan).unwrap().wait_with_output().unwrap();
    assert!(String::from_utf8_lossy(&scanned.stdout).contains(key), "the server shows it");

    let alias = ["-o", "HostKeyAlias=[gpu001]:2222"];
    let logged_in = log_in_as(&world, "publickey", &alias);
    assert_eq!(String::from_utf8_lossy(&logged_in.stdout), "logged in\n", "{}", stderr(&logged_in));
    fs::write(
        &file,
        text.replace(key, "AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    )
    .unwrap();
    let refused = log_in_as(&world, "publickey", &alias);
    assert!(stderr(&refused).contains("verification failed"), "{}", stderr(&refused));
}
