//! Parts of mesh-init in busybox's shell, as Alpine has it.

use std::{path::Path, process::Command};

fn mesh_init() -> String {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("overlays/agent/rootfs.alpine/sbin/mesh-init");
    std::fs::read_to_string(path).unwrap()
}

/// The text of one function.
pub fn function(name: &str) -> String {
    let text = mesh_init();
    let from = &text[text.find(&format!("{name}() {{")).unwrap()..];
    from[..from.find("\n}\n").unwrap() + 3].to_owned()
}

/// Returns what `step_clock` sets a clock to.
fn stepped(clock: i64, issued: i64) -> String {
    let text = mesh_init();
    let function = function("step_clock");
    let limit = text.lines().find(|line| line.starts_with("longest_boot=")).unwrap();
    let script = format!(
        "set -fu\n{limit}\nMESH_ISSUED_AT_EPOCH={issued}\nfail() {{ echo \"$*\"; exit 1; }}\nrm() {{ :; }}\n\
         date() {{ if [ \"$1\" = +%s ]; then echo {clock}; else echo \"$2\" >&2; fi; }}\n{function}\nstep_clock\n"
    );
    let output = Command::new("busybox").args(["sh", "-c", &script]).output().unwrap();
    assert!(output.status.success() && output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn mesh_init_steps_a_wrong_clock_in_both_directions() {
    let issued = 1_795_600_000;
    let day = 86_400;
    for wrong in
        [0, day, issued - 1, issued + 3600, issued + 400 * day, 4_084_000_000, 4_300_000_000]
    {
        assert_eq!(stepped(wrong, issued), format!("@{issued}\n"), "a clock at {wrong}");
    }
    for right in [issued, issued + 90, issued + 1200] {
        assert_eq!(stepped(right, issued), "", "the boot took {} s", right - issued);
    }
}

/// Returns `/etc/passwd` and `/etc/shadow` after `lock_root`; `None` if the boot fails.
fn locked(passwd: &str, shadow: &str) -> Option<[String; 2]> {
    let dir = tempfile::tempdir().unwrap();
    let files = ["passwd", "shadow"].map(|name| dir.path().join(name));
    std::fs::write(&files[0], passwd).unwrap();
    std::fs::write(&files[1], shadow).unwrap();
    let function = function("lock_root")
        .replace("/etc/passwd", files[0].to_str().unwrap())
        .replace("/etc/shadow", files[1].to_str().unwrap());
    let script = format!("set -fu\nfail() {{ exit 1; }}\n{function}\nlock_root\n");
    let status = Command::new("busybox").args(["sh", "-c", &script]).status().unwrap();
    status.success().then(|| files.map(|file| std::fs::read_to_string(file).unwrap()))
}

#[test]
fn mesh_init_locks_root_whatever_password_a_package_brought() {
    for password in ["", "!", "x", "$6$salt$hash/with.characters"] {
        let shadow = format!("bin:!::0:::::\nroot:{password}:19000:0:::::\nnotroot::0:::::\n");
        let passwd = format!("root:{password}:0:0::/root:/bin/sh\nbin:x:1:1::/:/bin/sh\n");
        let expected = [
            "root:x:0:0::/root:/bin/sh\nbin:x:1:1::/:/bin/sh\n".to_owned(),
            "bin:!::0:::::\nroot:*:19000:0:::::\nnotroot::0:::::\n".to_owned(),
        ];
        assert_eq!(locked(&passwd, &shadow), Some(expected), "{password:?}");
    }
    let passwd = "root:x:0:0::/:/bin/sh\n";
    assert_eq!(locked(passwd, "bin:!::0:::::\n"), None, "without the account the boot fails");
}

#[test]
fn mesh_init_locks_every_account_with_the_user_id_of_root() {
    let passwd = "root:x:0:0::/:/bin/sh\ntoor:: +00:0::/:/bin/sh\nuser:$6$a:10:0::/:/bin/sh\n";
    let shadow = "root:!:1::::::\ntoor:$6$a:1::::::\nuser:$6$a:1::::::\n";
    let expected = [
        "root:x:0:0::/:/bin/sh\ntoor:x: +00:0::/:/bin/sh\nuser:$6$a:10:0::/:/bin/sh\n".to_owned(),
        "root:*:1::::::\ntoor:*:1::::::\nuser:$6$a:1::::::\n".to_owned(),
    ];
    assert_eq!(locked(passwd, shadow), Some(expected));
}

/// Returns what `start_netconsole` loads or says, with this route to the central node and these
/// neighbours.
fn netconsole(port: &str, route: &str, neighbours: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let arp = dir.path().join("arp");
    let head = "IP address       HW type     Flags       HW address            Mask     Device\n";
    std::fs::write(&arp, format!("{head}{neighbours}")).unwrap();
    let function = function("start_netconsole").replace("/proc/net/arp", arp.to_str().unwrap());
    let script = format!(
        "set -fu\nargument() {{ [ \"$1\" = meshd.netconsole ] && echo '{port}'; }}\n\
         url=http://10.77.0.1:8080/blob/x\ninterface=eth3\nip() {{ echo '{route}'; }}\n\
         modprobe() {{ echo \"$*\"; }}\nsay() {{ echo \"say: $*\"; }}\n{function}\nstart_netconsole\n"
    );
    let output = Command::new("busybox").args(["sh", "-c", &script]).output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn mesh_init_sends_kernel_messages_to_the_next_hop() {
    let row = |address: &str, mac: &str| {
        format!("{address}        0x1         0x2         {mac}     *        eth3\n")
    };
    let neighbours =
        [row("10.77.0.1", "52:54:00:00:00:aa"), row("10.88.0.1", "52:54:00:00:00:bb")].concat();
    let direct = "10.77.0.1 dev eth3  src 10.77.0.100 ";
    let routed = "10.77.0.1 via 10.88.0.1 dev eth3  src 10.88.0.100 ";
    let arguments = "netconsole netconsole=+@/eth3,6666@10.77.0.1/";
    assert_eq!(netconsole("6666", direct, &neighbours), format!("{arguments}52:54:00:00:00:aa\n"));
    assert_eq!(netconsole("6666", routed, &neighbours), format!("{arguments}52:54:00:00:00:bb\n"));
    let incomplete = row("10.77.0.1", "00:00:00:00:00:00").replace("0x2", "0x0");
    let unknown = "say: netconsole is not started: the Ethernet address of 10.77.0.1 is unknown\n";
    assert_eq!(netconsole("6666", direct, ""), unknown, "it would broadcast");
    assert_eq!(netconsole("6666", direct, &incomplete), unknown, "nobody has answered");
    assert_eq!(netconsole("", direct, &neighbours), "");
}
