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
    io::{AsyncWriteExt as _, copy},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::{JoinSet, spawn_blocking},
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Maximum number of connections of one replica.
const MAX_CONNECTIONS: u32 = 1024;
/// Timeout of a connection to the program.
const CONNECT: Duration = Duration::from_secs(5);
/// Time for clients to read what a program wrote before its end. A client that reads nothing delays
/// the restart of the program by it.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
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

/// Published ports of a program.
pub(super) struct Forwarding {
    listeners: JoinSet<()>,
    connections: Connections,
}

#[derive(Clone)]
struct Connections {
    /// Each connection has a permit, and each listener for its next connection.
    permits: Arc<Semaphore>,
    /// Cancelled when the program has ended, which reads no more.
    program_ended: CancellationToken,
}

impl Forwarding {
    fn new() -> Self {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS as usize));
        let connections = Connections { permits, program_ended: CancellationToken::new() };
        Forwarding { listeners: JoinSet::new(), connections }
    }

    /// Closes the listeners of a program that has ended, and waits until clients have what it wrote.
    pub(super) async fn end(mut self) {
        self.listeners.shutdown().await;
        self.connections.program_ended.cancel();
        let _ = timeout(LAST_ANSWERS, self.connections.permits.acquire_many(MAX_CONNECTIONS)).await;
    }
}

/// Forwards connections until the returned value is dropped or ended. `network` is the network
/// namespace of the replica; `None` if its program has ended.
pub(super) fn forward(
    listeners: Vec<(StdTcpListener, u16)>,
    network: Option<OwnedFd>,
) -> io::Result<Forwarding> {
    let mut forwarding = Forwarding::new();
    let Some(network) = network.map(Arc::new) else { return Ok(forwarding) };
    for (listener, port) in listeners {
        let listener = TcpListener::from_std(listener)?;
        let connections = forwarding.connections.clone();
        forwarding.listeners.spawn(accept(listener, port, network.clone(), connections));
    }
    Ok(forwarding)
}

async fn accept(
    listener: TcpListener,
    port: u16,
    network: Arc<OwnedFd>,
    Connections { permits, program_ended }: Connections,
) {
    loop {
        // The semaphore is never closed.
        let Ok(permit) = permits.clone().acquire_owned().await else { return };
        match listener.accept().await {
            Ok((client, _)) => {
                let (network, program_ended) = (network.clone(), program_ended.clone());
                // It outlives its listener: `Forwarding::end` waits for its permit.
                tokio::spawn(async move {
                    let _permit = permit;
                    if let Err(error) = relay(client, port, network, program_ended).await {
                        tracing::debug!(port, %error, "a connection to a container ended");
                    }
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn relay(
    mut client: TcpStream,
    port: u16,
    network: Arc<OwnedFd>,
    program_ended: CancellationToken,
) -> io::Result<()> {
    let connected = spawn_blocking(move || {
        // This thread stays there. It makes no connection of the supervisor itself.
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        StdTcpStream::connect_timeout(&address, CONNECT)
    });
    let program = connected.await.map_err(io::Error::other)??;
    program.set_nonblocking(true)?;
    let mut program = TcpStream::from_std(program)?;
    let (mut requests, mut to_client) = client.split();
    let (mut answers, mut to_program) = program.split();
    let requested = async {
        // After an error, too: a program that reads no more may still answer.
        let _ = copy(&mut requests, &mut to_program).await;
        let _ = to_program.shutdown().await;
    };
    let requested = program_ended.run_until_cancelled(requested);
    let answered = async {
        copy(&mut answers, &mut to_client).await?;
        to_client.shutdown().await
    };
    let (_, answered) = tokio::join!(requested, answered);
    answered
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::{pending, poll_fn},
        pin::pin,
        task::Poll,
    };
    use tokio::task::yield_now;

    #[tokio::test]
    async fn end_closes_listeners_and_waits_for_connections() {
        let mut forwarding = Forwarding::new();
        let permits = forwarding.connections.permits.clone();
        let of_listener = permits.clone().try_acquire_owned().expect("free");
        forwarding.listeners.spawn(async move {
            let _permit = of_listener;
            pending().await
        });
        let connection = permits.clone().try_acquire_owned().expect("free");
        let mut end = pin!(forwarding.end());
        for _ in 0..100 {
            let is_over = poll_fn(|context| Poll::Ready(end.as_mut().poll(context).is_ready()));
            assert!(!is_over.await, "a connection is open");
            yield_now().await;
        }
        drop(connection);
        end.await;
    }
}
