//! Every firmware there could be: its questions by DHCP, written from RFC 2131, RFC 4578 and the
//! PXE specification alone, and everything in the answers that could be the name of a file.

use crate::world::{DEADLINE, World, receive};
use meshd_types::MacAddr;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    thread,
    time::{Duration, Instant},
};

/// How a client says what it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Client {
    Pxe,
    Http,
    Ipxe,
}

impl Client {
    pub const ALL: [Client; 3] = [Client::Pxe, Client::Http, Client::Ipxe];
}

/// A client: option 93, how it speaks, its card.
#[derive(Clone, Copy, Debug)]
pub struct Firmware {
    pub arch: u16,
    pub client: Client,
    pub mac: MacAddr,
}

/// An answer's fields that name or locate something.
#[derive(Clone, Debug)]
pub struct Named {
    pub address: Ipv4Addr,
    pub next_server: Ipv4Addr,
    pub server_name: String,
    pub file: String,
    pub options: BTreeMap<u8, Vec<u8>>,
}

impl Named {
    fn text(&self, option: u8) -> Option<String> {
        let bytes = self.options.get(&option)?;
        Some(String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned())
    }

    /// All boot files of this answer, wherever a client might look for them.
    pub fn files(&self) -> Vec<String> {
        let all = [Some(self.file.clone()), self.text(67)].into_iter().flatten();
        all.filter(|name| !name.is_empty()).collect()
    }

    /// All servers that this answer names, wherever a client might look for them.
    pub fn servers(&self) -> Vec<String> {
        let next = (!self.next_server.is_unspecified()).then(|| self.next_server.to_string());
        let all = [next, Some(self.server_name.clone()), self.text(66)].into_iter().flatten();
        all.chain(self.boot_servers()).filter(|name| !name.is_empty()).collect()
    }

    /// PXE_BOOT_SERVERS, suboption 8 of option 43: type, count, addresses.
    fn boot_servers(&self) -> Vec<String> {
        let mut rest = self.options.get(&43).map_or(&[][..], Vec::as_slice);
        let mut servers = Vec::new();
        while let [code, length, more @ ..] = rest {
            let (data, more) = more.split_at(usize::from(*length).min(more.len()));
            if *code == 8 {
                let addresses = data.get(3..).unwrap_or_default().chunks_exact(4);
                servers
                    .extend(addresses.map(|a| Ipv4Addr::new(a[0], a[1], a[2], a[3]).to_string()));
            }
            rest = more;
        }
        servers
    }

    fn kind(&self) -> u8 {
        self.options.get(&53).and_then(|kind| kind.first()).copied().unwrap_or(0)
    }
}

/// All answers that clients get on their way: to their DISCOVER, to their REQUEST for the address,
/// and in proxy mode to their REQUEST to the boot server's port. Nothing for one that is not
/// answered, as one that is not booted here; but those that `must` be are waited for.
pub fn walk(
    clients: &[Firmware],
    proxy: bool,
    must: impl Fn(&Firmware) -> bool,
) -> Vec<(Firmware, Vec<Named>)> {
    let socket = open();
    let discover = |client| Some((packet(client, 1, &[]), (Ipv4Addr::BROADCAST, 67)));
    let offers = exchange(&socket, clients, 2, &must, discover);
    let requests = |client: Firmware| {
        let offer = offers.get(&client.mac)?;
        let server = offer.options.get(&54).cloned().expect("option 54");
        let boot_server = (Ipv4Addr::new(server[0], server[1], server[2], server[3]), 4011);
        let requested_address = (50, offer.address.octets().to_vec());
        Some(match proxy {
            true => (packet(client, 3, &[(54, server)]), boot_server),
            false => {
                (packet(client, 3, &[requested_address, (54, server)]), (Ipv4Addr::BROADCAST, 67))
            }
        })
    };
    // Beside another DHCP server not everybody asks the boot server's port.
    let acks = exchange(&socket, clients, 5, |client| !proxy && must(client), requests);
    let both = |client: &Firmware| {
        [&offers, &acks].into_iter().filter_map(|all| all.get(&client.mac).cloned()).collect()
    };
    clients.iter().map(|client| (*client, both(client))).collect()
}

/// [`walk`] for each client where its card is.
pub fn walk_each(
    world: &World,
    clients: &[Firmware],
    proxy: bool,
    must: impl Fn(&Firmware) -> bool + Sync,
) -> Vec<(Firmware, Vec<Named>)> {
    let must = &must;
    let walk_one =
        |client: Firmware| world.host(client.mac).inside(|| walk(&[client], proxy, must)).unwrap();
    thread::scope(|scope| {
        let walks: Vec<_> =
            clients.iter().map(|client| scope.spawn(move || walk_one(*client))).collect();
        walks.into_iter().flat_map(|walk| walk.join().expect("no panic")).collect()
    })
}

/// A client tells everybody which address it takes from another server, as all of them do.
pub fn take(client: Firmware, address: Ipv4Addr) {
    let elsewhere = Ipv4Addr::new(10, 77, 0, 2);
    let options = [(50, address.octets().to_vec()), (54, elsewhere.octets().to_vec())];
    open().send_to(&packet(client, 3, &options), (Ipv4Addr::BROADCAST, 67)).unwrap();
}

fn open() -> UdpSocket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.bind_device(Some(b"eth0")).unwrap();
    socket.set_broadcast(true).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, 68)).into()).unwrap();
    let socket = UdpSocket::from(socket);
    socket.set_read_timeout(Some(QUIET)).unwrap();
    socket
}

/// Once it was so long quiet, those that were not answered ask again.
const QUIET: Duration = Duration::from_millis(400);
/// How often at least. Some are never answered, and nothing says so.
const ROUNDS: u32 = 4;

/// Everybody asks; gives the answers of this kind by the card that they are for.
fn exchange(
    socket: &UdpSocket,
    clients: &[Firmware],
    kind: u8,
    must: impl Fn(&Firmware) -> bool,
    question: impl Fn(Firmware) -> Option<(Vec<u8>, (Ipv4Addr, u16))>,
) -> BTreeMap<MacAddr, Named> {
    let end = Instant::now() + DEADLINE;
    let mut answers = BTreeMap::new();
    let mut rounds = 0;
    let missing = |answers: &BTreeMap<MacAddr, Named>| {
        clients.iter().any(|client| must(client) && !answers.contains_key(&client.mac))
    };
    while rounds < ROUNDS || (missing(&answers) && Instant::now() < end) {
        rounds += 1;
        for client in clients.iter().filter(|client| !answers.contains_key(&client.mac)) {
            if let Some((packet, to)) = question(*client) {
                socket.send_to(&packet, to).unwrap();
            }
        }
        let mut buffer = [0; 2048];
        while let Ok((length, _)) = receive(socket, &mut buffer) {
            assert!(Instant::now() < end, "{kind}: answers without end");
            let named = parse(&buffer[..length]);
            if named.kind() == kind {
                answers.insert(MacAddr(buffer[28..34].try_into().unwrap()), named);
            }
        }
    }
    answers
}

fn packet(firmware: Firmware, kind: u8, more: &[(u8, Vec<u8>)]) -> Vec<u8> {
    let Firmware { arch, client, mac } = firmware;
    let mut packet = vec![0; 236];
    packet[..4].copy_from_slice(&[1, 1, 6, 0]);
    packet[4..8].copy_from_slice(&[mac.0[4], mac.0[5], 0, kind]);
    packet[10] = 0x80;
    packet[28..34].copy_from_slice(&mac.0);
    packet.extend([99, 130, 83, 99]);
    let mut option = |code: u8, data: &[u8]| {
        packet.extend([code, u8::try_from(data.len()).unwrap()]);
        packet.extend(data);
    };
    option(53, &[kind]);
    let vendor = if client == Client::Http { "HTTPClient" } else { "PXEClient" };
    option(60, format!("{vendor}:Arch:{arch:05}:UNDI:003016").as_bytes());
    if client == Client::Ipxe {
        option(77, b"iPXE");
    }
    option(55, &[1, 3, 6, 12, 15, 43, 54, 60, 66, 67]);
    option(93, &arch.to_be_bytes());
    option(94, &[1, 3, 16]);
    for (code, data) in more {
        option(*code, data);
    }
    packet.push(255);
    packet
}

fn parse(packet: &[u8]) -> Named {
    let address =
        |at: usize| Ipv4Addr::new(packet[at], packet[at + 1], packet[at + 2], packet[at + 3]);
    let text = |field: &[u8]| {
        field.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect()
    };
    let mut named = Named {
        address: address(16),
        next_server: address(20),
        server_name: text(&packet[44..108]),
        file: text(&packet[108..236]),
        options: BTreeMap::new(),
    };
    let mut rest = &packet[240..];
    while let [code, more @ ..] = rest {
        match (code, more) {
            (0, more) => rest = more,
            (255, _) => break,
            (code, [length, more @ ..]) => {
                let (data, more) = more.split_at(usize::from(*length));
                // RFC 3396: an option in several pieces is one.
                named.options.entry(*code).or_default().extend(data);
                rest = more;
            }
            _ => break,
        }
    }
    named
}
