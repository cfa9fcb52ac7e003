//! Volumes that replicas mount.

use super::*;
use meshd_proto::container::ReplicaMount;

/// Makes a volume of a folder, and stores it on the node.
fn volume(node: &ContainerNode, tree: &Path, path: &str) -> ReplicaMount {
    let (volume, size) = add_volume(&node.machine, &make_squashfs(tree));
    ReplicaMount { volume, size, path: path.to_owned() }
}

#[tokio::test]
async fn replica_reads_mounted_volumes_and_opens_no_device_of_the_node() {
    let mut node = ContainerNode::start().await;
    let files = tempfile::tempdir().expect("a folder");
    let mount = |name: &str, path: &str| {
        let tree = files.path().join(name);
        fs::create_dir_all(tree.join("folder")).expect("made");
        fs::write(tree.join("folder/file"), format!("a file of {name}\n")).expect("written");
        volume(&node, &tree, path)
    };
    let mounts = vec![mount("one", "/srv/one"), mount("two", "/new/two")];
    let script = "cat /srv/one/folder/file /new/two/folder/file /srv/hello; \
                  touch /srv/one/x || echo read-only; grep -E ' (/|/srv/one) ' /proc/self/mounts; \
                  for device in /device /srv/one/device; do \
                  dd if=$device of=/dev/null bs=1 count=1 && echo opened $device; done; exit 7";
    let spec = node.spec(script);
    node.run(ReplicaSpec { mounts, ..spec }).await;
    node.reports_state(ReplicaState::Exited { code: 7 }).await;
    let log = node.log();
    for text in ["a file of one\n", "a file of two\n", "hello from a container\n", "read-only\n"] {
        assert!(log.contains(text), "{text}: {log}");
    }
    assert!(!log.contains("opened"), "a device of the node: {log}");
    for (kind, wanted) in
        [(" squashfs ", &["ro", "nosuid", "nodev"][..]), (" overlay ", &["nosuid", "nodev"])]
    {
        let mount = log.lines().find(|line| line.contains(kind)).expect(kind);
        let options: Vec<&str> = mount.split([' ', ',']).collect();
        assert!(wanted.iter().all(|option| options.contains(option)), "{mount}");
    }
    node.remove().await;
}

#[tokio::test]
async fn volume_behind_a_link_of_the_image_is_refused_by_its_name() {
    let mut node = ContainerNode::start().await;
    let files = tempfile::tempdir().expect("a folder");
    let tree = files.path().join("false");
    fs::create_dir_all(tree.join("self")).expect("made");
    fs::write(tree.join("self/status"), "false\n").expect("written");
    for (run, path, wrong) in [
        (1, "/link", "/link of the image is a link"),
        (2, "/all", "/all of the image is a link"),
        (3, "/all/srv/data", "/all of the image is a link"),
        (4, "/srv/hello", "/srv/hello of the image is no folder"),
    ] {
        let mounts = vec![volume(&node, &tree, path)];
        let spec = node.spec("grep Seccomp: /proc/self/status");
        node.run(ReplicaSpec { run, mounts, ..spec }).await;
        let report = node.reports(|report| report.run == run && report.state.has_ended()).await;
        let ReplicaState::Failed { kind: ContainerFault::MountPath, detail } = &report.state else {
            panic!("{path}: {report:?}: {}", node.log());
        };
        assert!(detail.contains(path) && detail.contains(wrong), "{detail}");
    }
    assert_eq!(node.log(), "", "no program has started");
    node.remove().await;
}
