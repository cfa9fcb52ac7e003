//! The floods: what one host on the boot LAN can send without end.

use super::frames::{DECLINE, DISCOVER, Packet, RELEASE, REQUEST, Wire};
use meshd_types::MacAddr;
use socket2::{Domain, Socket, Type};
use std::{
    io::{self, Write as _},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long one connection or answer may take.
const TIMEOUT: Duration = Duration::from_secs(2);
/// TFTP transfers that stall at a time: more than meshd serves.
const TRANSFERS: usize = 4_200;
/// Unknown machines that request scripts, each with a card and an address of its own.
pub const UNKNOWN: u8 = 48;
/// The range that the rack leases.
const POOL: (u8, u8) = (100, 200);

/// One kind of flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flood {
    /// DISCOVER and RELEASE of invented machines.
    DiscoverRelease,
    /// DISCOVER, REQUEST and DECLINE of invented machines.
    Decline,
    /// Junk in the names of the rack's own machines.
    Junk,
    /// TFTP transfers that stall after the OACK.
    Transfers,
    /// Scripts for machines that nobody approved.
    Scripts,
    /// Idle connections to the agent API.
    AgentConnections,
    /// Idle connections to the boot API.
    BootConnections,
}

impl Flood {
    pub const ALL: [Self; 7] = [
        Self::DiscoverRelease,
        Self::Decline,
        Self::Junk,
        Self::Transfers,
        Self::Scripts,
        Self::AgentConnections,
        Self::BootConnections,
    ];
}

/// The host that floods.
pub struct Attacker<'a> {
    pub central: Ipv4Addr,
    /// The central node's card.
    pub mac: MacAddr,
    /// Cards of the rack's own machines.
    pub victims: &'a [MacAddr],
    /// Connections that it holds at most.
    pub connections: usize,
    pub stop: &'a AtomicBool,
}

/// At most so many in a second; 50 at a time, for a timer is not exact.
struct Pace {
    began: Instant,
    each: Duration,
    sent: u32,
}

impl Pace {
    fn of(per_second: u32) -> Self {
        Pace { began: Instant::now(), each: Duration::from_secs(1) / per_second, sent: 0 }
    }

    fn next(&mut self) {
        self.sent += 1;
        if self.sent.is_multiple_of(50) {
            let due = self.began + self.each * self.sent;
            thread::park_timeout(due.saturating_duration_since(Instant::now()));
        }
    }
}

impl Attacker<'_> {
    /// Floods until it is stopped; returns how much it sent.
    pub fn run(&self, flood: Flood) -> io::Result<u64> {
        match flood {
            Flood::DiscoverRelease => self.invented(&[DISCOVER, RELEASE], 3_000),
            Flood::Decline => self.invented(&[DISCOVER, REQUEST, DECLINE], 3_000),
            Flood::Junk => self.junk(),
            Flood::Transfers => self.transfers(),
            Flood::Scripts => self.scripts(),
            Flood::AgentConnections => self.idle(8443),
            Flood::BootConnections => self.idle(8080),
        }
    }

    fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    fn address(&self, number: u64) -> Ipv4Addr {
        let [a, b, c, _] = self.central.octets();
        let first = u64::from(POOL.0);
        let last = u64::from(POOL.1);
        Ipv4Addr::new(
            a,
            b,
            c,
            u8::try_from(first + number % (last - first + 1)).expect("within the pool"),
        )
    }

    /// Each exchange is of another machine, in frames from that machine's address.
    fn invented(&self, kinds: &[u8], per_second: u32) -> io::Result<u64> {
        let wire = Wire::open("eth0")?;
        let mut pace = Pace::of(per_second);
        let mut number = 0_u64;
        while self.goes_on() {
            let [.., a, b, c, d] = number.to_be_bytes();
            let mac = MacAddr([2, 0x66, a, b, c, d]);
            for &kind in kinds {
                let address = self.address(number);
                wire.send(&Packet {
                    kind,
                    chaddr: mac,
                    ethernet: mac,
                    to: self.mac,
                    address,
                    server: self.central,
                })?;
                pace.next();
            }
            number += 1;
        }
        Ok(u64::from(pace.sent))
    }

    fn junk(&self) -> io::Result<u64> {
        let wire = Wire::open("eth0")?;
        let mut pace = Pace::of(200 * u32::try_from(self.victims.len()).expect("few machines"));
        while self.goes_on() {
            for &chaddr in self.victims {
                for kind in [DISCOVER, REQUEST, DECLINE, RELEASE] {
                    let address = self.address(u64::from(pace.sent));
                    wire.send(&Packet {
                        kind,
                        chaddr,
                        ethernet: wire.mac(),
                        to: self.mac,
                        address,
                        server: self.central,
                    })?;
                    pace.next();
                }
            }
        }
        Ok(u64::from(pace.sent))
    }

    /// Keeps as many transfers as it can at their first block; a transfer that meshd gave up is
    /// begun anew.
    fn transfers(&self) -> io::Result<u64> {
        let mut open_sockets = std::collections::VecDeque::new();
        let mut pace = Pace::of(500);
        while self.goes_on() {
            pace.next();
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
            socket.set_read_timeout(Some(TIMEOUT))?;
            socket.send_to(
                b"\0\x01undionly.kpxe\0octet\0blksize\x008\0timeout\x0060\0",
                (self.central, 69),
            )?;
            if let Ok((_, from)) = socket.recv_from(&mut [0; 64]) {
                socket.send_to(&[0, 4, 0, 0], from)?;
            }
            open_sockets.push_back(socket);
            if open_sockets.len() > TRANSFERS.min(self.connections) {
                open_sockets.pop_front();
            }
        }
        Ok(u64::from(pace.sent))
    }

    /// `UNKNOWN` cards, each with a lease that it took itself, ask for scripts of ever new
    /// machines.
    fn scripts(&self) -> io::Result<u64> {
        let mut open_sockets = std::collections::VecDeque::new();
        let mut pace = Pace::of(100);
        let mut cards = Vec::new();
        for number in 0..UNKNOWN {
            let interface = format!("m{number}");
            let wire = Wire::open(&interface)?;
            let mac = wire.mac();
            let address = unknown_address(self.central, number);
            for kind in [DISCOVER, REQUEST] {
                wire.send(&Packet {
                    kind,
                    chaddr: mac,
                    ethernet: mac,
                    to: self.mac,
                    address,
                    server: self.central,
                })?;
                thread::park_timeout(Duration::from_millis(20));
            }
            cards.push((interface, mac, address));
        }
        while self.goes_on() {
            let (interface, mac, address) = &cards[pace.sent as usize % cards.len()];
            pace.next();
            let mac_hex = mac.to_string().replace(':', "");
            let uuid = format!("66000000-0000-4000-8000-{:012x}", u64::from(pace.sent) % 4096);
            let query = format!(
                "mac={mac}&uuid={uuid}&serial=X{mac_hex}&arch=x86_64&manufacturer=X&product=Y"
            );
            if let Ok(stream) = self.ask_from(interface, *address, &format!("/boot/script?{query}"))
            {
                open_sockets.push_back(stream);
            }
            if open_sockets.len() > 512 {
                open_sockets.pop_front();
            }
        }
        Ok(u64::from(pace.sent))
    }

    fn ask_from(&self, interface: &str, address: Ipv4Addr, path: &str) -> io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind_device(Some(interface.as_bytes()))?;
        socket.bind(&SocketAddr::from((address, 0)).into())?;
        socket.connect_timeout(&SocketAddrV4::new(self.central, 8080).into(), TIMEOUT)?;
        let mut stream = TcpStream::from(socket);
        write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")?;
        Ok(stream)
    }

    /// Holds as many connections as it can; those that meshd closed are opened anew.
    fn idle(&self, port: u16) -> io::Result<u64> {
        let to = SocketAddr::from((self.central, port));
        let mut open_sockets = std::collections::VecDeque::new();
        let mut pace = Pace::of(2_000);
        while self.goes_on() {
            pace.next();
            if let Ok(stream) = TcpStream::connect_timeout(&to, TIMEOUT) {
                open_sockets.push_back(stream);
            }
            if open_sockets.len() >= self.connections {
                open_sockets.pop_front();
            }
        }
        Ok(u64::from(pace.sent))
    }
}

/// The address that an unknown machine takes: from the end of the pool.
pub fn unknown_address(central: Ipv4Addr, number: u8) -> Ipv4Addr {
    let [a, b, c, _] = central.octets();
    Ipv4Addr::new(a, b, c, POOL.1 - number)
}
