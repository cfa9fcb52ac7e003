//! Over loopback, with a client of a few lines: real sockets, the real service.

use crate::{
    MAX_BLOCK,
    driver::{Sockets, TftpError, serve},
    files::Files,
};
use bytes::Bytes;
use std::{
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};
use tokio::{net::UdpSocket, sync::mpsc, task::JoinHandle, time::timeout};
use tokio_util::sync::CancellationToken;

const DEADLINE: Duration = Duration::from_secs(60);
pub(super) static KERNEL: [u8; 5000] = [7; 5000];

/// Names and contents of two files; records who completed one.
struct TwoFiles {
    completed: mpsc::UnboundedSender<(Ipv4Addr, &'static str)>,
}

impl Files for TwoFiles {
    type Id = &'static str;

    fn open(&self, name: &str) -> Option<(Bytes, &'static str)> {
        match name {
            "undionly.kpxe" => Some((Bytes::from(vec![42; 4 * usize::from(MAX_BLOCK)]), "loader")),
            "images/kernel" => Some((Bytes::from_static(&KERNEL), "kernel")),
            _ => None,
        }
    }

    async fn completed(&self, client: Ipv4Addr, file: &'static str) {
        let _ = self.completed.send((client, file));
    }
}

pub(super) struct World {
    pub(super) server: SocketAddr,
    pub(super) completed: mpsc::UnboundedReceiver<(Ipv4Addr, &'static str)>,
    shutdown: CancellationToken,
    task: JoinHandle<Result<(), TftpError>>,
}

pub(super) fn world() -> World {
    let (sender, completed) = mpsc::unbounded_channel();
    let sockets =
        Sockets::bind(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("loopback can be bound");
    let server = sockets.local_addr().expect("it is bound");
    let shutdown = CancellationToken::new();
    let task = tokio::spawn(serve(
        Arc::new(TwoFiles { completed: sender }),
        Arc::new(()),
        sockets,
        shutdown.clone(),
    ));
    World { server, completed, shutdown, task }
}

/// One answer: opcode, and what follows it.
struct Client(UdpSocket);

impl Client {
    async fn ask(server: SocketAddr, opcode: u8, name: &str, options: &[&str]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
        let mut packet = vec![0, opcode];
        for text in [name, "octet"].iter().chain(options) {
            packet.extend_from_slice(text.as_bytes());
            packet.push(0);
        }
        socket.send_to(&packet, server).await.expect("loopback takes it");
        Client(socket)
    }

    async fn answer(&self) -> (u16, Vec<u8>, SocketAddr) {
        let mut buffer = [0; 4096];
        let (length, from) = timeout(DEADLINE, self.0.recv_from(&mut buffer))
            .await
            .expect("an answer")
            .expect("a readable socket");
        (u16::from_be_bytes([buffer[0], buffer[1]]), buffer[2..length].to_vec(), from)
    }

    async fn ack(&self, to: SocketAddr, block: u16) {
        let [high, low] = block.to_be_bytes();
        self.0.send_to(&[0, 4, high, low], to).await.expect("loopback takes it");
    }

    /// Reads to the end, acknowledging each block.
    async fn read(&self, block_size: usize) -> Vec<u8> {
        let mut all = Vec::new();
        let mut next = 1u16;
        loop {
            let (opcode, body, from) = self.answer().await;
            match opcode {
                6 => self.ack(from, 0).await,
                3 => {
                    let (number, data) = body.split_first_chunk::<2>().expect("a block number");
                    self.ack(from, u16::from_be_bytes(*number)).await;
                    // A server that has waited long sends a block again.
                    if u16::from_be_bytes(*number) != next {
                        continue;
                    }
                    next += 1;
                    all.extend_from_slice(data);
                    if data.len() < block_size {
                        return all;
                    }
                }
                other => panic!("opcode {other}: {:?}", String::from_utf8_lossy(&body)),
            }
        }
    }
}

#[tokio::test]
async fn loader_download_with_options_is_complete_and_reported() {
    let mut world = world();
    let options = ["blksize", "9000", "tsize", "0", "windowsize", "64", "timeout", "2"];
    let client = Client::ask(world.server, 1, "undionly.kpxe", &options).await;
    let (opcode, body, from) = client.answer().await;
    let text = String::from_utf8_lossy(&body).replace('\0', " ");
    assert_eq!((opcode, text.trim()), (6, "blksize 1468 timeout 2 tsize 5872 windowsize 64"));
    client.ack(from, 0).await;
    assert_eq!(client.read(usize::from(MAX_BLOCK)).await, vec![42; 5872]);
    let completed = timeout(DEADLINE, world.completed.recv()).await.expect("a report");
    assert_eq!(completed, Some((Ipv4Addr::LOCALHOST, "loader")));
}

#[tokio::test]
async fn file_download_without_options_is_complete_and_reported() {
    let mut world = world();
    let client = Client::ask(world.server, 1, "images/kernel", &[]).await;
    assert_eq!(client.read(512).await, KERNEL);
    let completed = timeout(DEADLINE, world.completed.recv()).await.expect("a report");
    assert_eq!(completed, Some((Ipv4Addr::LOCALHOST, "kernel")));
}

#[tokio::test]
async fn aborted_size_probe_is_not_reported_and_blocks_no_client() {
    let mut world = world();
    let probe =
        Client::ask(world.server, 1, "undionly.kpxe", &["tsize", "0", "blksize", "1468"]).await;
    let (_, _, from) = probe.answer().await;
    probe.0.send_to(b"\0\x05\0\x08abort\0", from).await.expect("loopback takes it");
    let client = Client::ask(world.server, 1, "undionly.kpxe", &["blksize", "1468"]).await;
    assert_eq!(client.read(usize::from(MAX_BLOCK)).await.len(), 5872);
    assert!(timeout(DEADLINE, world.completed.recv()).await.is_ok());
    assert!(world.completed.try_recv().is_err(), "only the second client fetched it");
}

#[tokio::test]
async fn unknown_names_and_writes_are_refused() {
    let world = world();
    for name in ["../undionly.kpxe", "//undionly.kpxe", "etc/passwd", "", "/"] {
        let (opcode, body, _) = Client::ask(world.server, 1, name, &[]).await.answer().await;
        assert_eq!((opcode, &body[..2]), (5, [0, 1].as_slice()), "{name:?}");
    }
    let (opcode, body, _) = Client::ask(world.server, 2, "undionly.kpxe", &[]).await.answer().await;
    assert_eq!((opcode, &body[..2]), (5, [0, 2].as_slice()), "a write is refused");
}

#[tokio::test]
async fn service_shuts_down_during_transfer() {
    let world = world();
    Client::ask(world.server, 1, "undionly.kpxe", &[]).await.answer().await;
    world.shutdown.cancel();
    let ended = timeout(DEADLINE, world.task).await.expect("it ends").expect("it does not panic");
    assert!(ended.is_ok());
}
