//! An HTTP client of thirty lines: one request, one connection.

use super::DEADLINE;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
};

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    /// Status line and headers, in lower case.
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Sends one request for a URL, from an address where there are several; an error when nobody
/// answers, or the answer breaks off.
pub fn request(method: &str, url: &str, from: Option<Ipv4Addr>) -> std::io::Result<Answer> {
    let rest = url.strip_prefix("http://").expect("an HTTP URL");
    let (host, path) = rest.split_once('/').expect("a path");
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    if let Some(from) = from {
        socket.bind(&SocketAddr::from((from, 0)).into())?;
    }
    let server: SocketAddr = host.parse().expect("an address and a port");
    socket.connect(&server.into())?;
    let mut stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(DEADLINE))?;
    write!(stream, "{method} /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let broken = || std::io::Error::other("the answer broke off");
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").ok_or_else(broken)?;
    let body = answer.split_off(end + 4);
    let head = String::from_utf8_lossy(&answer).to_lowercase();
    let status =
        head.split(' ').nth(1).and_then(|status| status.parse().ok()).ok_or_else(broken)?;
    let answer = Answer { status, head, body };
    let length = answer.header("content-length").and_then(|length| length.parse::<usize>().ok());
    if method != "HEAD" && length.is_some_and(|length| length != answer.body.len()) {
        return Err(broken());
    }
    Ok(answer)
}
