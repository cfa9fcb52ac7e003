//! Published ports: the supervisor accepts connections on ports of the node, and connects each to
//! the loopback address in the network namespace of its replica. The program sees the loopback
//! address as the client.

use super::LaunchError;
use meshd_proto::container::{ContainerFault, PublishedPort};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener as StdTcpListener, TcpStream as StdTcpStream},
    os::fd::{AsFd as _, OwnedFd},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinSet, spawn_blocking},
    time::sleep,
};

/// Maximum number of connections of one replica.
const MAX_CONNECTIONS: usize = 1024;
/// Timeout of a connection to the program.
const CONNECT: Duration = Duration::from_secs(5);
/// Delay after a failed accept: the process has no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Listens on the ports of the node. Each listener has its port of the replica.
pub(super) fn listen(ports: &[PublishedPort]) -> Result<Vec<(StdTcpListener, u16)>, LaunchError> {
    let listener = |port: &PublishedPort| {
        let listener = StdTcpListener::bind((Ipv4Addr::UNSPECIFIED, port.node));
        let listener = listener.and_then(|listener| {
            listener.set_nonblocking(true)?;
            Ok(listener)
        });
        match listener {
            Ok(listener) => Ok((listener, port.container)),
            Err(error) => {
                let detail = format!("cannot listen on port {} of the node: {error}", port.node);
                let kind = match error.kind() {
                    io::ErrorKind::AddrInUse => ContainerFault::PortInUse,
                    _ => ContainerFault::Prepare,
                };
                Err(LaunchError::new(kind, detail))
            }
        }
    };
    ports.iter().map(listener).collect()
}

/// Forwards connections until the returned set is dropped. `network` is the network namespace of
/// the replica; `None` if its program has ended.
pub(super) fn forward(
    listeners: Vec<(StdTcpListener, u16)>,
    network: Option<OwnedFd>,
) -> io::Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    let Some(network) = network.map(Arc::new) else { return Ok(tasks) };
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    for (listener, port) in listeners {
        let listener = TcpListener::from_std(listener)?;
        tasks.spawn(accept(listener, port, network.clone(), permits.clone()));
    }
    Ok(tasks)
}

async fn accept(listener: TcpListener, port: u16, network: Arc<OwnedFd>, permits: Arc<Semaphore>) {
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        // The semaphore is never closed.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let network = network.clone();
                connections.spawn(async move {
                    let _permit = permit;
                    if let Err(error) = relay(client, port, network).await {
                        tracing::debug!(port, %error, "a connection to a container ended");
                    }
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn relay(mut client: TcpStream, port: u16, network: Arc<OwnedFd>) -> io::Result<()> {
    let connected = spawn_blocking(move || {
        // This thread stays there. It makes no connection of the supervisor itself.
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        StdTcpStream::connect_timeout(&address, CONNECT)
    });
    let program = connected.await.map_err(io::Error::other)??;
    program.set_nonblocking(true)?;
    let mut program = TcpStream::from_std(program)?;
    copy_bidirectional(&mut client, &mut program).await.map(drop)
}
