//! A real guest with a card on the private network of its node: its port, and what programs of
//! machines reach.

use super::guest::{Guest, HELLO, Node, reaches, says};
use meshd_proto::vm::ReportedVmState;
use serde_json::json;
use std::{
    fs,
    net::TcpListener,
    os::unix::fs::{MetadataExt as _, symlink},
    path::Path,
    process::Command,
};

/// Set for the copy of this program that runs inside of a network namespace of its own.
const INSIDE: &str = "MESHD_GUEST_INSIDE";
const NAME: &str = "work::vms::isolated::vm_port_is_owned_filtered_and_removed_with_its_vm";

fn run(program: &str, args: &[&str]) {
    let ran = Command::new(program).args(args).output().unwrap();
    assert!(ran.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// Seconds in which a busy machine connects, and in which a connection that is dropped would be
/// there.
const PATIENCE: [&str; 2] = ["60", "2"];

/// True if a user of this node reaches what listens there.
fn connects(user: u32, to: &TcpListener) -> bool {
    connects_within(PATIENCE[0], user, to)
}

/// True if a user of this node does not reach what listens there.
fn is_dropped(user: u32, to: &TcpListener) -> bool {
    !connects_within(PATIENCE[1], user, to)
}

fn connects_within(seconds: &str, user: u32, to: &TcpListener) -> bool {
    let address = to.local_addr().unwrap();
    let call = format!("exec 3<>/dev/tcp/{}/{}", address.ip(), address.port());
    let mut command = Command::new("setpriv");
    command.args([
        "--reuid",
        &user.to_string(),
        "--clear-groups",
        "timeout",
        seconds,
        "bash",
        "-c",
        &call,
    ]);
    command.output().unwrap().status.success()
}

#[test]
fn vm_port_is_owned_filtered_and_removed_with_its_vm() {
    in_namespace(NAME, &[], inside);
}

/// Runs a test again in network and mount namespaces of its own, by a program that sets something.
fn in_namespace<F: Future<Output = ()>>(test: &str, by: &[&str], inside: impl FnOnce() -> F) {
    if std::env::var_os(INSIDE).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        return runtime.block_on(inside());
    }
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--"]).args(by).arg(own).args([
        test,
        "--exact",
        "--nocapture",
        "--test-threads=1",
    ]);
    let ran = command.env(INSIDE, "1").output().unwrap();
    let output_text =
        format!("{}{}", String::from_utf8_lossy(&ran.stdout), String::from_utf8_lossy(&ran.stderr));
    assert!(ran.status.success() && output_text.contains("1 passed"), "{output_text}");
}

/// A breakout of QEMU is a program of its user.
#[test]
fn vm_user_has_no_network_with_or_without_nics() {
    in_namespace(
        "work::vms::isolated::vm_user_has_no_network_with_or_without_nics",
        &[],
        || async {
            let node = node_with_bridge();
            run("ip", &["link", "add", "br0", "type", "bridge"]);
            run("ip", &["link", "set", "br0", "up"]);
            let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
            let nic = |bridge: &str, address: &str| json!([{ "mac": "52:54:00:00:00:01", "bridge": bridge, "address": address }]);
            for nics in [json!([]), nic("mesh-nat0", "172.30.0.9"), nic("br0", "10.77.0.9")] {
                // Each configuration is the first VM of its node.
                for family in ["inet meshd-vm-users", "inet meshd-guests", "netdev meshd-guests"] {
                    drop(
                        Command::new("nft")
                            .args(["delete", "table"])
                            .args(family.split(' '))
                            .output(),
                    );
                }
                let spec = node.spec(
                    Guest::Echo,
                    json!({ "uuid": "11223344-5566-7788-99aa-bbccddee0c07", "nics": nics }),
                );
                let mut vms = node.agent();
                vms.start(&spec, 1).unwrap();
                reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Running).await;
                let user = fs::metadata(format!(
                    "/proc/{}",
                    super::pid_of(&node, spec.uuid).as_raw_nonzero()
                ))
                .unwrap()
                .uid();
                assert!(connects(0, &listener), "root has");
                assert!(is_dropped(user, &listener), "{nics}");
                run("nft", &["flush", "table", "inet", "meshd-vm-users"]);
                assert!(connects(user, &listener), "the rule is what holds it");
                vms.update_port_filters().await;
                assert!(is_dropped(user, &listener), "repaired: {nics}");
                vms.release(spec.uuid).await.unwrap();
            }
        },
    );
}

/// Root without the capability for nftables.
pub const WITHOUT_NFTABLES: [&str; 3] =
    ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin"];

#[test]
fn vm_is_not_started_if_its_firewall_cannot_be_installed() {
    let name = "work::vms::isolated::vm_is_not_started_if_its_firewall_cannot_be_installed";
    in_namespace(name, &WITHOUT_NFTABLES, || async {
        let node = Node::new();
        let spec =
            node.spec(Guest::Echo, json!({ "uuid": "11223344-5566-7788-99aa-bbccddee0c09" }));
        let mut vms = node.agent();
        vms.start(&spec, 1).unwrap();
        let report = reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Failed).await;
        let detail = report.failure.unwrap().detail;
        assert!(detail.contains("cannot install the firewall meshd-vm-users"), "{detail}");
        assert!(node.processes().is_empty());
        vms.release(spec.uuid).await.unwrap();
    });
}

fn node_with_bridge() -> Node {
    run("mount", &["-t", "sysfs", "none", "/sys"]);
    run("ip", &["link", "set", "lo", "up"]);
    run("ip", &["link", "add", "mesh-nat0", "type", "bridge"]);
    run("ip", &["addr", "add", "172.30.0.1/24", "dev", "mesh-nat0"]);
    run("ip", &["link", "set", "mesh-nat0", "up"]);
    let node = Node::new();
    let root = node.path().join("root");
    for folder in ["etc/meshd", "dev/net"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    symlink("/dev/net/tun", root.join("dev/net/tun")).unwrap();
    fs::write(root.join("etc/meshd/nat.json"), r#"{"enabled": true, "pool": "172.30.0.0/16"}"#)
        .unwrap();
    node
}

async fn inside() {
    let node = node_with_bridge();
    let nics =
        json!([{ "mac": "52:54:00:00:00:01", "bridge": "mesh-nat0", "address": "172.30.0.9" }]);
    let spec = node
        .spec(Guest::Echo, json!({ "uuid": "11223344-5566-7788-99aa-bbccddee0c06", "nics": nics }));
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let mut vms = node.agent();
    vms.start(&spec, 1).unwrap();
    reaches(&mut vms.watch(spec.uuid).unwrap(), ReportedVmState::Running).await;
    says(&vms, spec.uuid, HELLO).await;

    let ports = || -> Vec<String> {
        let entries = fs::read_dir("/sys/class/net/mesh-nat0/brif").unwrap().flatten();
        entries.map(|entry| entry.file_name().into_string().unwrap()).collect()
    };
    let [port] = &ports()[..] else { panic!("{:?}", ports()) };
    let shown =
        |file: &str| fs::read_to_string(Path::new("/sys/class/net").join(port).join(file)).unwrap();
    let user = fs::metadata(format!("/proc/{}", super::pid_of(&node, spec.uuid).as_raw_nonzero()))
        .unwrap()
        .uid();
    assert_eq!(shown("owner").trim(), user.to_string());
    assert_eq!(shown("brport/isolated").trim(), "1");
    assert!(connects(0, &listener) && is_dropped(user, &listener), "QEMU itself has no network");

    // A later agent finds it filtered, and one that ended is gone with its port.
    drop(vms);
    let mut vms = node.agent();
    vms.update_port_filters().await;
    assert!(is_dropped(user, &listener));
    vms.release(spec.uuid).await.unwrap();
    assert!(ports().is_empty() && !Path::new("/sys/class/net").join(port).exists());
}
