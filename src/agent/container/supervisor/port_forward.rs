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
    pin::pin,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
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
/// the restart of the program for this time.
const LAST_ANSWERS: Duration = Duration::from_secs(5);
/// Time for a client to close its connection after the last answer of a program that has ended.
const CLIENT_CLOSE: Duration = Duration::from_secs(1);
/// Bytes of a request that are forwarded at a time.
const PIECE: usize = 16 * 1024;
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
    /// Cancelled when the program has ended.
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

/// Forwards connections. `network` is the network namespace of the replica; `None` if its program has
/// ended.
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
                // A connection outlives its listener: `Forwarding::end` waits for the permit.
                tokio::spawn(async move {
                    let _permit = permit;
                    let relayed = async {
                        let program = connect(port, network).await?;
                        relay(client, program, &program_ended).await
                    };
                    if let Err(error) = relayed.await {
                        tracing::debug!(port, %error, "a connection to a container ended");
                    }
                });
            }
            Err(_) => sleep(PAUSE).await,
        }
    }
}

async fn connect(port: u16, network: Arc<OwnedFd>) -> io::Result<TcpStream> {
    let connected = spawn_blocking(move || {
        // This thread stays there. It makes no connection of the supervisor itself.
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        StdTcpStream::connect_timeout(&address, CONNECT)
    });
    let program = connected.await.map_err(io::Error::other)??;
    program.set_nonblocking(true)?;
    TcpStream::from_std(program)
}

/// Forwards both directions of a connection, until both have ended or one has failed.
async fn relay(
    mut client: TcpStream,
    mut program: TcpStream,
    program_ended: &CancellationToken,
) -> io::Result<()> {
    let (mut from_client, mut to_client) = client.split();
    let (mut from_program, mut to_program) = program.split();
    let requests = async {
        let mut buffer = vec![0; PIECE];
        let mut takes = true;
        loop {
            let length = from_client.read(&mut buffer).await?;
            if length == 0 {
                break;
            }
            // A program that reads no more may have answered. Unread bytes of the client would reset
            // the connection, and lose the answer.
            takes = takes && to_program.write_all(&buffer[..length]).await.is_ok();
        }
        let _ = to_program.shutdown().await;
        Ok(())
    };
    let answers = async {
        copy(&mut from_program, &mut to_client).await?;
        to_client.shutdown().await
    };
    let (mut requests, mut answers) = (pin!(requests), pin!(answers));
    let rest = tokio::select! {
        ended = &mut requests => {
            ended?;
            return answers.await;
        }
        ended = &mut answers => {
            ended?;
            requests
        }
    };
    let given_up = async {
        program_ended.cancelled().await;
        sleep(CLIENT_CLOSE).await;
    };
    tokio::select! {
        ended = rest => ended,
        () = given_up => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::set_socket_linger;
    use std::future::{pending, poll_fn};
    use std::task::Poll;
    use tokio::task::yield_now;

    /// How long a test waits for what must happen.
    const DEADLINE: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn end_closes_listeners_and_waits_for_connections() {
        let mut forwarding = Forwarding::new();
        let permits = forwarding.connections.permits.clone();
        let of_listener = permits.clone().try_acquire_owned().expect("free");
        let (running, closed) = tokio::sync::oneshot::channel::<()>();
        forwarding.listeners.spawn(async move {
            let _of_task = (of_listener, running);
            pending().await
        });
        let connection = permits.clone().try_acquire_owned().expect("free");
        let mut end = pin!(forwarding.end());
        let mut is_over =
            async || poll_fn(|context| Poll::Ready(end.as_mut().poll(context).is_ready())).await;
        assert!(!is_over().await);
        closed.await.expect_err("the listener ends first");
        for _ in 0..100 {
            assert!(!is_over().await, "a connection is open");
            yield_now().await;
        }
        drop(connection);
        assert!(is_over().await, "nothing is open");
    }

    /// A client and a program with a relay between them. `ended` is its result.
    struct Relayed {
        client: TcpStream,
        program: TcpStream,
        program_ended: CancellationToken,
        ended: tokio::task::JoinHandle<io::Result<()>>,
    }

    impl Relayed {
        async fn new() -> Self {
            let [(client, near), (far, program)] = [pair().await, pair().await];
            let program_ended = CancellationToken::new();
            let token = program_ended.clone();
            let ended = tokio::spawn(async move { relay(near, far, &token).await });
            Relayed { client, program, program_ended, ended }
        }
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bound");
        let client = TcpStream::connect(listener.local_addr().expect("bound")).await;
        (client.expect("connected"), listener.accept().await.expect("accepted").0)
    }

    /// Closes with a reset.
    fn reset(stream: TcpStream) {
        set_socket_linger(&stream, Some(Duration::ZERO)).expect("set");
    }

    #[tokio::test]
    async fn reset_of_one_side_ends_the_other() {
        let Relayed { mut client, program, ended, .. } = Relayed::new().await;
        reset(program);
        let read = timeout(DEADLINE, client.read(&mut [0; 8])).await.expect("it ends");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        ended.await.expect("no panic").expect_err("a reset");

        let Relayed { client, mut program, ended, .. } = Relayed::new().await;
        reset(client);
        let read = timeout(DEADLINE, program.read(&mut [0; 8])).await.expect("it ends");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
        ended.await.expect("no panic").expect_err("a reset");
    }

    #[tokio::test]
    async fn each_direction_ends_by_itself() {
        let Relayed { mut client, mut program, ended, .. } = Relayed::new().await;
        client.write_all(b"request").await.expect("sent");
        client.shutdown().await.expect("half closed");
        let mut request = Vec::new();
        program.read_to_end(&mut request).await.expect("read");
        program.write_all(b"answer").await.expect("sent");
        drop(program);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("read");
        assert_eq!((&*request, &*answer), (&b"request"[..], &b"answer"[..]));
        timeout(DEADLINE, ended).await.expect("it ends").expect("no panic").expect("no error");
    }

    #[tokio::test]
    async fn client_that_still_sends_reads_the_answer_of_an_ended_program() {
        let Relayed { mut client, mut program, program_ended, ended } = Relayed::new().await;
        program.write_all(b"answer").await.expect("sent");
        drop(program);
        program_ended.cancel();
        for _ in 0..64 {
            client.write_all(&[0; 1024]).await.expect("sent");
            yield_now().await;
        }
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.expect("no reset");
        assert_eq!(answer, b"answer");
        // The client keeps its side open.
        timeout(DEADLINE, ended).await.expect("it ends").expect("no panic").expect("no error");
    }
}
