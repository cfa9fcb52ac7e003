//! Observes the Ethernet source of every TCP segment to the ports of one interface.
//!
//! A packet socket for all protocols receives a frame before the kernel's IP stack does. When a
//! server has read a request, the frames that carried it are therefore in the queue of this socket,
//! and [`ConnectionWitness::sources`] reads the queue first. The neighbour table, in contrast,
//! shows only what the last ARP packet said.

use super::{
    ethernet_link,
    receive::enlarge_receive_buffer,
    register_with_tokio,
    segment_table::{Expected, SegmentTable},
    tcp_segment::{self, Ends, IPV4, Seen, VLAN_NUMBER, VLAN_TAGS, without_priority_tags},
};
use crate::log::Log;
use meshd_central::{ConnectionFate, ForeignSegment};
use meshd_types::{MacAddr, failpoint};
use nix::{
    errno::Errno,
    getsockopt_impl, libc, setsockopt_impl,
    sys::socket::{
        GetSockOpt as _, LinkAddr, MsgFlags, MultiHeaders, SetSockOpt as _, bind, recvmmsg,
        sockopt::{GetStruct, SetBool},
    },
};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use std::{
    cell::RefCell,
    io::{self, IoSliceMut},
    net::Ipv4Addr,
    os::fd::AsRawFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::{io::unix::AsyncFd, time::sleep};

/// Pseudo protocol for all frames: other packet sockets receive a frame only after the IP stack.
const ETH_P_ALL: u16 = 0x0003;
/// Bytes of a frame that are read: the longest IP header, and ports and flags of TCP.
const SNAP: usize = 76;
/// Bytes of a frame with nested tags that are read. Longer frames (jumbo frames) whose tags fill
/// them count as lost.
const TAGGED_SNAP: usize = 2048;
/// Frames per system call.
const BATCH: usize = 64;
/// Size of the kernel's queue in bytes. Without CAP_NET_ADMIN, net.core.rmem_max limits it.
const QUEUE: usize = 8 << 20;
/// Maximum number of system calls per reading of the queue. The kernel doubles the size of the
/// queue, and a frame takes more than 512 bytes of it, so the frames that were in the queue before
/// are read.
const MAX_BATCHES: usize = 2 * QUEUE / 512 / BATCH;
/// Interval between attempts to open the socket again after an error, for example because the
/// interface was removed.
const REOPEN_INTERVAL: Duration = Duration::from_millis(500);

/// Pause between two reads of the queue. Checks do not wait for it.
const COALESCE: Duration = Duration::from_millis(1);

/// `PACKET_IGNORE_OUTGOING` (packet(7)).
const IGNORE_OUTGOING: libc::c_int = 23;

/// Delivers no frames that this host sends.
#[derive(Clone, Copy)]
struct IgnoreOutgoing;
setsockopt_impl!(IgnoreOutgoing, libc::SOL_PACKET, IGNORE_OUTGOING, bool, SetBool);

/// Number of frames and of lost frames since the last query.
#[derive(Clone, Copy)]
struct Statistics;
getsockopt_impl!(
    Statistics,
    libc::SOL_PACKET,
    libc::PACKET_STATISTICS,
    [u32; 2],
    GetStruct<[u32; 2]>
);

type Expectation = dyn Fn(Ipv4Addr) -> Expected + Send + Sync;
type ForeignReport = dyn Fn(ForeignSegment) + Send + Sync;

/// Observes the connections of one interface.
pub(super) struct ConnectionWitness {
    interface: String,
    ports: Vec<u16>,
    expected: Box<Expectation>,
    report: Box<ForeignReport>,
    started: Instant,
    log: Log,
    state: Mutex<WitnessState>,
}

#[derive(Default)]
struct WitnessState {
    /// `None` while the interface is gone: its connections are incomplete.
    tap: Option<Arc<Tap>>,
    table: SegmentTable,
}

/// The packet socket, and the index of its interface.
struct Tap {
    socket: AsyncFd<Socket>,
    index: usize,
}

/// Memory for one system call. The headers hold pointers, so each thread has its own.
struct Batch {
    headers: MultiHeaders<LinkAddr>,
    buffers: Vec<[u8; TAGGED_SNAP]>,
}

/// What a frame says.
enum Frame {
    Seen(Seen, MacAddr),
    /// Its tags hide its packet.
    Hidden(MacAddr),
}

thread_local! {
    static BATCHES: RefCell<Batch> = RefCell::new(Batch {
        headers: MultiHeaders::preallocate(BATCH, None),
        buffers: vec![[0; TAGGED_SNAP]; BATCH],
    });
}

impl ConnectionWitness {
    /// Opens the witness of an Ethernet interface; `None` if the interface is of another kind.
    /// `expected` returns the source of an address, `report` receives foreign ones.
    ///
    /// # Errors
    /// Errors of the kernel. Needs CAP_NET_RAW and a tokio runtime.
    pub(super) fn open(
        interface: &str,
        ports: &[u16],
        expected: impl Fn(Ipv4Addr) -> Expected + Send + Sync + 'static,
        report: impl Fn(ForeignSegment) + Send + Sync + 'static,
    ) -> io::Result<Option<Arc<Self>>> {
        let tap = match Tap::open(interface, ports) {
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return Ok(None),
            tap => tap?,
        };
        let state = WitnessState { tap: Some(Arc::new(tap)), table: SegmentTable::default() };
        Ok(Some(Arc::new(ConnectionWitness {
            interface: interface.to_owned(),
            ports: ports.to_vec(),
            expected: Box::new(expected),
            report: Box::new(report),
            started: Instant::now(),
            log: Log::default(),
            state: Mutex::new(state),
        })))
    }

    /// Reads frames as they arrive, for ever, so that the queue does not fill and foreign frames
    /// end a connection at once.
    pub(super) async fn run(self: Arc<Self>) {
        let mut is_empty = true;
        loop {
            let tap = self.lock().tap.clone();
            let Some(tap) = tap else {
                sleep(REOPEN_INTERVAL).await;
                if let Ok(tap) = Tap::open(&self.interface, &self.ports) {
                    self.lock().tap = Some(Arc::new(tap));
                }
                continue;
            };
            if is_empty && let Ok(mut ready) = tap.socket.readable().await {
                ready.clear_ready();
            }
            is_empty = self.drain(&mut self.lock());
            // A client that loads an image sends many acknowledgements: they are read together.
            sleep(COALESCE).await;
        }
    }

    pub(super) fn accept(&self, ends: Ends) -> Arc<ConnectionFate> {
        let mut state = self.lock();
        self.drain(&mut state);
        state.table.accept(ends)
    }

    pub(super) fn close(&self, ends: Ends) {
        self.lock().table.close(self.started.elapsed(), ends);
    }

    /// Returns the Ethernet sources of all segments of a connection that have arrived, and whether
    /// none was lost.
    pub(super) fn sources(&self, ends: &Ends) -> (Vec<MacAddr>, bool) {
        let mut state = self.lock();
        self.drain(&mut state);
        state.table.sources(ends)
    }

    /// Reads all frames that are in the queue. Returns false if it may contain further ones.
    fn drain(&self, state: &mut WitnessState) -> bool {
        let Some(tap) = state.tap.clone() else { return true };
        let now = self.started.elapsed();
        let mut is_empty = false;
        for _ in 0..MAX_BATCHES {
            let read = BATCHES.with_borrow_mut(|batch| {
                batch.read(&tap, |frame| match frame {
                    Frame::Seen(seen, source) if self.is_observed(&seen) => {
                        let table = &mut state.table;
                        let foreign = table.observe(now, seen, source, &self.expected);
                        foreign.into_iter().for_each(&self.report);
                    }
                    Frame::Seen(..) => {}
                    Frame::Hidden(source) => {
                        state.table.add_lost(1);
                        let name = &self.interface;
                        self.log.warn("hidden", || {
                            format!("{source} sent a frame on {name} whose VLAN tags hide its packet: boots and links that began before may be refused and retry")
                        });
                    }
                })
            });
            match read {
                Ok(BATCH) | Err(Errno::EINTR) => {}
                Ok(_) | Err(Errno::EAGAIN) => {
                    is_empty = true;
                    break;
                }
                Err(error) => {
                    let name = &self.interface;
                    self.log.warn("frames", || {
                        format!("cannot read frames of the boot LAN on {name}: {error}")
                    });
                    // The interface went down or away. Frames may be lost until it is open again.
                    state.table.add_lost(1);
                    state.tap = None;
                    return true;
                }
            }
        }
        // A lost frame may have been foreign.
        let lost = Statistics.get(tap.socket.get_ref()).map_or(1, |[_, lost]| lost);
        if lost > 0 {
            metrics::counter!("meshd_lan_lost_frames_total").increment(u64::from(lost));
            state.table.add_lost(u64::from(lost));
            let name = &self.interface;
            self.log.warn("lost", || {
                format!("{lost} frames on {name} were lost: boots and links that began before may be refused and retry")
            });
        }
        is_empty
    }

    /// The filter compares no ports behind nested tags.
    fn is_observed(&self, seen: &Seen) -> bool {
        match seen {
            Seen::Segment { ends, .. } => self.ports.contains(&ends.server.port()),
            Seen::Fragment { .. } => true,
        }
    }

    fn lock(&self) -> MutexGuard<'_, WitnessState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tap {
    fn open(interface: &str, ports: &[u16]) -> io::Result<Self> {
        let (link, _) = ethernet_link(interface)?;
        let protocol = Protocol::from(i32::from(ETH_P_ALL.to_be()));
        let socket =
            Socket::new(Domain::PACKET, Type::DGRAM.nonblocking().cloexec(), Some(protocol))?;
        socket.attach_filter(&filter(ports))?;
        // Linux before 4.20 lacks the option; the filter drops these frames too.
        let _ = IgnoreOutgoing.set(&socket, &true);
        enlarge_receive_buffer(&socket, QUEUE);
        bind(socket.as_raw_fd(), &link)?;
        Ok(Tap { socket: register_with_tokio(socket)?, index: link.ifindex() })
    }
}

impl Batch {
    /// Reads up to [`BATCH`] frames. Returns their number.
    fn read(&mut self, tap: &Tap, mut observe: impl FnMut(Frame)) -> nix::Result<usize> {
        let mut slices: Vec<[IoSliceMut<'_>; 1]> =
            self.buffers.iter_mut().map(|one| [IoSliceMut::new(one)]).collect();
        let flags = MsgFlags::MSG_DONTWAIT;
        let received =
            recvmmsg(tap.socket.as_raw_fd(), &mut self.headers, slices.iter_mut(), flags, None)?;
        let frames: Vec<_> = received.map(|frame| (frame.bytes, frame.address)).collect();
        let count = frames.len();
        for ((length, address), buffer) in frames.into_iter().zip(&self.buffers) {
            // Before the bind, the socket also received frames of other interfaces.
            let Some(address) = address.filter(|address| address.ifindex() == tap.index) else {
                continue;
            };
            let Some(source) = address.addr().map(MacAddr) else { continue };
            let bytes = buffer.get(..length).unwrap_or(buffer);
            let packet = without_priority_tags(bytes);
            match packet.and_then(tcp_segment::parse) {
                Some(seen) => observe(Frame::Seen(seen, source)),
                None if length >= TAGGED_SNAP => observe(Frame::Hidden(source)),
                None => {}
            }
        }
        Ok(count)
    }
}

// Instructions of classic BPF (linux/bpf_common.h), and offsets of values that are not in the
// packet (linux/filter.h).
const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const LOAD_BYTE: u16 = 0x30;
const LOAD_HALF_BEHIND: u16 = 0x48;
const LOAD_HEADER_LENGTH: u16 = 0xb1;
const JUMP_EQUAL: u16 = 0x15;
const JUMP_SET: u16 = 0x45;
const RETURN: u16 = 0x06;
const PROTOCOL: u32 = 0xffff_f000;
const PACKET_TYPE: u32 = PROTOCOL + 4;
const VLAN_TAG: u32 = PROTOCOL + 44;

/// Returns a filter for TCP to these ports of this host, for all fragments of TCP, and for all
/// frames with nested tags: the IP stack receives those too if no tag names a VLAN. Frames of a
/// VLAN belong to another interface. The filter sees packets from behind their first tag on.
fn filter(ports: &[u16]) -> Vec<SockFilter> {
    let count = u8::try_from(ports.len()).unwrap_or(u8::MAX).min(16);
    // Failed checks jump to "drop", which follows the comparisons of ports; "deliver" and "deliver
    // with tags" follow it.
    let drop_at = 14 + count;
    let to_drop = |at: u8| drop_at.saturating_sub(at).saturating_sub(1);
    let [tag, service_tag] = match failpoint::defends("nested-tags") {
        true => VLAN_TAGS.map(u32::from),
        false => [u32::MAX; 2],
    };
    let mut program = vec![
        SockFilter::new(LOAD_WORD, 0, 0, PACKET_TYPE),
        SockFilter::new(JUMP_EQUAL, 0, to_drop(1), 0),
        SockFilter::new(LOAD_WORD, 0, 0, VLAN_TAG),
        SockFilter::new(JUMP_SET, to_drop(3), 0, u32::from(VLAN_NUMBER)),
        SockFilter::new(LOAD_WORD, 0, 0, PROTOCOL),
        SockFilter::new(JUMP_EQUAL, to_drop(5).saturating_add(2), 0, tag),
        SockFilter::new(JUMP_EQUAL, to_drop(6).saturating_add(2), 0, service_tag),
        SockFilter::new(JUMP_EQUAL, 0, to_drop(7), u32::from(IPV4)),
        SockFilter::new(LOAD_BYTE, 0, 0, 9),
        SockFilter::new(JUMP_EQUAL, 0, to_drop(9), 6),
        SockFilter::new(LOAD_HALF, 0, 0, 6),
        SockFilter::new(JUMP_SET, to_drop(11).saturating_add(1), 0, 0x3fff),
        SockFilter::new(LOAD_HEADER_LENGTH, 0, 0, 0),
        SockFilter::new(LOAD_HALF_BEHIND, 0, 0, 2),
    ];
    for (index, port) in (0..count).zip(ports) {
        program.push(SockFilter::new(JUMP_EQUAL, count.saturating_sub(index), 0, u32::from(*port)));
    }
    program.push(SockFilter::new(RETURN, 0, 0, 0));
    program.push(SockFilter::new(RETURN, 0, 0, SNAP as u32));
    program.push(SockFilter::new(RETURN, 0, 0, TAGGED_SNAP as u32));
    program
}
