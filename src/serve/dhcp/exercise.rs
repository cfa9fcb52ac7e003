//! An engine with a segment of every kind, for any bytes: what fuzzing and tests ask of the parser and of the lease tables.

use super::{
    bootfile::Sources,
    engine::{Effect, Engine, Interface, Reply, ReplyKind, Setup},
    machines::{Attachment, Machines},
    route::{Origin, PROXY_PORT, SERVER_PORT},
};
use crate::serve::central::DhcpStep;
use dhcproto::v4::{Decodable, Decoder, Message};
use meshd_config::{DhcpMode, Link, Pool, Reservation, Segment, Whom};
use meshd_model::{
    fleet::{Lease, RelayPort},
    work::ReservedNic,
};
use meshd_types::{Basis, MacAddr, NodeId, SystemUuid, Timestamp};
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::Duration,
};

/// Feeds packets to an engine and panics when a promise is broken: any bytes have an outcome, answers can be read, and no address
/// is acknowledged to two cards at once.
///
/// Each packet stands behind four bytes: its length (big-endian), the place that it comes from (interface, port, sender), and the
/// seconds since the one before. What is left over is one more packet.
pub fn exercise(bytes: &[u8]) {
    let mut bench = Bench { engine: engine(), now: 0, holders: BTreeMap::new() };
    let mut rest = bytes;
    while let [high, low, place, seconds, more @ ..] = rest {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(more.len());
        let (packet, more) = more.split_at(length);
        bench.now += i64::from(*seconds);
        bench.packet(packet, *place);
        rest = more;
    }
    bench.packet(rest, 0);
}

/// Every card is a node, in various states.
struct EveryCard;

impl Machines for EveryCard {
    fn node_of(&self, mac: MacAddr) -> Option<NodeId> {
        Some(Basis::Mac(mac).node_id())
    }

    fn keeps_address(&self, mac: MacAddr) -> bool {
        mac.0[5] & 1 == 0
    }

    fn uses_address(&self, mac: MacAddr, _: Ipv4Addr) -> bool {
        mac.0[5] & 2 == 0
    }

    fn is_approved(&self, node: NodeId) -> bool {
        node.to_string().starts_with('0')
    }

    fn attachment(&self, mac: MacAddr, _: bool) -> Option<Attachment> {
        let port = RelayPort { circuit_id: Some("01".to_owned()), remote_id: None };
        (mac.0[5] & 4 == 0).then_some(Attachment { is_local: mac.0[5] & 8 == 0, relay_port: Some(port) })
    }
}

struct Bench {
    engine: Engine,
    now: i64,
    holders: BTreeMap<Ipv4Addr, Lease>,
}

impl Bench {
    fn packet(&mut self, packet: &[u8], place: u8) {
        let now = Timestamp::from_millis(self.now * 1000);
        // Senders that make a difference: nobody yet, the packet's own address, a relay.
        let own = packet.get(12..16).and_then(|octets| octets.first_chunk::<4>()).copied().unwrap_or_default();
        let source = [Ipv4Addr::UNSPECIFIED, own.into(), Ipv4Addr::new(10, 88, 0, 1)][usize::from(place >> 2) % 3];
        let origin = Origin {
            via: usize::from(place & 1),
            source: SocketAddrV4::new(source, 68),
            local_port: if place & 2 == 0 { SERVER_PORT } else { PROXY_PORT },
            // Half of them are sent by the card that they name.
            hardware: packet.get(28..34).filter(|_| place & 16 == 0).and_then(|mac| mac.try_into().ok()).map(MacAddr),
        };
        let effects = self.engine.handle(now, packet, origin, &EveryCard);
        assert!(effects.len() <= 6, "one packet, few effects: {effects:?}");
        for effect in &effects {
            match effect {
                Effect::Reply(reply) => self.reply(reply, packet),
                Effect::Store(DhcpStep::Seen(seen)) => self.seen(seen.lease.as_ref(), now),
                Effect::Store(DhcpStep::Leased(lease)) => self.seen(Some(lease), now),
                Effect::Store(DhcpStep::Lease(change)) => {
                    if self.holders.get(&change.before.address) == Some(&change.before) {
                        self.holders.remove(&change.before.address);
                        self.holders.extend(change.after.clone().map(|lease| (lease.address, lease)));
                    }
                }
                Effect::Note(note) => assert!(!note.to_string().is_empty()),
            }
        }
        self.engine.heard(now, packet, origin.via);
        for segment in self.engine.health(now) {
            let pool = segment.pool;
            assert!(pool.leased + pool.offered <= pool.size, "{pool:?}");
        }
    }

    fn reply(&self, reply: &Reply, question: &[u8]) {
        let message = Message::decode(&mut Decoder::new(&reply.packet)).expect("our own answers can be read");
        assert_eq!(reply.packet.get(4..8), question.get(4..8), "the transaction goes back");
        assert!(reply.packet.len() >= 300, "BOOTP's least length");
        assert!(reply.kind != ReplyKind::Nak || message.yiaddr().is_unspecified());
    }

    fn seen(&mut self, lease: Option<&Lease>, now: Timestamp) {
        let Some(lease) = lease else { return };
        if let Some(other) = self.holders.insert(lease.address, lease.clone()) {
            assert!(other.mac == lease.mac || other.expires_at <= now, "{lease:?} was {other:?}");
        }
    }
}

fn engine() -> Engine {
    let pool = |third: u8| Pool {
        first: Ipv4Addr::new(10, third, 0, 100),
        last: Ipv4Addr::new(10, third, 0, 107),
        prefix_len: 24,
        lease: Duration::from_secs(600),
        router: Some(Ipv4Addr::new(10, third, 0, 1)),
        dns: vec![Ipv4Addr::new(10, third, 0, 101)],
        ntp: Vec::new(),
        domain: Some("rack.example".to_owned()),
    };
    let segment = |link, mode, pool| Segment { link, address: None, mode, pool, relay_macs: Vec::new() };
    let relay = |third| Link::Relay(Ipv4Addr::new(10, third, 0, 1));
    let mac = |last| MacAddr([2, 0, 0, 0, 0, last]);
    let reserve = |whom, third, last| Reservation { whom, address: Ipv4Addr::new(10, third, 0, last), name: None };
    let card = |last, address: Option<(u8, u8)>| ReservedNic {
        vm: SystemUuid([last; 16]),
        name: "guest".parse().expect("a name"),
        mac: mac(last),
        address: address.map(|(third, last)| Ipv4Addr::new(10, third, 0, last)),
    };
    Engine::new(
        Setup {
            interfaces: vec![
                Interface { name: "eth0".to_owned(), address: Ipv4Addr::new(10, 77, 0, 1) },
                Interface { name: "eth1".to_owned(), address: Ipv4Addr::new(10, 78, 0, 1) },
            ],
            segments: vec![
                segment(Link::Interface("eth0".to_owned()), DhcpMode::Authoritative, Some(pool(77))),
                segment(Link::Interface("eth1".to_owned()), DhcpMode::Proxy, None),
                segment(relay(88), DhcpMode::Authoritative, Some(pool(88))),
                segment(relay(99), DhcpMode::Proxy, None),
            ],
            reservations: vec![
                reserve(Whom::Mac(mac(1)), 77, 102),
                reserve(Whom::Node(Basis::Mac(mac(2)).node_id()), 77, 20),
                reserve(Whom::Mac(mac(3)), 88, 20),
            ],
            cards: vec![card(4, Some((77, 104))), card(5, Some((77, 30))), card(6, None)],
            deny: Default::default(),
            sources: Sources { http_port: 8080, loaders: super::loader_names().map(str::to_owned).collect() },
        },
        Vec::new(),
    )
}
