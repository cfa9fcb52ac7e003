//! Uses the boot services of one interface as a machine would: TFTP, HTTP and the TLS handshake of
//! the agent API.
//!
//! A service can be deaf while its process lives, so `meshd doctor` and `/healthz` report results
//! of requests. The requests run at a fixed interval, so no client can cause them. DHCP is not
//! among them: a host's own frames reach only packet sockets for all protocols. Such a receiver
//! would also take frames of other VLANs as its own, and frames that a packet filter of the host
//! drops. The DHCP task itself therefore reports its receiver, and whether leases are stored.

use meshd_central::Shared;
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    version::TLS13,
};
use std::{
    future::Future,
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpStream, UdpSocket},
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

/// Interval of the checks.
const INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of one request.
const TIMEOUT: Duration = Duration::from_secs(3);
/// Requests until a service counts as deaf: a single packet may be lost.
const ATTEMPTS: usize = 2;
/// A loader that every site has.
const LOADER: &str = "undionly.kpxe";
/// Port of TFTP requests.
const TFTP_PORT: u16 = 69;
/// Size of a TFTP block without options, and of its header.
const BLOCK: usize = 512;
const BLOCK_HEADER: usize = 4;
/// ERROR packet (RFC 1350) that ends a transfer after its first block.
const END_OF_TRANSFER: &[u8] = b"\0\x05\0\0self-test\0";

/// The boot services of one interface.
#[derive(Clone, Debug)]
pub struct ServedInterface {
    pub name: String,
    /// The server address of the services.
    pub address: Ipv4Addr,
    pub http_port: u16,
    pub agent_port: u16,
}

/// Checks all services until `shutdown`, and reports the results to the central node.
pub async fn run(central: Shared, served: ServedInterface, shutdown: CancellationToken) {
    let mut ticks = interval(INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while shutdown.run_until_cancelled(ticks.tick()).await.is_some() {
        let checked = async {
            tokio::join!(
                fault(|| first_block(&central, served.address)),
                fault(|| http(served.address, served.http_port)),
                fault(|| handshake(&central, served.address, served.agent_port)),
            )
        };
        let Some((tftp, http, agent)) = shutdown.run_until_cancelled(checked).await else { return };
        for (service, fault) in [("TFTP", tftp), ("HTTP", http), ("agent API", agent)] {
            if let Some(fault) = &fault {
                tracing::warn!(interface = served.name, address = %served.address, service, fault, "a boot service does not answer");
            }
            central.boot.report_service(service, &served.name, fault);
        }
    }
}

/// Returns the last error if all attempts fail.
async fn fault<F: Future<Output = Result<(), String>>>(request: impl Fn() -> F) -> Option<String> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        match timeout(TIMEOUT, request()).await {
            Ok(Ok(())) => return None,
            Ok(Err(error)) => last = Some(error),
            Err(_) => last = Some(format!("no answer within {} s", TIMEOUT.as_secs())),
        }
    }
    last
}

fn failed(operation: &str) -> impl Fn(std::io::Error) -> String {
    move |error| format!("{operation}: {error}")
}

/// Reads the first block of a loader by TFTP.
async fn first_block(central: &Shared, address: Ipv4Addr) -> Result<(), String> {
    let Some(loader) = central.boot.loader(LOADER) else { return Ok(()) };
    let socket =
        UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await.map_err(failed("open a UDP port"))?;
    let request = [b"\0\x01", LOADER.as_bytes(), b"\0octet\0"].concat();
    socket.send_to(&request, (address, TFTP_PORT)).await.map_err(failed("send a request"))?;
    let mut buffer = [0; BLOCK_HEADER + BLOCK];
    let (length, server) =
        socket.recv_from(&mut buffer).await.map_err(failed("receive a block"))?;
    let _ = socket.send_to(END_OF_TRANSFER, server).await;
    let block = buffer.get(BLOCK_HEADER..length).unwrap_or_default();
    let is_first =
        buffer.starts_with(&[0, 3, 0, 1]) && !block.is_empty() && loader.starts_with(block);
    if is_first { Ok(()) } else { Err(format!("the first block of {LOADER} is wrong")) }
}

/// Sends a request to the boot API. Any answer shows that it serves.
async fn http(address: Ipv4Addr, port: u16) -> Result<(), String> {
    let mut stream = TcpStream::connect((address, port)).await.map_err(failed("connect"))?;
    let at = SocketAddrV4::new(address, port);
    let request = format!("HEAD /boot.ipxe HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(failed("send a request"))?;
    let mut start = [0; 9];
    stream.read_exact(&mut start).await.map_err(failed("receive an answer"))?;
    if start.starts_with(b"HTTP/1.1 ") { Ok(()) } else { Err("the answer is not HTTP".to_owned()) }
}

/// Performs a TLS handshake with the agent API, and verifies its certificate as a node does.
async fn handshake(central: &Shared, address: Ipv4Addr, port: u16) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    let authority = central.enrolment.authority();
    roots.add_parsable_certificates(
        CertificateDer::pem_slice_iter(authority.roots_pem().as_bytes()).flatten(),
    );
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| error.to_string())?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(meshd_proto::SERVER_NAME).map_err(|error| error.to_string())?;
    let stream = TcpStream::connect((address, port)).await.map_err(failed("connect"))?;
    TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .map_err(failed("TLS handshake"))?;
    Ok(())
}
