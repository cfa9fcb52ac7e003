//! Probes of health checks, in the network and the file system of their replica.

use super::{
    bundle,
    replica_cgroup::ReplicaCgroup,
    replica_paths::{self, ReplicaPaths},
    runtime::{self, ContainerRuntime},
};
use meshd_proto::container::{HealthCheck, HealthProbe, ReplicaId, ReplicaSpec};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    fs::File,
    io::{self, ErrorKind, Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    os::fd::AsFd as _,
    path::PathBuf,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};
use tokio::{process::Command, sync::oneshot, time::timeout};

/// Beginning of an answer: `HTTP/1.1 200`.
const STATUS: usize = 12;

/// A running replica that is probed.
#[derive(Clone, Debug)]
pub(super) struct ProbedReplica {
    pub replica: ReplicaId,
    pub spec: ReplicaSpec,
    pub paths: ReplicaPaths,
    pub cgroup: ReplicaCgroup,
    pub hierarchy: PathBuf,
    pub runtime: ContainerRuntime,
}

impl ProbedReplica {
    /// Probes once. Returns whether the replica is healthy.
    pub async fn probe(&self, check: &HealthCheck) -> bool {
        let limit = Duration::from_secs(check.timeout_seconds.into());
        let probed = match &check.probe {
            HealthProbe::Tcp { port } => self.connect(*port, None, limit).await,
            HealthProbe::Http { port, path } => {
                self.connect(*port, Some(path.clone()), limit).await
            }
            HealthProbe::Exec { argv } => self.run(argv, limit).await,
        };
        if let Err(error) = &probed {
            tracing::debug!(replica = %self.replica, %error, "a health check failed");
        }
        probed.is_ok()
    }

    /// Connects to a port of the replica, and requests a path from it.
    async fn connect(&self, port: u16, path: Option<String>, limit: Duration) -> io::Result<()> {
        let network = self.network()?;
        let (sender, receiver) = oneshot::channel();
        // A separate thread: it stays in the network of the replica to its end.
        thread::Builder::new().name("container-probe".to_owned()).spawn(move || {
            let probed =
                move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))
                    .map_err(io::Error::from)
                    .and_then(|()| request(port, path.as_deref(), limit));
            let _ = sender.send(probed);
        })?;
        receiver.await.map_err(io::Error::other)?
    }

    fn network(&self) -> io::Result<File> {
        let pid = self.cgroup.program_of(&self.paths.pid()).ok_or(ErrorKind::NotFound)?;
        File::open(format!("/proc/{pid}/ns/net"))
    }

    /// Runs a program in the replica.
    async fn run(&self, argv: &[String], limit: Duration) -> io::Result<()> {
        let process = self.paths.health_process();
        replica_paths::write(&process, &bundle::process(&self.spec, argv, None))?;
        let group = self.cgroup.make_exec_group("health")?;
        let mut command = runtime::enter(&group.procs(), &self.hierarchy, false);
        command.args(self.runtime.exec(&self.replica, &process));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = Command::from(command).kill_on_drop(true).spawn()?;
        let ended = timeout(limit, child.wait()).await;
        group.end();
        let status = ended.map_err(|_| io::Error::from(ErrorKind::TimedOut))??;
        if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
    }
}

/// Connects to a port of this network, and requests a path from it. Blocks.
fn request(port: u16, path: Option<&str>, limit: Duration) -> io::Result<()> {
    let until = Instant::now() + limit;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let mut stream = TcpStream::connect_timeout(&address, limit)?;
    let Some(path) = path else { return Ok(()) };
    stream.set_write_timeout(Some(limit))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = [0; STATUS];
    let mut length = 0;
    while length < STATUS {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut answer[length..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(more) => length += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    if is_healthy_status(&answer) {
        Ok(())
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned()))
    }
}

/// Returns whether an answer begins with a status from 200 to 399.
fn is_healthy_status(answer: &[u8]) -> bool {
    matches!(answer, [b'H', b'T', b'T', b'P', b'/', b'1', b'.', _, b' ', b'2' | b'3', second, third]
        if second.is_ascii_digit() && third.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_from_200_to_399_is_healthy() {
        for (answer, healthy) in [
            ("HTTP/1.1 200", true),
            ("HTTP/1.0 204", true),
            ("HTTP/1.1 399", true),
            ("HTTP/1.1 404", false),
            ("HTTP/1.1 500", false),
            ("HTTP/1.1 100", false),
            ("HTTP/1.1 2xx", false),
            ("SSH-2.0-Open", false),
        ] {
            assert_eq!(is_healthy_status(answer.as_bytes()), healthy, "{answer}");
        }
    }
}
