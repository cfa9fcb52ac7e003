//! Checks the invariants of the engine for arbitrary packets of a few clients while time passes.
//! Used by fuzzing and tests.

use crate::{
    client::{Client, Origin},
    effect::{Effects, Event, Payload},
    engine::{Engine, Limits},
    negotiation::MAX_WINDOW,
};
use bytes::Bytes;
use meshd_types::MacAddr;
use std::{
    net::{Ipv4Addr, SocketAddrV4},
    time::{Duration, Instant},
};

const LIMITS: Limits = Limits { transfers: 3, window_bytes: 4000 };
/// With small blocks, more blocks than block numbers.
const LENGTH: usize = 70_000 * 8;

/// Feeds arbitrary bytes to an engine and panics if an invariant is violated.
///
/// Each step is a byte for the client, a byte for the action (pass time, or send a packet of this
/// length to one of the two ports), and the packet.
pub fn check_invariants(bytes: &[u8]) {
    let file = Bytes::from(vec![7; LENGTH]);
    let mut engine = Engine::new(LIMITS, Box::new(|_| 1000));
    let mut now = Instant::now();
    let mut rest = bytes;
    while let [sender, control, more @ ..] = rest {
        let client = SocketAddrV4::new(
            Ipv4Addr::new(10, 0, 0, sender % 3),
            1000 + u16::from(sender / 3 % 3),
        );
        let length = usize::from(control & 0x3f).min(more.len());
        let (packet, after) = more.split_at(length);
        let mut out = Effects::default();
        match control >> 6 {
            0 => now += Duration::from_millis(u64::from(control & 0x3f).pow(3)),
            1 => engine.handle_request(
                now,
                from(client),
                packet,
                &|_| Some((file.clone(), ())),
                &mut out,
            ),
            _ => engine.handle_packet(now, client, packet, &mut out),
        }
        engine.tick(now, &mut out);
        check(&engine, now, &out);
        rest = if control >> 6 == 0 { more } else { after };
    }
    let mut out = Effects::default();
    engine.close(&mut out);
    assert_eq!(engine.len(), 0);
    assert_eq!(engine.next_deadline(), None, "no timer is left");
}

/// Returns the client with the Ethernet source of its address.
fn from(address: SocketAddrV4) -> Client {
    let [.., host] = address.ip().octets();
    let mac = MacAddr([2, 0, 0, 0, 0, host]);
    let origin = match host {
        0 => Origin::Unobserved,
        1 => Origin::Nic(mac),
        _ => Origin::Router(mac),
    };
    Client { address, origin }
}

fn check(engine: &Engine<()>, now: Instant, out: &Effects<()>) {
    assert!(engine.len() <= LIMITS.transfers);
    assert_eq!(engine.next_deadline().is_some(), !engine.is_empty(), "each transfer has a timer");
    assert!(engine.next_deadline().is_none_or(|at| at > now), "past deadlines were handled");
    for send in &out.sends {
        match &send.payload {
            Payload::Packet(packet) => assert!(packet.len() <= 512),
            Payload::Blocks { block, first, count, .. } => {
                assert!(*first >= 1 && (1..=MAX_WINDOW).contains(count) && *block >= 8);
                let last = first + u64::from(*count) - 1;
                assert!(
                    (last - 1) * u64::from(*block) <= LENGTH as u64,
                    "no block beyond the last"
                );
            }
        }
    }
    // A packet concerns one client; a deadline concerns at most all of them.
    assert!(out.sends.len() <= 1 + LIMITS.transfers);
    let ended = out.events.iter().filter(|event| matches!(event, Event::TimedOut { .. })).count();
    assert!(ended <= LIMITS.transfers);
}
