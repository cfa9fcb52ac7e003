//! Those who talk to meshd while it is killed: an operator at the socket, an agent that enrols. Any
//! of them may be cut off.

use crate::world::{CENTRAL, World};
use meshd_proto::{ENROL_PATH, EnrolRequest, EnrolResponse, SERVER_NAME, VERSION};
use meshd_types::{BootSessionId, NodeId, Secret};
use rcgen::{CertificateParams, KeyPair};
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned,
    pki_types::{CertificateDer, ServerName, pem::PemObject as _},
};
use serde_json::Value;
use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

/// The longest that an answer may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Sends a request, and reads an answer to its end.
fn ask(stream: &mut (impl Read + Write), request: &str) -> io::Result<(u16, String)> {
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    // Without a TLS close-notify the end is an error; whether all is there, its length says.
    let ended = stream.read_to_end(&mut answer);
    let text = String::from_utf8_lossy(&answer).into_owned();
    let broken = || ended.err().unwrap_or_else(|| io::Error::other("the answer broke off"));
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return Err(broken()) };
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
    let head = head.to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
    let body = if head.contains("\r\ntransfer-encoding: chunked") {
        whole(body)
    } else {
        Some(body.to_owned()).filter(|body| length.is_none_or(|length: usize| length == body.len()))
    };
    status.zip(body).ok_or_else(broken)
}

/// What came in chunks (RFC 9112 section 7.1), if the last one is there: a meshd that is killed
/// leaves it out.
fn whole(mut chunks: &str) -> Option<String> {
    let mut body = String::new();
    loop {
        let (size, rest) = chunks.split_once("\r\n")?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if size == 0 {
            return Some(body);
        }
        body.push_str(rest.get(..size)?);
        chunks = rest.get(size..)?.strip_prefix("\r\n")?;
    }
}

/// An operator.
pub struct Admin {
    socket: PathBuf,
}

impl Admin {
    pub fn of(world: &World) -> Self {
        Admin { socket: world.path("admin.sock") }
    }

    fn ask(&self, request: &str) -> io::Result<(u16, String)> {
        let mut stream = UnixStream::connect(&self.socket)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        ask(&mut stream, request)
    }

    /// The body of an answer, which is a success.
    pub fn get(&self, path: &str) -> io::Result<String> {
        let (status, body) =
            self.ask(&format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"))?;
        if status == 200 {
            Ok(body)
        } else {
            Err(io::Error::other(format!("{path}: {status} {body}")))
        }
    }

    pub fn json(&self, path: &str) -> io::Result<Value> {
        serde_json::from_str(&self.get(path)?).map_err(io::Error::other)
    }

    /// An order; `Ok` is its acknowledgement.
    pub fn order(&self, path: &str, body: &Value) -> io::Result<()> {
        let body = body.to_string();
        let length = body.len();
        let head = format!(
            "POST {path} HTTP/1.0\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {length}"
        );
        match self.ask(&format!("{head}\r\n\r\n{body}"))? {
            (200, _) => Ok(()),
            (status, body) => Err(io::Error::other(format!("{path}: {status} {body}"))),
        }
    }
}

/// What an overlay brought.
#[derive(Clone)]
pub struct Boot {
    pub node: NodeId,
    pub session: BootSessionId,
    pub token: String,
    pub roots_pem: String,
}

/// A fresh key's certificate request.
pub fn csr() -> String {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap()
}

/// Enrols over TLS, from inside the namespace: the serial number of the certificate, or the status
/// of a refusal.
pub fn enrol(boot: &Boot, csr_pem: &str) -> io::Result<Result<String, u16>> {
    let request = EnrolRequest {
        version: VERSION,
        node: boot.node,
        session: boot.session,
        token: Secret::new(boot.token.clone()),
        csr_pem: csr_pem.to_owned(),
    };
    let body = serde_json::to_string(&request)?;
    let mut roots = RootCertStore::empty();
    for root in CertificateDer::pem_slice_iter(boot.roots_pem.as_bytes()) {
        roots.add(root.map_err(io::Error::other)?).unwrap();
    }
    let config =
        ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
    let name = ServerName::try_from(SERVER_NAME).unwrap();
    let connection = ClientConnection::new(Arc::new(config), name).map_err(io::Error::other)?;
    let tcp = TcpStream::connect((CENTRAL.parse::<Ipv4Addr>().unwrap(), 8443))?;
    tcp.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!(
        "POST {ENROL_PATH} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}"
    );
    let (status, body) =
        ask(&mut StreamOwned::new(connection, tcp), &format!("{head}\r\n\r\n{body}"))?;
    if status != 200 {
        return Ok(Err(status));
    }
    let answer: EnrolResponse = serde_json::from_str(&body)?;
    let der = CertificateDer::from_pem_slice(answer.certificate_pem.as_bytes())
        .map_err(io::Error::other)?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der).map_err(io::Error::other)?;
    Ok(Ok(meshd_types::hex(certificate.raw_serial())))
}
