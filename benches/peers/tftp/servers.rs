//! meshd, dnsmasq and tftpd-hpa, each serving the same kernel.

use crate::frame::{self, SERVER, SERVER_INTERFACE, Site, Wire};
use anyhow::Context as _;
use std::{
    fs::{self, File},
    process::{Command, Stdio},
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Meshd,
    Dnsmasq,
    TftpdHpa,
}

impl Server {
    pub const ALL: [Server; 3] = [Server::Meshd, Server::Dnsmasq, Server::TftpdHpa];

    pub fn name(self) -> &'static str {
        match self {
            Server::Meshd => "meshd",
            Server::Dnsmasq => "dnsmasq",
            Server::TftpdHpa => "tftpd-hpa",
        }
    }

    pub fn program(self) -> Option<&'static str> {
        match self {
            Server::Meshd => None,
            Server::Dnsmasq => Some("dnsmasq"),
            Server::TftpdHpa => Some("in.tftpd"),
        }
    }
}

/// Starts one; and the name under which it has the kernel.
pub fn start(server: Server, wire: &Wire) -> anyhow::Result<(frame::Server, String)> {
    let www = wire.path("www");
    let mut command = match server {
        Server::Meshd => {
            let (process, image) = Site::default().serve(wire)?;
            return Ok((process, format!("blob/{}/kernel", image.kernel)));
        }
        Server::Dnsmasq => {
            let mut command = Command::new("dnsmasq");
            command.args(["--keep-in-foreground", "--port=0", "--enable-tftp", "--tftp-max=1000", "--user=root"]);
            command.args(["--conf-file=/dev/null", "--pid-file="]).arg(format!("--interface={SERVER_INTERFACE}"));
            command.arg(format!("--tftp-root={}", www.display()));
            command
        }
        Server::TftpdHpa => {
            let mut command = Command::new("in.tftpd");
            command.args(["--foreground", "--user", "root", "--address", &format!("{SERVER}:69"), "--secure"]).arg(www);
            command
        }
    };
    let talk = File::create(wire.path("talk"))?;
    command.stdin(Stdio::null()).stdout(talk.try_clone()?).stderr(talk);
    let listens = || {
        let sockets = Command::new("ip").args(["netns", "exec", wire.server.name(), "ss", "-Huln"]).output();
        sockets.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains(":69 "))
    };
    let process = frame::Server::start(&wire.server, &mut command, listens)
        .with_context(|| fs::read_to_string(wire.path("talk")).unwrap_or_default())?;
    Ok((process, "kernel".to_owned()))
}

/// The bytes that everyone must receive.
pub fn kernel(wire: &Wire) -> anyhow::Result<Vec<u8>> {
    fs::read(wire.path("www/kernel")).context("read the kernel")
}
