//! meshd, dnsmasq, tftpd-hpa and async-tftp, each serving the same kernel.

use crate::frame::{self, SERVER, SERVER_INTERFACE, Site, Wire};
use anyhow::Context as _;
use async_tftp::server::TftpServerBuilder;
use std::{
    env,
    fs::{self, File},
    net::SocketAddr,
    process::{Command, Stdio},
};

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Meshd,
    Dnsmasq,
    TftpdHpa,
    AsyncTftp,
}

impl Server {
    pub const ALL: [Server; 4] =
        [Server::Meshd, Server::Dnsmasq, Server::TftpdHpa, Server::AsyncTftp];

    pub fn name(self) -> &'static str {
        match self {
            Server::Meshd => "meshd",
            Server::Dnsmasq => "dnsmasq",
            Server::TftpdHpa => "tftpd-hpa",
            Server::AsyncTftp => "async-tftp",
        }
    }

    pub fn program(self) -> Option<&'static str> {
        match self {
            Server::Meshd | Server::AsyncTftp => None,
            Server::Dnsmasq => Some("dnsmasq"),
            Server::TftpdHpa => Some("in.tftpd"),
        }
    }
}

/// The argument with which this bench is async-tftp: a process of its own, so that its CPU time is
/// seen.
const SERVE_ASYNC_TFTP: &str = "--serve-async-tftp";

/// Serves the folder of the arguments with async-tftp, if they ask for it, until it is ended.
pub fn serve_async_tftp() -> anyhow::Result<()> {
    let mut arguments = env::args().skip(1);
    if arguments.next().as_deref() != Some(SERVE_ASYNC_TFTP) {
        return Ok(());
    }
    let folder = arguments.next().context("a folder")?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let server = TftpServerBuilder::with_dir_ro(folder)?
            .bind(SocketAddr::from((SERVER, 69)))
            .build()
            .await?;
        Ok(server.serve().await?)
    })
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
            command.args([
                "--keep-in-foreground",
                "--port=0",
                "--enable-tftp",
                "--tftp-max=1000",
                "--user=root",
            ]);
            command
                .args(["--conf-file=/dev/null", "--pid-file="])
                .arg(format!("--interface={SERVER_INTERFACE}"));
            command.arg(format!("--tftp-root={}", www.display()));
            command
        }
        Server::TftpdHpa => {
            let mut command = Command::new("in.tftpd");
            command
                .args([
                    "--foreground",
                    "--user",
                    "root",
                    "--address",
                    &format!("{SERVER}:69"),
                    "--secure",
                ])
                .arg(www);
            command
        }
        Server::AsyncTftp => {
            let mut command = Command::new(env::current_exe()?);
            command.arg(SERVE_ASYNC_TFTP).arg(www);
            command
        }
    };
    let talk = File::create(wire.path("talk"))?;
    command.stdin(Stdio::null()).stdout(talk.try_clone()?).stderr(talk);
    let listens = || {
        let sockets =
            Command::new("ip").args(["netns", "exec", wire.server.name(), "ss", "-Huln"]).output();
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
