//! Containers from the import of an image to the deletion: real meshd, real agents on three machines,
//! real crun, an image that umoci wrote.

use crate::{
    kit::web_image::write_layout,
    world::{
        World, eventually,
        http::request,
        node::{Agent, PxeNode},
        stderr,
    },
};
use meshd_types::Digest;
use serde_json::Value;
use std::{
    fs,
    io::{self, Read as _},
    net::{IpAddr, TcpStream},
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const NODES: u8 = 3;
/// Length of an answer, in bytes: the buffers of a connection within the node hold it.
const ANSWER: usize = 1_000_000;
/// How long a test waits for what must happen.
const DEADLINE: Duration = Duration::from_secs(30);
const HEALTH: [&str; 8] = [
    "--publish",
    "8080:80",
    "--health",
    "http:80/hello",
    "--health-interval",
    "1",
    "--memory",
    "64M",
];

/// A node that can run containers.
pub struct Host {
    agent: Agent,
}

impl Host {
    pub fn boot(world: &World, number: u8) -> Self {
        let machine = PxeNode::new(world, number);
        let overlay = machine.boot();
        let agent = machine.start_agent_with(&overlay, |root| {
            fs::create_dir_all(root.join("proc")).unwrap();
            let memory = "MemTotal: 4194304 kB\nMemAvailable: 3145728 kB\n";
            fs::write(root.join("proc/meminfo"), memory).unwrap();
            let processors = ["processor : 0\n", "processor : 1\n"].concat();
            fs::write(root.join("proc/cpuinfo"), processors).unwrap();
            fs::create_dir_all(root.join("usr/bin")).unwrap();
            symlink("/usr/bin/crun", root.join("usr/bin/crun")).unwrap();
            fs::create_dir_all(root.with_file_name("machines")).unwrap();
        });
        Host { agent }
    }

    fn containers(&self) -> PathBuf {
        self.agent.file("containers")
    }

    /// Replicas that have files here.
    fn replicas(&self) -> Vec<String> {
        let entries = fs::read_dir(self.containers()).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        names.filter(|name| name != "runtime").collect()
    }

    /// What is left of replicas: files, images, control groups, processes and mounts.
    fn leftovers(&self) -> Vec<String> {
        let images = fs::read_dir(self.agent.file("machines/container-images"));
        let images = images.into_iter().flatten().flatten().map(|entry| entry.path());
        let group = Some(self.cgroup()).filter(|group| group.exists());
        let paths = images.chain(group).map(|path| path.display().to_string());
        // Of replicas, not of the agent, which names the folder.
        let folder = format!("{}/", self.containers().display());
        let processes = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
            let text = [read("cmdline"), read("mounts")].concat();
            let is_of_replica = String::from_utf8_lossy(&text).contains(&folder);
            is_of_replica.then(|| entry.path().display().to_string())
        });
        self.replicas().into_iter().chain(paths).chain(processes).collect()
    }

    /// Its machine loses power: every process ends, and what is in memory is gone.
    fn cut_power(&mut self) {
        self.agent.cut_power();
        let group = self.cgroup();
        eventually("its processes end", || {
            fs::write(group.join("cgroup.kill"), "1").map_err(|error| error.to_string())?;
            remove_groups(&group);
            if group.exists() { Err(group.display().to_string()) } else { Ok(()) }
        });
        for folder in ["containers", "machines"] {
            fs::remove_dir_all(self.agent.file(folder)).unwrap();
        }
    }

    /// The parent of the control groups of its replicas.
    fn cgroup(&self) -> PathBuf {
        let folder = self.containers();
        let digest = Digest::of(folder.as_os_str().as_encoded_bytes()).to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mounts
            .lines()
            .find_map(|line| line.split(' ').nth(1).filter(|_| line.contains(" cgroup2 rw")));
        Path::new(root.expect("control groups")).join(format!("meshd-containers-{}", &digest[..12]))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // A failed test leaves no program.
        let _ = fs::write(self.cgroup().join("cgroup.kill"), "1");
    }
}

/// Removes control groups that have no process, children first.
fn remove_groups(group: &Path) {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    groups.for_each(|entry| remove_groups(&entry.path()));
    let _ = fs::remove_dir(group);
}

pub fn run(world: &World, args: &[&str]) -> String {
    let output = world.meshd(args);
    assert!(output.status.success(), "{args:?}: {}\n{}", stderr(&output), world.log_text());
    String::from_utf8(output.stdout).unwrap()
}

/// The nodes of the replicas.
fn nodes_of(web: &Value) -> Vec<String> {
    let replicas = web["replicas"].as_array().unwrap();
    replicas.iter().filter_map(|replica| replica["node"].as_str().map(str::to_owned)).collect()
}

/// Waits until all replicas are healthy on nodes of which none is `left`; returns the nodes.
fn healthy_nodes(world: &World, left: Option<&str>) -> Vec<String> {
    eventually("all replicas are healthy", || {
        let web = world.json(&["container", "show", "web", "-o", "json"]);
        let mut replicas = web["replicas"].as_array().unwrap().iter();
        let is_healthy = replicas.all(|replica| replica["phase"] == "healthy");
        let nodes = nodes_of(&web);
        if is_healthy && nodes.iter().all(|node| Some(node.as_str()) != left) {
            Ok(nodes)
        } else {
            Err(web.to_string())
        }
    })
}

/// The published port of a node answers.
fn answers(world: &World, id: &str) {
    let answer = get(world, id, "hello");
    assert!(answer.contains("hello from a container"), "{answer}");
}

fn address_of(world: &World, id: &str) -> IpAddr {
    let node = world.json(&["node", "show", id, "-o", "json"]);
    node["address"].as_str().and_then(|text| text.parse().ok()).expect("an address")
}

fn get(world: &World, id: &str, path: &str) -> String {
    let url = format!("http://{}:8080/{path}", address_of(world, id));
    let answer = eventually("the published port answers", || {
        world
            .central
            .inside(|| request("GET", &url, None))
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())
    });
    answer.text().to_owned()
}

/// Boots nodes, and imports an image for them.
fn boot_hosts(world: &World, count: u8) -> Vec<Host> {
    let hosts: Vec<Host> = (1..=count).map(|number| Host::boot(world, number)).collect();
    all_online(world, hosts.len());
    let files = tempfile::tempdir().unwrap();
    let layout = write_layout(files.path());
    let source = format!("oci:{layout}:latest");
    run(world, &["image", "import", "demo", "--container", &source, "--arch", "x86_64"]);
    hosts
}

fn all_online(world: &World, count: usize) {
    eventually("all nodes are online", || {
        let nodes = world.json(&["node", "list", "-o", "json"]);
        let online = nodes.as_array().unwrap().iter().filter(|node| node["phase"] == "online");
        if online.count() == count { Ok(()) } else { Err(nodes.to_string()) }
    });
}

fn run_web(world: &World, options: &[&str]) {
    let order = ["container", "run", "web", "demo", "--scratch", "8M", "--wait"];
    run(world, &[order.as_slice(), &HEALTH, options].concat());
}

#[test]
fn imported_image_runs_on_its_nodes_moves_at_a_drain_and_leaves_nothing() {
    let mut world = World::prepared("auto");
    world.start();
    let hosts = boot_hosts(&world, NODES);
    let data = world.path("data");
    fs::create_dir_all(&data).unwrap();
    fs::write(data.join("hello"), "hello from a volume\n").unwrap();
    let file = world.path("data.squashfs");
    let made = Command::new("mksquashfs").args([&data, &file]).arg("-quiet").output().unwrap();
    assert!(made.status.success(), "{}", stderr(&made));
    run(&world, &["volume", "add", file.to_str().unwrap(), "--name", "data"]);
    run_web(&world, &["--replicas", "2", "--mount", "data:/srv/data"]);
    let listed = world.json(&["volume", "list", "-o", "json"]);
    let is_used = |volume: &Value| volume["name"] == "data" && volume["containers"][0] == "web";
    assert!(listed.as_array().unwrap().iter().any(is_used), "{listed}");
    let used = world.meshd(&["volume", "remove", "data", "--yes"]);
    assert!(!used.status.success() && stderr(&used).contains("container web"), "{}", stderr(&used));
    let nodes = healthy_nodes(&world, None);
    assert_ne!(nodes[0], nodes[1]);
    nodes.iter().for_each(|node| answers(&world, node));
    assert_eq!(get(&world, &nodes[0], "data/hello"), "hello from a volume\n");

    // A drain moves a replica to the third node.
    run(&world, &["node", "drain", &nodes[0], "--yes"]);
    let moved = healthy_nodes(&world, Some(&nodes[0]));
    moved.iter().for_each(|node| answers(&world, node));
    let running: usize = hosts.iter().map(|host| host.replicas().len()).sum();
    assert_eq!(running, 2, "the drained node has none");

    run(&world, &["container", "delete", "web", "--yes"]);
    nothing_is_left(&hosts);
}

fn nothing_is_left(hosts: &[Host]) {
    eventually("nothing is left", || {
        let left: Vec<String> = hosts.iter().flat_map(Host::leftovers).collect();
        if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
    });
}

#[test]
fn replica_of_a_powerless_node_is_served_by_a_third_and_leaves_nothing() {
    let mut world = World::prepared("auto");
    world.start();
    let mut hosts = boot_hosts(&world, NODES);
    run_web(&world, &["--replicas", "2"]);
    let nodes = healthy_nodes(&world, None);
    nodes.iter().for_each(|node| answers(&world, node));
    let has_first = |host: &Host| host.replicas() == ["web.0"];
    let lost = hosts.iter().position(has_first).expect("the node of web.0");
    hosts[lost].cut_power();
    eventually("the replica is unreachable", || {
        let web = world.json(&["container", "show", "web", "-o", "json"]);
        let is_lost = web["replicas"][0]["phase"] == "unreachable";
        if is_lost { Ok(()) } else { Err(web.to_string()) }
    });
    answers(&world, &nodes[1]);
    let running: usize = hosts.iter().map(|host| host.replicas().len()).sum();
    assert_eq!(running, 1, "nobody has said that the machine is off");

    let name = world.json(&["node", "show", &nodes[0], "-o", "json"])["name"].clone();
    eventually("the node has been silent for long enough", || {
        let fence = ["node", "fence", &nodes[0], "--confirm", name.as_str().unwrap()];
        let fenced = world.meshd(&fence);
        if fenced.status.success() { Ok(()) } else { Err(stderr(&fenced)) }
    });
    let moved = healthy_nodes(&world, Some(&nodes[0]));
    assert!(!nodes.contains(&moved[0]) && moved[1] == nodes[1], "{nodes:?} {moved:?}");
    moved.iter().for_each(|node| answers(&world, node));
    let third = hosts.iter().position(has_first).expect("the third node has web.0");
    assert_ne!(third, lost);
    run(&world, &["container", "delete", "web", "--yes"]);
    nothing_is_left(&hosts);
    for node in &moved {
        let address = address_of(&world, node);
        let refused = world.central.inside(|| TcpStream::connect((address, 8080))).unwrap();
        assert!(refused.is_err(), "a published port of {node}");
    }
}

/// A new central node has the site as of a backup.
fn restore(world: &mut World, file: &str, key: &str) {
    world.kill();
    fs::remove_dir_all(world.path("state")).unwrap();
    let rack = world.path("rack");
    let into = rack.to_str().unwrap();
    run(world, &["backup", "restore", file, "--into", into, "--key-file", key]);
    // Programs and loaders are no state: they are installed on the new machine.
    for program in ["agent", "stage1"] {
        fs::copy(world.path(program), rack.join(program)).unwrap();
    }
    fs::rename(world.path("loaders"), rack.join("loaders")).unwrap();
    world.site = rack.join("site.toml");
    world.start();
}

#[test]
fn restored_site_starts_no_second_copy_of_a_replica_that_moved() {
    let mut world = World::prepared("auto");
    world.start();
    let hosts = boot_hosts(&world, 2);
    run_web(&world, &[]);
    let before = healthy_nodes(&world, None);
    let [file, key] = ["rack.backup", "backup.key"].map(|name| world.path(name));
    let [file, key] = [&file, &key].map(|path| path.to_str().unwrap());
    fs::write(key, "correct horse battery staple\n").unwrap();
    run(&world, &["backup", "create", file, "--key-file", key, "--blobs"]);
    run(&world, &["node", "drain", &before[0], "--yes"]);
    let moved = healthy_nodes(&world, Some(&before[0]));
    run(&world, &["node", "resume", &before[0]]);
    all_online(&world, 2);

    restore(&mut world, file, key);
    all_online(&world, 2);
    eventually("the other node tells of it", || {
        let events = format!("{:?}", world.events("container"));
        if events.contains("web.0, not on record there") { Ok(()) } else { Err(events) }
    });
    let shown = run(&world, &["container", "show", "web"]);
    assert!(shown.contains("unconfirmed") && shown.contains("meshd container start"), "{shown}");
    assert_eq!(nodes_of(&world.json(&["container", "show", "web", "-o", "json"])), before);
    answers(&world, &moved[0]);
    let running: usize = hosts.iter().map(|host| host.replicas().len()).sum();
    assert_eq!(running, 1, "the node of the record does not start it");
    let refused = world.meshd(&["container", "start", "web"]);
    let why = stderr(&refused);
    assert!(!refused.status.success() && why.contains("container delete web.0"), "{why}");

    run(&world, &["container", "stop", "web"]);
    let shown = run(&world, &["container", "show", "web"]);
    assert!(shown.contains("runs a copy") && !shown.contains("stopped"), "{shown}");

    // The operator ends the copy, and starts the replica where it is on record.
    run(&world, &["container", "delete", "web.0", "--yes"]);
    nothing_is_left(&hosts);
    run(&world, &["container", "start", "web", "--wait"]);
    assert_eq!(healthy_nodes(&world, None), before);
    answers(&world, &before[0]);
    run(&world, &["container", "delete", "web", "--yes"]);
    nothing_is_left(&hosts);
}

/// The program has ended before its client reads the answer.
#[test]
fn client_gets_all_that_a_program_wrote_before_its_end() {
    let mut world = World::prepared("auto");
    world.start();
    let hosts = boot_hosts(&world, 1);
    let order = ["container", "run", "web", "demo", "--publish", "8080:80", "--restart", "never"];
    let answer = format!("/bin/busybox head -c {ANSWER} /dev/zero");
    let program = format!("/bin/busybox nc -l -p 80 -e {answer}");
    let program: Vec<&str> = program.split(' ').collect();
    run(&world, &[&order[..], &["--memory", "64M", "--wait", "--"], &program].concat());
    let node = nodes_of(&world.json(&["container", "show", "web", "-o", "json"])).remove(0);
    let address = address_of(&world, &node);
    let mut client = eventually("the program answers", || {
        let first = world.central.inside(|| {
            let mut client = TcpStream::connect((address, 8080))?;
            client.set_read_timeout(Some(DEADLINE))?;
            client.read_exact(&mut [0])?;
            io::Result::Ok(client)
        });
        // The program may not listen yet.
        first.unwrap().map_err(|error| error.to_string())
    });
    eventually("the program has ended", || {
        if runs(&answer) { Err("it runs".to_owned()) } else { Ok(()) }
    });
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(1 + rest.len(), ANSWER);
    run(&world, &["container", "delete", "web", "--yes"]);
    nothing_is_left(&hosts);
}

/// Returns whether a process has these arguments, or ends with them.
fn runs(arguments: &str) -> bool {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    let has = |file: PathBuf| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.trim_end_matches('\0').replace('\0', " ").ends_with(arguments)
    };
    processes.map(|process| process.path().join("cmdline")).any(has)
}
