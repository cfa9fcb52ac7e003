//! Checks the invariants of the engine for arbitrary packets to a segment of each kind. Used by
//! fuzzing and tests.

use crate::{
    boot_file::BootSources,
    client_arch::loader_names,
    config::{DhcpMode, Interface, Link, Owner, Reservation, Segment, Setup, Subnet},
    effect::{Change, Effect, Lease, Reply, ReplyKind},
    engine::Engine,
    nic_records::{
        Attachment, MachineNic, NicRecord, RecordChange, RecordChanges, RelayPort, ReservedNic,
        UsedAddress,
    },
    packet::{CLIENT_PORT, Origin, PROXY_PORT, SERVER_PORT},
};
use dhcproto::v4::{Decodable, Decoder, Message};
use meshd_types::{Basis, MacAddr, SystemUuid, Timestamp};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

/// Feeds packets to an engine and panics if an invariant is violated: any bytes have an outcome,
/// replies can be parsed, and no address is acknowledged to two NICs at once.
///
/// Four bytes precede each packet: its length (big-endian), its origin (interface, port, sender),
/// and the seconds since the packet before. The remaining bytes are one more packet.
pub fn check_invariants(bytes: &[u8]) {
    let mut bench = Bench { engine: engine(), now: 0, holders: BTreeMap::new() };
    let mut rest = bytes;
    while let [high, low, origin_bits, seconds, more @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(more.len());
        let (packet, more) = more.split_at(length);
        bench.now += i64::from(*seconds);
        bench.packet(packet, *origin_bits);
        rest = more;
    }
    bench.packet(rest, 0);
}

/// The record of a NIC: a machine in various states.
fn record(mac: MacAddr, address: Ipv4Addr) -> NicRecord {
    let node = Basis::Mac(mac).node_id();
    let bits = mac.0[5];
    let port = RelayPort { circuit_id: Some("01".to_owned()), ..RelayPort::default() };
    let attachment =
        (bits & 4 == 0).then_some(Attachment { is_local: bits & 8 == 0, relay_port: Some(port) });
    let machine =
        MachineNic { ids: vec![node], is_approved: bits & 1 == 0, is_boot_nic: true, attachment };
    let used = (bits & 2 == 0).then_some(UsedAddress { address, until: None });
    NicRecord { machine: Some(machine), used: used.into_iter().collect(), ..NicRecord::new(mac) }
}

struct Bench {
    engine: Engine,
    now: i64,
    holders: BTreeMap<Ipv4Addr, Lease>,
}

impl Bench {
    fn packet(&mut self, packet: &[u8], origin_bits: u8) {
        let now = Timestamp::from_millis(self.now * 1000);
        // Senders: unspecified, the address in the packet, a relay.
        let own = packet
            .get(12..16)
            .and_then(|octets| octets.first_chunk::<4>())
            .copied()
            .unwrap_or_default();
        let source = [Ipv4Addr::UNSPECIFIED, own.into(), Ipv4Addr::new(10, 88, 0, 1)]
            [usize::from(origin_bits >> 2) % 3];
        let is_relayed = packet.get(24..28).is_some_and(|relay| relay != [0; 4]);
        let port = if is_relayed { SERVER_PORT } else { CLIENT_PORT };
        let origin = Origin {
            interface_index: usize::from(origin_bits & 1),
            source: SocketAddrV4::new(source, port),
            local_port: if origin_bits & 2 == 0 { SERVER_PORT } else { PROXY_PORT },
            // Half of the packets are sent by the NIC that they name.
            ethernet_source: packet
                .get(28..34)
                .filter(|_| origin_bits & 16 == 0)
                .and_then(|mac| mac.try_into().ok())
                .map(MacAddr),
        };
        if let Some(mac) = packet.get(28..34).and_then(|mac| mac.try_into().ok()).map(MacAddr) {
            let known = vec![RecordChange::Nic(record(mac, own.into()))];
            // The NICs of VMs keep their records.
            if !(4..=6).contains(&mac.0[5]) {
                self.engine.apply(now, RecordChanges::Some(known));
            }
        }
        let effects = self.engine.handle(now, packet, origin);
        assert!(effects.len() <= 6, "one packet, few effects: {effects:?}");
        for effect in &effects {
            match effect {
                Effect::Reply(reply) => self.reply(reply, packet),
                Effect::Store(Change::Exchange(exchange)) => {
                    self.lease(exchange.lease.as_ref(), now)
                }
                Effect::Store(Change::LeaseGranted(lease)) => self.lease(Some(lease), now),
                Effect::Store(Change::LeaseChanged(change)) => {
                    if self.holders.get(&change.before.address) == Some(&change.before) {
                        self.holders.remove(&change.before.address);
                        self.holders
                            .extend(change.after.clone().map(|lease| (lease.address, lease)));
                    }
                }
                Effect::Warn(_) => {}
            }
        }
        self.engine.handle_server_packet(now, packet, origin.interface_index);
        for segment in self.engine.status(now) {
            let pool = segment.pool;
            assert!(pool.leased + pool.offered <= pool.size, "{pool:?}");
        }
    }

    fn reply(&self, reply: &Reply, request: &[u8]) {
        let message =
            Message::decode(&mut Decoder::new(&reply.packet)).expect("our own answers can be read");
        assert_eq!(reply.packet.get(4..8), request.get(4..8), "the transaction goes back");
        assert!(reply.packet.len() >= 300, "BOOTP's least length");
        assert!(reply.kind != ReplyKind::Nak || message.yiaddr().is_unspecified());
    }

    fn lease(&mut self, lease: Option<&Lease>, now: Timestamp) {
        let Some(lease) = lease else { return };
        if let Some(other) = self.holders.insert(lease.address, lease.clone()) {
            assert!(other.mac == lease.mac || other.expires_at <= now, "{lease:?} was {other:?}");
        }
    }
}

fn engine() -> Engine {
    let subnet = |third: u8| Subnet {
        first: Ipv4Addr::new(10, third, 0, 100),
        last: Ipv4Addr::new(10, third, 0, 107),
        prefix_len: 24,
        lease: Duration::from_secs(600),
        router: Some(Ipv4Addr::new(10, third, 0, 1)),
        dns: vec![Ipv4Addr::new(10, third, 0, 101)],
        ntp: Vec::new(),
        domain: Some("rack.example".to_owned()),
    };
    let segment = |link, mode, subnet| Segment {
        link,
        address: None,
        mode,
        subnet,
        relay_macs: Vec::new(),
        redundant_relays: Vec::new(),
    };
    let relay = |third| Link::Relay(Ipv4Addr::new(10, third, 0, 1));
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    let reserve = |owner, third, last| Reservation {
        owner,
        address: Ipv4Addr::new(10, third, 0, last),
        parent: None,
    };
    let nic = |last, address: Option<(u8, u8)>| {
        NicRecord::of_vm(ReservedNic {
            vm: SystemUuid([last; 16]),
            name: "guest".parse().expect("a name"),
            mac: mac(last),
            address: address.map(|(third, last)| Ipv4Addr::new(10, third, 0, last)),
        })
    };
    Engine::new(
        Setup {
            interfaces: vec![
                Interface { name: "eth0".to_owned(), address: Ipv4Addr::new(10, 77, 0, 1) },
                Interface { name: "eth1".to_owned(), address: Ipv4Addr::new(10, 78, 0, 1) },
            ],
            segments: vec![
                segment(
                    Link::Interface("eth0".to_owned()),
                    DhcpMode::Authoritative,
                    Some(subnet(77)),
                ),
                segment(Link::Interface("eth1".to_owned()), DhcpMode::Proxy, None),
                segment(relay(88), DhcpMode::Authoritative, Some(subnet(88))),
                segment(relay(99), DhcpMode::Proxy, None),
            ],
            reservations: vec![
                reserve(Owner::Mac(mac(1)), 77, 102),
                reserve(Owner::Node(Basis::Mac(mac(2)).node_id()), 77, 20),
                reserve(Owner::Mac(mac(3)), 88, 20),
            ],
            nics: vec![nic(4, Some((77, 104))), nic(5, Some((77, 30))), nic(6, None)],
            non_identifying_uuids: Default::default(),
            sources: BootSources {
                http_port: 8080,
                loaders: loader_names().map(str::to_owned).collect(),
            },
        },
        Vec::new(),
    )
}
