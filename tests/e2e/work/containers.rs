//! A container on netbooted nodes: an image that umoci wrote serves HTTP on each of them, and the
//! kernel of the nodes enforces its limits.

use crate::{
    kit::web_image,
    racks::{OrEnd as _, SOON},
};
use meshd_lab::{Rack, Wait};
use serde_json::Value;
use std::{
    io::{self, Read as _, Write as _},
    net::{IpAddr, SocketAddr, TcpStream},
    time::Duration,
};

const PORT: u16 = 8080;
const ANSWER_TIME: Duration = Duration::from_secs(20);

/// Asks the published port of a node.
fn get(rack: &Rack, address: IpAddr) -> io::Result<String> {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, PORT), ANSWER_TIME)?;
        stream.set_read_timeout(Some(ANSWER_TIME))?;
        stream.write_all(b"GET /hello HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    };
    rack.namespace().inside(ask).or_end()
}

/// The published port of a node answers.
pub fn answers(rack: &Rack, node: &Value) {
    let address = node["address"].as_str().and_then(|text| text.parse().ok());
    let answer = get(rack, address.expect("an address")).expect("the container answers");
    assert!(answer.contains("hello from a container"), "{node}: {answer}");
}

/// Imports the image.
pub fn import(rack: &Rack) {
    let files = tempfile::tempdir().expect("a folder");
    let source = format!("oci:{}:latest", web_image::write_layout(files.path()));
    rack.run_cli(&["image", "import", "web", "--container", &source, "--arch", "x86_64"]).or_end();
}

/// Runs the web server, and waits until all replicas are healthy.
pub fn run(rack: &Rack, replicas: usize) {
    let replicas = replicas.to_string();
    let publish = format!("{PORT}:80");
    let order = ["container", "run", "web", "web", "--replicas", &replicas, "--publish", &publish];
    let limits = ["--memory", "64M", "--scratch", "8M", "--health", "http:80/hello", "--wait"];
    rack.run_cli(&[order.as_slice(), &limits].concat()).or_end();
}

pub fn show(rack: &Rack, name: &str) -> Value {
    rack.query(&["container", "show", name]).or_end()
}

/// Deletes the web server and its image, when no node has anything of it any more.
pub fn delete(rack: &Rack) {
    rack.run_cli(&["container", "delete", "web", "--yes"]).or_end();
    // The folder of blobs is shared with other tests.
    let released = rack.wait(SOON, "the nodes to release the container", |rack| {
        Ok(match rack.run_cli(&["volume", "remove", "web", "--yes"]) {
            Ok(_) => Wait::Done(()),
            Err(error) => Wait::NotYet(error.to_string()),
        })
    });
    released.or_end();
}

/// Waits until a container of one replica is in a phase. Returns the replica.
fn reaches(rack: &Rack, name: &str, phase: &str) -> Value {
    let reached = rack.wait(SOON, &format!("{name} to be {phase}"), |rack| {
        let replica = rack.query(&["container", "show", name])?["replicas"][0].clone();
        let seen = replica.to_string();
        Ok(Wait::some((replica["phase"] == phase).then_some(replica), seen))
    });
    reached.or_end()
}

/// A program that exceeds its memory ends, and one that wants more processor time does not get it.
/// The web server beside them goes on.
pub fn limits_hold(rack: &Rack) {
    let run = |name: &str, options: &[&str], program: &[&str]| {
        let order = ["container", "run", name, "web", "--memory", "16M", "--scratch", "1M"];
        rack.run_cli(&[order.as_slice(), options, &["--"], program].concat()).or_end();
    };
    let fill = ["/bin/busybox", "dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"];
    run("greedy", &["--restart", "on-failure:1"], &fill);
    let spin = "/bin/busybox time -p /bin/busybox timeout 10 /bin/sh -c 'while :; do :; done'";
    run("busy", &["--cpus", "0.1", "--restart", "never"], &["/bin/sh", "-c", spin]);
    let greedy = reaches(rack, "greedy", "failed");
    assert_eq!(greedy["detail"], "out of memory (limit 16 MiB)", "{greedy}");
    assert_eq!(greedy["restarts"], 1, "{greedy}");
    let busy = reaches(rack, "busy", "exited");
    let output = rack.run_cli(&["container", "logs", "busy"]).or_end();
    let seconds = |name: &str| -> f32 {
        let value = output.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{busy}: {output}"))
    };
    // A tenth of 10 s, and what a period of 100 ms rounds.
    assert!(seconds("real") >= 10.0 && seconds("user") + seconds("sys") < 2.0, "{output}");
    for replica in show(rack, "web")["replicas"].as_array().expect("replicas") {
        assert_eq!((&replica["phase"], &replica["restarts"]), (&"healthy".into(), &0.into()));
    }
    for name in ["greedy", "busy"] {
        rack.run_cli(&["container", "delete", name, "--yes"]).or_end();
    }
}

pub fn serve_on_nodes_and_leave_nothing(rack: &Rack, nodes: &[Value]) {
    import(rack);
    run(rack, nodes.len());
    nodes.iter().for_each(|node| answers(rack, node));
    limits_hold(rack);
    delete(rack);
}
