//! Third-party TFTP clients against the service on loopback. `make setup` installs them.

use super::service::{KERNEL, world};
use std::net::SocketAddr;
use tokio::process::Command;

/// Runs a program for at most two minutes and returns its output.
async fn output(program: &str, arguments: &[&str]) -> Vec<u8> {
    let mut command = Command::new("timeout");
    command.arg("120").arg(program).args(arguments).kill_on_drop(true);
    let output = command.output().await.expect("timeout is there");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{program} {arguments:?}: {} {stderr} (`make setup` installs it)",
        output.status
    );
    output.stdout
}

const NAME: &str = "images/kernel";

#[tokio::test]
async fn curl_downloads_with_and_without_options() {
    let world = world();
    let url = format!("tftp://{}/{}", world.server, NAME);
    for options in [&["--tftp-blksize", "1468"][..], &["--tftp-no-options"], &[]] {
        let arguments = [&["--silent", "--show-error", &url], options].concat();
        assert_eq!(output("curl", &arguments).await, KERNEL, "{options:?}");
    }
}

#[tokio::test]
async fn atftp_downloads_with_and_without_windows() {
    let world = world();
    let SocketAddr::V4(server) = world.server else { panic!("IPv4") };
    let host = server.ip().to_string();
    let port = server.port().to_string();
    let name = NAME;
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("kernel");
    let file = file.to_str().expect("a plain name");
    for options in [
        &[][..],
        &["blksize 1468"],
        &["blksize 512", "windowsize 4"],
        &["blksize 8", "windowsize 64", "tsize 0"],
    ] {
        let options = options.iter().flat_map(|option| ["--option", option]);
        let fixed = ["--get", "--remote-file", name, "--local-file", file, &host, &port];
        let arguments: Vec<&str> = options.chain(fixed).collect();
        output("atftp", &arguments).await;
        assert_eq!(std::fs::read(file).expect("it was written"), KERNEL, "{arguments:?}");
        std::fs::remove_file(file).expect("it is there");
    }
}
