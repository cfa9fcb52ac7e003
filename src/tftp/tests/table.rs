//! Many transfers in one engine: capacity, eviction and timeouts.

use super::{
    super::{
        client::{Client, Origin},
        effect::{Effects, Event, Refusal},
        engine::{Engine, Limits},
        transfer::{DUPLICATE_WITHIN, MAX_SILENCE},
    },
    model::{CLIENT, ETHERNET, LIMITS, ack, datagrams, request},
};
use bytes::Bytes;
use meshd_types::MacAddr;
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

struct Table {
    engine: Engine<()>,
    out: Effects<()>,
    now: Instant,
}

impl Table {
    fn new(limits: Limits) -> Self {
        Table {
            engine: Engine::new(limits, Box::new(|_| ETHERNET)),
            out: Effects::default(),
            now: Instant::now(),
        }
    }

    /// Asks for a file of 3000 bytes; the datagrams that come back.
    fn ask(&mut self, client: SocketAddrV4, options: &str) -> Vec<Vec<u8>> {
        self.ask_from(Client::unobserved(client), options)
    }

    fn ask_from(&mut self, client: Client, options: &str) -> Vec<Vec<u8>> {
        let files = |name: &str| (name == "file").then(|| (Bytes::from(vec![9; 3000]), ()));
        self.engine.handle_request(self.now, client, &request(options), &files, &mut self.out);
        datagrams(&mut self.out)
    }

    fn send(&mut self, client: SocketAddrV4, packet: &[u8]) -> Vec<Vec<u8>> {
        self.engine.handle_packet(self.now, client, packet, &mut self.out);
        datagrams(&mut self.out)
    }

    fn pass(&mut self, time: Duration) -> Vec<Vec<u8>> {
        self.now += time;
        self.engine.tick(self.now, &mut self.out);
        datagrams(&mut self.out)
    }
}

fn client(host: u8, port: u16) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, host), port)
}

#[test]
fn transfer_is_completed_by_ack_of_last_block() {
    let mut table = Table::new(LIMITS);
    table.ask(CLIENT, "blksize 1468 ");
    for number in 0..3 {
        assert_eq!(table.send(CLIENT, &ack(number)).len(), 1);
        assert!(!table.out.events.iter().any(|event| matches!(event, Event::Completed)));
    }
    assert!(table.send(CLIENT, &ack(3)).is_empty());
    assert_eq!(table.out.events, [Event::Began, Event::Completed]);
    assert_eq!(table.out.completed, [(*CLIENT.ip(), ())]);
    assert_eq!((table.engine.len(), table.engine.next_deadline()), (0, None));
    assert!(
        table.send(CLIENT, &ack(3)).is_empty(),
        "a copy of the last acknowledgement is nobody's"
    );
}

#[test]
fn client_error_frees_transfer_and_same_port_may_retry() {
    let mut table = Table::new(LIMITS);
    for port_69 in [false, true] {
        table.ask(CLIENT, "tsize 0 ");
        let abort = b"\0\x05\0\0User aborted the transfer\0";
        if port_69 {
            let client = Client::unobserved(CLIENT);
            table.engine.handle_request(table.now, client, abort, &|_| None, &mut table.out);
        } else {
            table.send(CLIENT, abort);
        }
        assert_eq!(table.engine.len(), 0);
        assert_eq!(table.out.events.pop(), Some(Event::Aborted));
    }
    assert_eq!(table.ask(CLIENT, "blksize 1024 ").len(), 1);
}

#[test]
fn repeated_request_is_answered_again_but_duplicate_is_not() {
    let mut table = Table::new(LIMITS);
    let offer = table.ask(CLIENT, "blksize 1468 ");
    for _ in 0..1000 {
        assert!(
            table.ask(CLIENT, "blksize 1468 ").is_empty(),
            "100,000 requests a second are not 100,000 answers"
        );
    }
    table.now += DUPLICATE_WITHIN;
    assert_eq!(table.ask(CLIENT, "blksize 1468 "), offer, "the first answer was lost");
    assert_eq!(table.engine.len(), 1);
    table.send(CLIENT, &ack(0));
    assert!(table.ask(CLIENT, "blksize 1468 ").is_empty(), "a late copy does not disturb");
    assert_eq!(
        table.ask(CLIENT, "blksize 512 ").len(),
        1,
        "another request of the same port begins anew"
    );
    table.send(CLIENT, &ack(0));
    table.now += Duration::from_secs(1);
    assert_eq!(table.ask(CLIENT, "blksize 512 ").len(), 1, "the machine has started again");
    assert_eq!(table.engine.len(), 1);
}

#[test]
fn duplicate_ack_sends_nothing_but_shortens_resend_timer() {
    let mut table = Table::new(LIMITS);
    table.ask(CLIENT, "");
    let second = table.send(CLIENT, &ack(1));
    for _ in 0..100 {
        assert!(table.send(CLIENT, &ack(1)).is_empty());
    }
    assert_eq!(table.pass(Duration::from_millis(20)), second);
    assert!(table.send(CLIENT, &ack(1)).is_empty());
    assert!(table.pass(Duration::from_millis(500)).is_empty(), "only once");
    assert!(table.send(CLIENT, &ack(7)).is_empty(), "what was not sent cannot be acknowledged");
    assert_eq!(table.send(CLIENT, &ack(2)).len(), 1);
}

#[test]
fn transfer_without_acknowledgement_is_resent_once_and_dropped() {
    let mut table = Table::new(LIMITS);
    // Without options the first block is the answer. A requested timeout begins with the first
    // acknowledgement.
    for options in ["tsize 0 ", "", "timeout 60 "] {
        table.ask(CLIENT, options);
        let seconds: Vec<usize> =
            (0..4).map(|_| table.pass(Duration::from_secs(1)).len()).collect();
        assert_eq!(seconds, [1, 0, 0, 0], "{options:?}");
        assert_eq!(table.engine.len(), 0);
    }
}

#[test]
fn negotiated_timeout_is_used_and_bounded() {
    let mut table = Table::new(LIMITS);
    table.ask(CLIENT, "timeout 3 ");
    table.send(CLIENT, &ack(0));
    assert!(table.pass(Duration::from_millis(2900)).is_empty());
    assert_eq!(table.pass(Duration::from_millis(100)).len(), 1);
    table.ask(client(2, 9), "timeout 255 ");
    table.send(client(2, 9), &ack(0));
    table.pass(MAX_SILENCE);
    assert_eq!(table.engine.len(), 0);
}

#[test]
fn forged_requests_never_evict_active_transfer() {
    let limits = Limits { transfers: 4, window_bytes: 1 << 20 };
    let mut table = Table::new(limits);
    table.ask(CLIENT, "blksize 512 ");
    table.send(CLIENT, &ack(0));
    for port in 0..1000 {
        table.now += Duration::from_micros(10);
        assert_eq!(table.ask(client((port % 200) as u8, port), "blksize 512 ").len(), 1);
        assert!(table.engine.len() <= 4);
    }
    assert_eq!(table.send(CLIENT, &ack(1)).len(), 1);
}

#[test]
fn stalled_transfers_are_evicted_for_new_clients() {
    let mut table = Table::new(Limits { transfers: 4096, window_bytes: 32 << 20 });
    // A measured attack: blocks of 8 bytes, a timeout of a minute, one acknowledgement, and
    // silence.
    for port in 1..=4200 {
        let options = "blksize 8 timeout 60 ";
        table.ask(client(1, port), options);
        table.send(client(1, port), &ack(0));
    }
    table.pass(Duration::from_secs(1));
    for host in 2..=100 {
        assert_eq!(table.ask(client(host, 1), "blksize 512 ").len(), 1, "host {host} is answered");
        assert_eq!(table.send(client(host, 1), &ack(0)).len(), 1, "host {host} reads");
        table.pass(Duration::from_millis(10));
    }
    assert!(table.engine.len() <= 4096);
    for host in 2..=100 {
        assert_eq!(table.send(client(host, 1), &ack(1)).len(), 1, "host {host} keeps its place");
    }
}

#[test]
fn stalled_transfers_of_many_addresses_are_evicted() {
    let mut table = Table::new(Limits { transfers: 64, window_bytes: 32 << 20 });
    for host in 100..164 {
        table.ask(client(host, 1), "blksize 8 timeout 60 ");
        table.send(client(host, 1), &ack(0));
    }
    table.pass(Duration::from_secs(1));
    assert_eq!(table.ask(CLIENT, "blksize 512 ").len(), 1);
    // Requests with forged senders in between do not displace the new client.
    for port in 1..10 {
        table.ask(client(200, port), "");
    }
    assert_eq!(table.send(CLIENT, &ack(0)).len(), 1);
}

#[test]
fn full_table_evicts_only_transfers_above_the_share_of_their_address() {
    let mut table = Table::new(Limits { transfers: 4, window_bytes: 1 << 20 });
    for host in 1..=4 {
        table.ask(client(host, 1), "blksize 512 ");
        table.send(client(host, 1), &ack(0));
    }
    for number in 1..=3 {
        table.now += Duration::from_millis(400);
        (1..=4).for_each(|host| drop(table.send(client(host, 1), &ack(number))));
    }
    assert!(table.ask(client(9, 1), "").is_empty());
    assert!(
        matches!(table.out.events.last(), Some(Event::Full { .. })),
        "{:?}",
        table.out.events.last()
    );
    // One address may use all transfers while no other client waits. Then one of its transfers is
    // evicted, however fast it reads.
    let mut table = Table::new(Limits { transfers: 4, window_bytes: 1 << 20 });
    for port in 1..=4 {
        assert_eq!(table.ask(client(1, port), "blksize 512 ").len(), 1);
        table.send(client(1, port), &ack(0));
    }
    for number in 1..=3 {
        table.now += Duration::from_millis(400);
        (1..=4).for_each(|port| drop(table.send(client(1, port), &ack(number))));
    }
    assert_eq!(table.ask(client(9, 1), "").len(), 1);
    assert_eq!(table.engine.len(), 4);
}

#[test]
fn transfer_below_minimum_rate_is_dropped() {
    let mut table = Table::new(LIMITS);
    table.ask(CLIENT, "blksize 8 timeout 60 ");
    table.send(CLIENT, &ack(0));
    let mut answered = 0;
    for number in 1..=120 {
        table.pass(Duration::from_secs(1));
        answered += table.send(CLIENT, &ack(number)).len();
    }
    assert_eq!(table.engine.len(), 0);
    assert!((60..70).contains(&answered), "{answered} blocks of 8 bytes in two minutes");
}

#[test]
fn window_size_follows_free_budget() {
    let limits = Limits { window_bytes: 20 * 1468, ..LIMITS };
    let mut table = Table::new(limits);
    let windows: Vec<usize> = (1..=3)
        .map(|host| {
            table.ask(client(host, 1), "blksize 1468 windowsize 16 ");
            table.send(client(host, 1), &ack(0)).len()
        })
        .collect();
    // Three blocks are the whole file.
    assert_eq!(windows, [3, 3, 1]);
    table.send(client(1, 1), b"\0\x05\0\0\0");
    let again = table.ask(client(4, 1), "blksize 1468 windowsize 16 ");
    assert!(String::from_utf8_lossy(&again[0]).contains("windowsize\x0015"), "{again:?}");
}

#[test]
fn unknown_file_mode_and_write_get_error_codes() {
    let mut table = Table::new(LIMITS);
    let cases: [(&[u8], u8, Refusal); 3] = [
        (b"\0\x01a\0octet\0", 1, Refusal::NotFound { name: "a".to_owned() }),
        (b"\0\x01file\0netascii\0", 4, Refusal::Mode),
        (b"\0\x02file\0octet\0", 2, Refusal::Write),
    ];
    for (bytes, code, cause) in cases {
        let client = Client::unobserved(CLIENT);
        table.engine.handle_request(table.now, client, bytes, &|_| None, &mut table.out);
        let answers = datagrams(&mut table.out);
        assert_eq!((answers.len(), answers[0][..4].to_vec()), (1, vec![0, 5, 0, code]));
        assert_eq!(table.out.events.pop(), Some(Event::Refused { client: CLIENT, cause }));
    }
    assert_eq!(table.engine.len(), 0);
}

#[test]
fn clients_get_error_packet_at_shutdown() {
    let mut table = Table::new(LIMITS);
    table.ask(CLIENT, "tsize 0 ");
    table.engine.close(&mut table.out);
    assert_eq!(datagrams(&mut table.out)[0][..2], [0, 5]);
    assert_eq!(table.out.events.pop(), Some(Event::CutOff));
}

#[test]
fn transfers_of_one_ethernet_source_are_bounded_and_evict_their_own() {
    let mut table = Table::new(Limits { transfers: 64, window_bytes: 64 * 1468 });
    let mac = MacAddr([2, 0, 0, 0, 0, 6]);
    let machine = Client { address: CLIENT, origin: Origin::Nic(MacAddr([2, 0, 0, 0, 0, 7])) };
    table.ask_from(machine, "blksize 512 ");
    table.send(CLIENT, &ack(0));
    let sources = [(Origin::Nic(mac), 0..1000, 16), (Origin::Router(mac), 1000..2000, 48)];
    for (origin, ports, most) in sources {
        let before = table.engine.len();
        for port in ports {
            let address = client((port % 200) as u8 + 10, port);
            let answers = table.ask_from(Client { address, origin }, "windowsize 64 ");
            assert_eq!(answers.len(), 1);
        }
        assert_eq!(table.engine.len() - before, most.min(64 - before), "{origin:?}");
    }
    assert_eq!(table.send(CLIENT, &ack(1)).len(), 1, "the machine's transfer is not evicted");
}

#[test]
fn windows_of_one_ethernet_source_leave_budget_for_others() {
    let mut table = Table::new(Limits { transfers: 4096, window_bytes: 64 * 1468 });
    let origin = Origin::Nic(MacAddr([2, 0, 0, 0, 0, 6]));
    for port in 0..20 {
        let client = Client { address: client(6, port), origin };
        table.ask_from(client, "blksize 1468 windowsize 64 ");
    }
    let answers = table.ask(CLIENT, "blksize 1468 windowsize 16 ");
    assert!(String::from_utf8_lossy(&answers[0]).contains("windowsize\x0016"), "{answers:?}");
}

#[test]
fn postponed_blocks_are_sent_soon_and_count_as_no_retransmission() {
    let mut table = Table::new(LIMITS);
    table.ask(CLIENT, "blksize 512 ");
    let window = table.send(CLIENT, &ack(0));
    for _ in 0..100 {
        table.engine.postpone(table.now, CLIENT);
        assert_eq!(table.pass(Duration::from_millis(20)), window);
    }
    assert_eq!(table.send(CLIENT, &ack(1)).len(), 1);
    // A client that is silent for the whole time is dropped nevertheless.
    for _ in 0..2 * MAX_SILENCE.as_secs() {
        table.engine.postpone(table.now, CLIENT);
        table.pass(Duration::from_millis(500));
    }
    assert_eq!(table.engine.len(), 0);
    table.engine.postpone(table.now, CLIENT);
    table.ask(CLIENT, "");
    table.engine.postpone(table.now, CLIENT);
    let soon = table.pass(Duration::from_millis(20));
    assert!(soon.is_empty(), "a client that never answered is not served sooner");
}
