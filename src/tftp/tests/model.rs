//! One transfer against a model client, over a simulated network that loses, duplicates and
//! reorders packets.

use crate::{
    client::Client,
    effect::{Effects, Event, Payload, block_of},
    engine::{Engine, Limits},
    fuzz_invariants::check_invariants,
    packet,
};
use bytes::Bytes;
use proptest::prelude::*;
use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

/// MTU of an Ethernet network, in bytes.
pub(super) const ETHERNET: usize = 1500;
pub(super) const LIMITS: Limits = Limits { transfers: 8, window_bytes: 1 << 20 };
pub(super) const CLIENT: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 7), 2070);
/// One-way latency.
const TRIP: Duration = Duration::from_micros(100);
/// Time without a packet after which the client repeats its request or acknowledgement.
const RETRY_AFTER: Duration = Duration::from_millis(700);

/// Packets that arrive after each lost packet, so that not all retries of one side are lost.
const ARRIVALS_AFTER_LOSS: usize = 4;

/// The fate of each packet in turn. After one pass, the list repeats in another order each time: a
/// strict period could always lose the same packet.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Arrives,
    Lost,
    Doubled,
    Late,
}

/// A client by RFC 1350 and RFC 7440. It also answers old blocks (sorcerer's apprentice).
struct Reader {
    request: Vec<u8>,
    block: usize,
    window: u64,
    received: Vec<u8>,
    have: u64,
    in_window: u64,
    started: bool,
    finished: bool,
}

impl Reader {
    fn new(block: usize, window: u64) -> Self {
        Reader {
            request: request(&format!("blksize {block} windowsize {window} ")),
            block,
            window,
            received: Vec::new(),
            have: 0,
            in_window: 0,
            started: false,
            finished: false,
        }
    }

    fn receive(&mut self, packet: &[u8]) -> Option<Vec<u8>> {
        let number = u16::from_be_bytes([packet[2], packet[3]]);
        match packet[1] {
            6 if !self.started => {
                self.started = true;
                Some(ack(0))
            }
            3 if number == (self.have + 1) as u16 && !self.finished => {
                self.started = true;
                self.received.extend_from_slice(&packet[4..]);
                self.have += 1;
                self.in_window += 1;
                self.finished = packet.len() - 4 < self.block;
                let full = self.finished || self.in_window == self.window;
                full.then(|| self.answer())
            }
            3 => Some(self.answer()),
            _ => None,
        }
    }

    fn answer(&mut self) -> Vec<u8> {
        self.in_window = 0;
        ack(self.have)
    }

    fn retry(&mut self) -> Vec<u8> {
        if self.started { self.answer() } else { self.request.clone() }
    }
}

pub(super) fn ack(number: u64) -> Vec<u8> {
    [[0, 4], (number as u16).to_be_bytes()].concat()
}

pub(super) fn request(options: &str) -> Vec<u8> {
    [b"\0\x01file\0octet\0".as_slice(), options.replace(' ', "\0").as_bytes()].concat()
}

/// The datagrams of some effects.
pub(super) fn datagrams(out: &mut Effects<()>) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    for send in out.sends.drain(..) {
        match send.payload {
            Payload::Packet(bytes) => packets.push(bytes.to_vec()),
            Payload::Blocks { file, block, first, count, .. } => {
                for number in first..first + u64::from(count) {
                    packets.push(
                        [&packet::data_header(number as u16), block_of(&file, block, number)]
                            .concat(),
                    );
                }
            }
        }
    }
    packets
}

struct Outcome {
    received: Vec<u8>,
    finished: bool,
    sent: usize,
    events: Vec<Event>,
    took: Duration,
}

/// Packets in flight, ordered by arrival time.
struct Network<'f> {
    fates: &'f [Fate],
    count: usize,
    /// Packets since the last lost one.
    since_loss: usize,
    in_flight: BTreeMap<(Instant, usize), (bool, Vec<u8>)>,
}

impl Network<'_> {
    fn launch(&mut self, now: Instant, to_server: bool, packet: &[u8]) {
        let trips: &[u32] = match self.fate() {
            Fate::Arrives => &[1],
            Fate::Lost => &[],
            Fate::Doubled => &[1, 2],
            Fate::Late => &[40],
        };
        for (copy, trips) in trips.iter().enumerate() {
            self.in_flight
                .insert((now + TRIP * *trips, 2 * self.count + copy), (to_server, packet.to_vec()));
        }
        self.count += 1;
    }

    fn fate(&mut self) -> Fate {
        let all = self.fates.len();
        // Weyl's sequence by the golden ratio: every place as often as any other, in no period.
        let mixed = (self.count as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
        let fate = self.fates[if self.count < all { self.count } else { mixed as usize % all }];
        self.since_loss += 1;
        match fate {
            Fate::Lost if self.since_loss < ARRIVALS_AFTER_LOSS && all > 1 => Fate::Arrives,
            Fate::Lost => {
                self.since_loss = 0;
                fate
            }
            _ => fate,
        }
    }

    fn arrived(&mut self, now: Instant) -> Option<(bool, Vec<u8>)> {
        Some(self.in_flight.first_entry().filter(|entry| entry.key().0 <= now)?.remove())
    }
}

/// Plays a transfer to its end.
fn play(file: &Bytes, block: usize, window: u64, fates: &[Fate]) -> Outcome {
    let mut reader = Reader::new(block, window);
    let mut network =
        Network { fates, count: 0, since_loss: ARRIVALS_AFTER_LOSS, in_flight: BTreeMap::new() };
    let mut engine = Engine::new(LIMITS, Box::new(|_| ETHERNET));
    let mut out = Effects::default();
    let begin = Instant::now();
    let mut sent = 0;
    let mut now = begin;
    network.launch(now, true, &reader.request);
    let mut retry_at = now + RETRY_AFTER;
    while now - begin < Duration::from_secs(3600) && !(reader.finished && engine.is_empty()) {
        let next = [
            network.in_flight.keys().next().map(|key| key.0),
            engine.next_deadline(),
            Some(retry_at),
        ];
        now = next.into_iter().flatten().min().expect("the client's own clock").max(now);
        while let Some((to_server, packet)) = network.arrived(now) {
            if !to_server {
                retry_at = now + RETRY_AFTER;
                if let Some(answer) = reader.receive(&packet) {
                    network.launch(now, true, &answer);
                }
            } else if packet[1] == 1 {
                engine.handle_request(
                    now,
                    Client::unobserved(CLIENT),
                    &packet,
                    &|_| Some((file.clone(), ())),
                    &mut out,
                );
            } else {
                engine.handle_packet(now, CLIENT, &packet, &mut out);
            }
        }
        engine.tick(now, &mut out);
        for packet in datagrams(&mut out) {
            sent += usize::from(packet[1] == 3);
            network.launch(now, false, &packet);
        }
        if now >= retry_at {
            retry_at = now + RETRY_AFTER;
            network.launch(now, true, &reader.retry());
        }
    }
    Outcome {
        received: reader.received,
        finished: reader.finished,
        sent,
        events: out.events,
        took: now - begin,
    }
}

fn file_of(length: usize) -> Bytes {
    (0..length).map(|at| (at % 251) as u8).collect()
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![12 => Just(Fate::Arrives), 1 => Just(Fate::Lost), 1 => Just(Fate::Doubled), 1 => Just(Fate::Late)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn transfer_survives_loss_duplication_and_reordering(
        length in 0usize..40_000,
        // With smaller blocks such a network is slower than the minimum rate.
        block in prop_oneof![Just(256usize), Just(512), Just(1468)],
        window in 1u64..=64,
        fates in prop::collection::vec(fate(), 23..97),
    ) {
        let file = file_of(length.min(block * 500));
        let outcome = play(&file, block, window, &fates);
        prop_assert!(outcome.finished, "{:?} after {:?}", outcome.events, outcome.took);
        prop_assert!(outcome.received == file);
        let fetched = outcome.events.iter().filter(|event| matches!(event, Event::Completed)).count();
        let silent = outcome.events.iter().any(|event| matches!(event, Event::TimedOut { .. }));
        prop_assert!(fetched >= 1 || silent, "only a lost last acknowledgement goes unreported");
    }

    #[test]
    fn random_packets_keep_invariants(bytes in prop::collection::vec(any::<u8>(), 0..2000)) {
        check_invariants(&bytes);
    }
}

#[test]
fn duplicated_acks_never_duplicate_blocks() {
    let file = file_of(100 * 512);
    for window in [1, 4] {
        let outcome = play(&file, 512, window, &[Fate::Doubled]);
        assert!(outcome.finished && outcome.received == file);
        assert_eq!(outcome.sent, 101, "window {window}: each block once");
    }
}

#[test]
fn block_numbers_roll_over_to_zero() {
    let file = file_of(70_000 * 8 + 3);
    for window in [1, 7] {
        let outcome = play(&file, 8, window, &[Fate::Arrives]);
        assert!(outcome.finished && outcome.received == file, "window {window}");
    }
}

#[test]
fn lost_block_within_window_is_resent_without_timeout() {
    // The tenth packet is a block in the middle of the first window of 16.
    let mut fates = [Fate::Arrives; 400];
    fates[9] = Fate::Lost;
    let outcome = play(&file_of(100 * 512), 512, 16, &fates);
    assert!(outcome.finished && outcome.took < Duration::from_millis(100), "{:?}", outcome.took);
}

#[test]
fn silent_client_is_dropped_within_bounded_time_and_retries() {
    let file = file_of(40 * 512);
    for acknowledged in 0..40 {
        let mut engine = Engine::new(LIMITS, Box::new(|_| ETHERNET));
        let mut out = Effects::default();
        let begin = Instant::now();
        let bytes = request("blksize 512 windowsize 4 ");
        engine.handle_request(
            begin,
            Client::unobserved(CLIENT),
            &bytes,
            &|_| Some((file.clone(), ())),
            &mut out,
        );
        for number in (0..acknowledged).step_by(4) {
            engine.handle_packet(begin, CLIENT, &ack(number), &mut out);
        }
        datagrams(&mut out);
        let mut now = begin;
        let mut again = 0;
        while let Some(at) = engine.next_deadline() {
            now = at;
            engine.tick(now, &mut out);
            again += datagrams(&mut out).len();
        }
        assert!(
            now - begin < Duration::from_secs(25),
            "after block {acknowledged}: {:?}",
            now - begin
        );
        assert!(again <= 5 * 4, "after block {acknowledged}: {again} datagrams for nobody");
        assert_eq!(engine.len(), 0);
    }
}
