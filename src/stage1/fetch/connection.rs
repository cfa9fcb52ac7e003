//! One request over TCP, with a timeout for each step.

use super::{
    response::{MAX_HEAD, ResponseError, ResponseHead},
    url::HttpUrl,
};
use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Time for a connection.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Longest time for a head: a server that sends it byte by byte is left for another.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// A response whose body is read from the connection.
pub struct Connection {
    stream: TcpStream,
    /// First bytes of the body, which arrived with the head.
    pub first: Vec<u8>,
    pub head: ResponseHead,
}

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error("connect: {0}")]
    Connect(io::Error),
    #[error("send the request: {0}")]
    Send(io::Error),
    #[error("read the response: {0}")]
    Read(io::Error),
    #[error("read the response: the server closed the connection")]
    Closed,
    #[error("read the response: {0}")]
    Response(#[from] ResponseError),
}

impl Connection {
    /// Sends a GET, from a position on, and reads the head of the response. `idle` is the longest
    /// time without a byte.
    pub fn get(url: &HttpUrl, from: u64, idle: Duration) -> Result<Self, RequestError> {
        let server = SocketAddr::V4(url.server());
        let mut stream =
            TcpStream::connect_timeout(&server, CONNECT_TIMEOUT).map_err(RequestError::Connect)?;
        stream.set_read_timeout(Some(idle)).map_err(RequestError::Connect)?;
        stream.set_write_timeout(Some(idle)).map_err(RequestError::Connect)?;
        stream.write_all(request(url, from).as_bytes()).map_err(RequestError::Send)?;
        let (head, first) = read_head(&mut stream)?;
        Ok(Connection { stream, first, head })
    }

    /// Reads bytes of the body; 0 at its end.
    pub fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        read(&mut self.stream, into)
    }
}

/// Reads a head. Returns it with the first bytes of the body.
pub(super) fn read_head(stream: &mut TcpStream) -> Result<(ResponseHead, Vec<u8>), RequestError> {
    let begin = Instant::now();
    let mut bytes = Vec::with_capacity(4096);
    loop {
        if let Some((head, end)) = ResponseHead::parse(&bytes)? {
            let first = bytes.split_off(end);
            return Ok((head, first));
        }
        if begin.elapsed() > HEAD_TIMEOUT {
            return Err(RequestError::Read(io::ErrorKind::TimedOut.into()));
        }
        let mut piece = [0; 4096];
        let count = match read(stream, &mut piece) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset && bytes.is_empty() => 0,
            Err(error) => return Err(RequestError::Read(error)),
        };
        if count == 0 {
            return Err(RequestError::Closed);
        }
        bytes.extend_from_slice(&piece[..count]);
        debug_assert!(bytes.len() <= MAX_HEAD + piece.len());
    }
}

/// Reads from a stream with a timeout. The kernel does not restart such a read after a signal.
pub(super) fn read(stream: &mut TcpStream, into: &mut [u8]) -> io::Result<usize> {
    loop {
        match stream.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

fn request(url: &HttpUrl, from: u64) -> String {
    let range = if from == 0 { String::new() } else { format!("Range: bytes={from}-\r\n") };
    format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: meshd-stage1\r\n{range}Connection: close\r\n\r\n",
        url.path(),
        url.server(),
    )
}
