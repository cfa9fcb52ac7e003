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
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

const NODES: u8 = 3;

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

/// Waits until two replicas are healthy on nodes of which none is `left`; returns the nodes.
fn healthy_nodes(world: &World, left: Option<&str>) -> Vec<String> {
    eventually("two replicas are healthy", || {
        let web = world.json(&["container", "show", "web", "-o", "json"]);
        let healthy = web["replicas"].as_array().unwrap().iter();
        let healthy = healthy.filter(|replica| replica["phase"] == "healthy").count();
        let nodes = nodes_of(&web);
        if healthy == 2 && nodes.iter().all(|node| Some(node.as_str()) != left) {
            Ok(nodes)
        } else {
            Err(web.to_string())
        }
    })
}

/// The published port of a node answers.
fn answers(world: &World, id: &str) {
    let nodes = world.json(&["node", "list", "-o", "json"]);
    let node = nodes.as_array().unwrap().iter().find(|node| node["id"] == id).unwrap();
    let address = node["address"].as_str().unwrap();
    let url = format!("http://{address}:8080/hello");
    let answer = eventually("the published port answers", || {
        world
            .central
            .inside(|| request("GET", &url, None))
            .map_err(|error| error.to_string())?
            .map_err(|error| error.to_string())
    });
    assert!(answer.text().contains("hello from a container"), "{}", answer.text());
}

#[test]
fn imported_image_runs_on_its_nodes_moves_at_a_drain_and_leaves_nothing() {
    let mut world = World::prepared("auto");
    world.start();
    let hosts: Vec<Host> = (1..=NODES).map(|number| Host::boot(&world, number)).collect();
    eventually("all nodes are online", || {
        let nodes = world.json(&["node", "list", "-o", "json"]);
        let online = nodes.as_array().unwrap().iter().filter(|node| node["phase"] == "online");
        if online.count() == usize::from(NODES) { Ok(()) } else { Err(nodes.to_string()) }
    });
    let files = tempfile::tempdir().unwrap();
    let layout = write_layout(files.path());
    let source = format!("oci:{layout}:latest");
    run(&world, &["image", "import", "demo", "--container", &source, "--arch", "x86_64"]);
    let order = ["container", "run", "web", "demo", "--replicas", "2", "--publish", "8080:80"];
    let health = ["--health", "http:80/hello", "--health-interval", "1", "--memory", "64M"];
    run(&world, &[order.as_slice(), &health, &["--scratch", "8M", "--wait"]].concat());
    let nodes = healthy_nodes(&world, None);
    assert_ne!(nodes[0], nodes[1]);
    nodes.iter().for_each(|node| answers(&world, node));

    // A drain moves a replica to the third node.
    run(&world, &["node", "drain", &nodes[0], "--yes"]);
    let moved = healthy_nodes(&world, Some(&nodes[0]));
    moved.iter().for_each(|node| answers(&world, node));
    let running: usize = hosts.iter().map(|host| host.replicas().len()).sum();
    assert_eq!(running, 2, "the drained node has none");

    run(&world, &["container", "delete", "web", "--yes"]);
    eventually("nothing is left", || {
        let left: Vec<String> = hosts
            .iter()
            .flat_map(|host| {
                let groups = Some(host.cgroup()).filter(|group| group.exists());
                host.replicas().into_iter().chain(groups.map(|group| group.display().to_string()))
            })
            .collect();
        if left.is_empty() { Ok(()) } else { Err(left.join(", ")) }
    });
}
