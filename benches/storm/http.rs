//! One HTTP/1.1 exchange over any stream, as small as iPXE's.

use crate::fault::Fault;
use std::time::Duration;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

/// How long one exchange may take; bulk over a full wire takes minutes.
const PATIENCE: Duration = Duration::from_secs(120);
/// Largest head of an answer, in bytes.
const MAX_HEAD: usize = 4096;

/// Sends a request and gives the body; any status but 200 is a fault.
pub async fn exchange<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    method: &str,
    host: &str,
    path: &str,
    body: &[u8],
) -> Result<Vec<u8>, Fault> {
    let head = match body.len() {
        0 => format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\n\r\n"),
        length => format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
        ),
    };
    let exchange = async {
        stream.write_all(&[head.as_bytes(), body].concat()).await?;
        answer(stream).await
    };
    timeout(PATIENCE, exchange).await.map_err(|_| Fault::Http("no answer in time".to_owned()))?
}

async fn answer<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::with_capacity(1024);
    let end = loop {
        let before = bytes.len();
        if stream.read_buf(&mut bytes).await? == 0 {
            return Err(Fault::Http("the connection closed".to_owned()));
        }
        if let Some(end) = find(&bytes[before.saturating_sub(3)..]) {
            break before.saturating_sub(3) + end + 4;
        }
        if bytes.len() > MAX_HEAD {
            return Err(Fault::Http("an endless head".to_owned()));
        }
    };
    let mut body = bytes.split_off(end);
    let head = String::from_utf8_lossy(&bytes);
    let status = head.split(' ').nth(1).unwrap_or_default();
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    let length = length.ok_or_else(|| Fault::Http(format!("status {status} without a length")))?;
    let rest = length.saturating_sub(body.len());
    body.reserve(rest);
    if (&mut *stream).take(rest as u64).read_to_end(&mut body).await? < rest {
        return Err(Fault::Http("a body that broke off".to_owned()));
    }
    match status {
        "200" => Ok(body),
        other => Err(Fault::Http(format!("status {other}"))),
    }
}

fn find(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|window| window == b"\r\n\r\n")
}
