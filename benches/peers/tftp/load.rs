//! Many readers in one thread: each is a socket and a few numbers. Every block is compared with
//! what it must be.

use crate::frame::SERVER;
use anyhow::Context as _;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    time::{Duration, Instant},
};

/// When the readers stop waiting.
pub const PATIENCE: Duration = Duration::from_secs(50);
/// A reader that hears nothing says so again after this time.
const SILENCE: Duration = Duration::from_secs(1);
/// Between two looks for silent ones.
const LOOK: Duration = Duration::from_millis(200);
/// Sockets that are looked at in one go.
const EVENTS: usize = 256;
/// Received and not yet read, in bytes: a whole window.
const BUFFER: usize = 4 << 20;

/// What is read, and by how many.
pub struct Load {
    pub clients: usize,
    pub block: usize,
    pub window: usize,
    /// Each reads it so often, one after the other.
    pub rounds: usize,
}

/// What came of it.
pub struct Done {
    pub bytes: u64,
    pub time: Duration,
    /// Clients that read everything.
    pub complete: usize,
}

impl Load {
    /// Reads `name`, which must be `file`, until everyone has it or [`PATIENCE`] is over.
    pub fn run(&self, name: &str, file: &[u8]) -> anyhow::Result<Done> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let start = Instant::now();
        let mut readers = Vec::new();
        for at in 0..self.clients {
            readers.push(self.begin(&epoll, at, name)?);
        }
        let mut done = Done { bytes: 0, time: Duration::ZERO, complete: 0 };
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut buffer = vec![0; 65_536];
        let mut looked = start;
        while done.complete < self.clients && start.elapsed() < PATIENCE {
            let ready = epoll.wait(&mut events, EpollTimeout::try_from(LOOK)?)?;
            for event in &events[..ready] {
                let at = event.data() as usize;
                while let Some(length) = readers[at].receive(&mut buffer)? {
                    if !readers[at].hear(&buffer[..length], file)? {
                        if readers[at].window == 1 {
                            // In lock step nothing more can have come.
                            break;
                        }
                        continue;
                    }
                    done.bytes += file.len() as u64;
                    let rounds = readers[at].rounds + 1;
                    epoll.delete(&readers[at].socket)?;
                    if rounds == self.rounds {
                        done.complete += 1;
                    } else {
                        readers[at] = self.begin(&epoll, at, name)?;
                    }
                    readers[at].rounds = rounds;
                    break;
                }
            }
            if looked.elapsed() > LOOK {
                looked = Instant::now();
                readers
                    .iter_mut()
                    .filter(|reader| reader.rounds < self.rounds)
                    .try_for_each(Reader::nag)?;
            }
        }
        done.time = start.elapsed();
        Ok(done)
    }

    fn begin(&self, epoll: &Epoll, at: usize, name: &str) -> anyhow::Result<Reader> {
        let socket = UdpSocket::bind("0.0.0.0:0").context("open a client's port")?;
        socket.set_nonblocking(true)?;
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER);
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, at as u64))?;
        let block = self.block.to_string();
        let window = self.window.to_string();
        let mut request = b"\0\x01".to_vec();
        for word in [name, "octet", "tsize", "0", "blksize", &block, "windowsize", &window] {
            request.extend_from_slice(word.as_bytes());
            request.push(0);
        }
        if self.window == 1 {
            request.truncate(request.len() - "windowsize\x001\0".len());
        }
        let mut reader = Reader {
            socket,
            request,
            connected: false,
            block: self.block,
            window: 1,
            in_window: 0,
            have: 0,
            last_received: Instant::now(),
            rounds: 0,
        };
        reader.nag_now()?;
        Ok(reader)
    }
}

struct Reader {
    socket: UdpSocket,
    request: Vec<u8>,
    connected: bool,
    block: usize,
    /// As the server granted it.
    window: usize,
    in_window: usize,
    /// Blocks that came in order.
    have: usize,
    last_received: Instant,
    rounds: usize,
}

impl Reader {
    fn receive(&mut self, buffer: &mut [u8]) -> anyhow::Result<Option<usize>> {
        let received = if self.connected {
            self.socket.recv(buffer)
        } else {
            self.socket.recv_from(buffer).and_then(|(length, from)| {
                self.connected = true;
                self.socket.connect(from).map(|()| length)
            })
        };
        match received {
            Ok(length) => Ok(Some(length)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error).context("receive a block"),
        }
    }

    /// True when that was the last block.
    fn hear(&mut self, packet: &[u8], file: &[u8]) -> anyhow::Result<bool> {
        let [0, opcode, high, low, data @ ..] = packet else {
            anyhow::bail!("a packet of {} bytes", packet.len())
        };
        match *opcode {
            6 => {
                self.window = window_of(&packet[2..]).unwrap_or(1);
                self.acknowledge()?;
            }
            3 if u16::from_be_bytes([*high, *low]) == (self.have + 1) as u16 => {
                let start = self.have * self.block;
                let expected = &file[start..file.len().min(start + self.block)];
                anyhow::ensure!(data == expected, "block {} is not what it must be", self.have + 1);
                self.have += 1;
                self.in_window += 1;
                if data.len() < self.block {
                    self.acknowledge()?;
                    return Ok(true);
                }
                if self.in_window >= self.window {
                    self.acknowledge()?;
                }
            }
            // A hole in the window: what came in order is acknowledged. Copies of what is there
            // already are not.
            3 if u16::from_be_bytes([*high, *low]).wrapping_sub((self.have + 1) as u16)
                < 0x8000 =>
            {
                self.acknowledge()?
            }
            3 => {}
            _ => anyhow::bail!("refused: {}", String::from_utf8_lossy(data)),
        }
        Ok(false)
    }

    fn acknowledge(&mut self) -> anyhow::Result<()> {
        let [high, low] = (self.have as u16).to_be_bytes();
        self.last_received = Instant::now();
        self.in_window = 0;
        match self.socket.send(&[0, 4, high, low]) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                Err(error).context("acknowledge a block")
            }
            _ => Ok(()),
        }
    }

    fn nag(&mut self) -> anyhow::Result<()> {
        if self.last_received.elapsed() < SILENCE { Ok(()) } else { self.nag_now() }
    }

    fn nag_now(&mut self) -> anyhow::Result<()> {
        if self.connected {
            return self.acknowledge();
        }
        self.last_received = Instant::now();
        self.socket
            .send_to(&self.request, SocketAddr::from((SERVER, 69)))
            .context("ask for the file")?;
        Ok(())
    }
}

fn window_of(options: &[u8]) -> Option<usize> {
    let mut words = options.split(|byte| *byte == 0);
    words.find(|word| word.eq_ignore_ascii_case(b"windowsize"))?;
    std::str::from_utf8(words.next()?).ok()?.parse().ok()
}
