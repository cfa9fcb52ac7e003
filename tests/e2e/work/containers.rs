//! A container on netbooted nodes: an image that umoci wrote serves HTTP on each of them.

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

pub fn serve_on_nodes_and_leave_nothing(rack: &Rack, nodes: &[Value]) {
    import(rack);
    run(rack, nodes.len());
    nodes.iter().for_each(|node| answers(rack, node));
    delete(rack);
}
