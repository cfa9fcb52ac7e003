//! The load of scripts: connections in one thread, each from an address that belongs to one machine.
//! A machine has a rate of requests by its address, so that `wrk`, which has one address, cannot
//! make this load.

use super::PORT;
use crate::frame::SERVER;
use anyhow::Context as _;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use socket2::{Domain, SockAddr, Socket, Type};
use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddrV4, TcpStream},
    time::{Duration, Instant},
};

/// Longest wait for any response.
const SILENCE: Duration = Duration::from_secs(10);
/// Maximum size of a response in bytes.
const MAX_RESPONSE: usize = 64 << 10;

/// A connection with one request in flight.
struct Connection {
    stream: TcpStream,
    request: Vec<u8>,
    response: Vec<u8>,
}

/// Repeats each request on a connection from its address. Returns responses per second. An error if
/// a response is not `200 OK`.
pub fn run(requests: &[(Ipv4Addr, String)], time: Duration) -> anyhow::Result<f64> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let mut connections = Vec::new();
    for (at, (address, path)) in requests.iter().enumerate() {
        let mut connection = Connection::open(*address, path)?;
        epoll.add(&connection.stream, EpollEvent::new(EpollFlags::EPOLLIN, at as u64))?;
        connection.send()?;
        connections.push(connection);
    }
    let start = Instant::now();
    let mut count = 0_u64;
    let mut events = [EpollEvent::empty(); 256];
    let mut buffer = vec![0; MAX_RESPONSE];
    while start.elapsed() < time {
        let ready = epoll.wait(&mut events, EpollTimeout::try_from(SILENCE)?)?;
        anyhow::ensure!(ready > 0, "no response within {SILENCE:?}");
        for event in &events[..ready] {
            let connection = &mut connections[event.data() as usize];
            if connection.receive(&mut buffer)? {
                count += 1;
                connection.send()?;
            }
        }
    }
    Ok(count as f64 / start.elapsed().as_secs_f64())
}

impl Connection {
    fn open(address: Ipv4Addr, path: &str) -> anyhow::Result<Self> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind(&SockAddr::from(SocketAddrV4::new(address, 0)))?;
        let server = SockAddr::from(SocketAddrV4::new(SERVER, PORT));
        socket.connect_timeout(&server, SILENCE).context("connect to the server")?;
        let stream = TcpStream::from(socket);
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let request = format!("GET {path} HTTP/1.1\r\nHost: {SERVER}\r\n\r\n").into_bytes();
        Ok(Connection { stream, request, response: Vec::new() })
    }

    fn send(&mut self) -> anyhow::Result<()> {
        self.response.clear();
        // It is shorter than any send buffer, which is empty.
        self.stream.write_all(&self.request).context("send a request")
    }

    /// Receives a part of the response. Returns true if it is complete.
    fn receive(&mut self, buffer: &mut [u8]) -> anyhow::Result<bool> {
        let length = self.stream.read(buffer).context("receive a response")?;
        anyhow::ensure!(length > 0, "the server closed a connection");
        self.response.extend_from_slice(&buffer[..length]);
        anyhow::ensure!(self.response.len() <= MAX_RESPONSE, "a response is too long");
        let Some(head) = self.response.windows(4).position(|end| end == b"\r\n\r\n") else {
            return Ok(false);
        };
        let text = std::str::from_utf8(&self.response[..head])?;
        anyhow::ensure!(text.starts_with("HTTP/1.1 200 "), "refused: {text}");
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().ok())?
        });
        Ok(self.response.len() >= head + 4 + length.context("no Content-Length")?)
    }
}
