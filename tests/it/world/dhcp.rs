//! A DHCP client written from RFC 2131 and RFC 4578 alone, so that it does not share a mistake with
//! the server.

use super::{DEADLINE, receive};
use meshd_types::{MacAddr, SystemUuid};
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicU16, Ordering},
    time::{Duration, Instant},
};

/// How long a client waits before it asks again.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum As {
    /// PXE firmware with this option 93.
    Firmware(u16),
    Ipxe,
    Os,
}

/// What the server granted.
#[derive(Clone, Debug)]
pub struct Granted {
    pub address: Ipv4Addr,
    pub file: String,
    pub options: BTreeMap<u8, Vec<u8>>,
    /// Option 3.
    pub router: Option<Ipv4Addr>,
}

/// An answer as a client reads it.
pub struct Answer {
    pub kind: u8,
    pub address: Ipv4Addr,
    pub options: BTreeMap<u8, Vec<u8>>,
    pub file: String,
}

/// DISCOVER to ACK; asks again until it is answered, as every client does.
pub fn obtain(mac: MacAddr, uuid: SystemUuid, who: As) -> Granted {
    let socket = client();
    let end = Instant::now() + DEADLINE;
    while Instant::now() < end {
        if let Some(granted) = attempt(&socket, mac, uuid, who) {
            return granted;
        }
    }
    panic!("no DHCP answer");
}

/// What a client asks with.
pub fn client() -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.bind_device(Some(b"eth0")).unwrap();
    socket.set_broadcast(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 68)).into()).unwrap();
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// DISCOVER to ACK, each asked once; `None` if one of them was not answered.
pub fn attempt(socket: &UdpSocket, mac: MacAddr, uuid: SystemUuid, who: As) -> Option<Granted> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    // A late answer to an attempt before is not for this one: meshd would still have packets of
    // this one before it when the client goes on, and take them for another boot.
    let exchange = |mut packet: Vec<u8>| {
        packet[4..6].copy_from_slice(&number);
        exchange(socket, &packet)
    };
    let offer = exchange(packet(mac, uuid, who, 1, &[]))?;
    assert_eq!(offer.kind, 2, "an offer");
    let server = offer.options.get(&54).cloned().expect("option 54");
    let request = packet(mac, uuid, who, 3, &[(50, offer.address.octets().to_vec()), (54, server)]);
    let ack = exchange(request)?;
    assert_eq!(ack.kind, 5, "an acknowledgement");
    assert_eq!(ack.address, offer.address);
    let named = ack
        .options
        .get(&67)
        .map(|file| String::from_utf8_lossy(file).trim_end_matches('\0').to_owned());
    let router = ack
        .options
        .get(&3)
        .and_then(|data| <[u8; 4]>::try_from(data.as_slice()).ok())
        .map(Ipv4Addr::from);
    Some(Granted {
        address: ack.address,
        file: named.unwrap_or(ack.file),
        options: ack.options,
        router,
    })
}

fn exchange(socket: &UdpSocket, packet: &[u8]) -> Option<Answer> {
    // A central node that was just killed leaves the port closed for a moment.
    socket.send_to(packet, (Ipv4Addr::BROADCAST, 67)).ok()?;
    let mut buffer = [0; 2048];
    let end = Instant::now() + PATIENCE;
    while Instant::now() < end {
        let (length, _) = receive(socket, &mut buffer).ok()?;
        // Broadcast, so answers to others come too, and what is left of an earlier question.
        if buffer[4..8] == packet[4..8] && buffer[28..34] == packet[28..34] {
            return Some(parse(&buffer[..length]));
        }
    }
    None
}

/// A packet of a client: 1 DISCOVER, 3 REQUEST, 4 DECLINE, 7 RELEASE, with more options.
pub fn packet(
    mac: MacAddr,
    uuid: SystemUuid,
    who: As,
    kind: u8,
    more: &[(u8, Vec<u8>)],
) -> Vec<u8> {
    let mut packet = vec![0; 236];
    packet[..4].copy_from_slice(&[1, 1, 6, 0]);
    // Each program has its own: an answer to the one before, which had to ask twice, is not for
    // this one.
    let program = match who {
        As::Firmware(_) => 1,
        As::Ipxe => 2,
        As::Os => 3,
    };
    packet[4..8].copy_from_slice(&[mac.0[3], mac.0[5], program, kind]);
    packet[10] = 0x80;
    packet[28..34].copy_from_slice(&mac.0);
    packet.extend([99, 130, 83, 99]);
    let mut option = |code: u8, data: &[u8]| {
        packet.extend([code, u8::try_from(data.len()).unwrap()]);
        packet.extend(data);
    };
    option(53, &[kind]);
    match who {
        As::Firmware(arch) => {
            option(60, format!("PXEClient:Arch:{arch:05}:UNDI:003001").as_bytes());
            option(93, &arch.to_be_bytes());
            option(97, &uuid.to_option97());
        }
        As::Ipxe => {
            option(60, b"PXEClient:Arch:00000:UNDI:002001");
            option(77, b"iPXE");
            option(93, &[0, 0]);
            option(97, &uuid.to_option97());
        }
        As::Os => option(60, b"udhcp 1.37.0"),
    }
    for (code, data) in more {
        option(*code, data);
    }
    packet.push(255);
    packet
}

/// Reads an answer.
pub fn parse(packet: &[u8]) -> Answer {
    let address = Ipv4Addr::new(packet[16], packet[17], packet[18], packet[19]);
    let file = packet[108..236].iter().take_while(|byte| **byte != 0).copied().collect();
    let mut options = BTreeMap::new();
    let mut rest = &packet[240..];
    while let [code, more @ ..] = rest {
        match (code, more) {
            (0, more) => rest = more,
            (255, _) => break,
            (code, [length, more @ ..]) => {
                let (data, more) = more.split_at(usize::from(*length));
                options.insert(*code, data.to_vec());
                rest = more;
            }
            _ => break,
        }
    }
    let kind = options.get(&53).map_or(0, |data| data[0]);
    Answer { kind, address, options, file: String::from_utf8(file).unwrap() }
}
