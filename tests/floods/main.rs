//! Four machines boot while one host floods their network: a flood of each kind, for
//! `MESHD_FLOOD_SECONDS` (default: 600) or until all machines are online, whatever takes longer.
//! `make test-floods` runs it; the table is printed and written to `target/floods.txt`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on says where")]

mod flood;
mod frames;
#[path = "../e2e/racks.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod racks;
#[path = "../e2e/overlays.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod overlays;
#[path = "../e2e/boot/attacker.rs"]
#[allow(dead_code, reason = "shared with the end-to-end tests")]
mod attacker;

use attacker::asks_in_vain;
use flood::{Attacker, Flood, UNKNOWN, unknown_address};
use frames::mac_of;
use meshd_lab::{Firmware, Mix, Neighbour, Power, Rack};
use meshd_types::MacAddr;
use racks::{OrEnd, repository, until_phase, up};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    env, fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

const PLACES: [u8; 4] = [1, 2, 3, 4];
/// All four on two processors that the flood uses too.
const BOOT: Duration = Duration::from_secs(20 * 60);
/// Orders that are on record before the floods, and after them.
const ORDERS: usize = 1_000;
/// Connections that one host holds.
const CONNECTIONS: u64 = 22_000;

/// One row of the report.
struct Row {
    flood: String,
    sent: u64,
    boot: Duration,
    flooded: Duration,
    memory_mib: u64,
    state_mib: u64,
}

#[test]
fn machines_boot_during_each_flood_and_evidence_is_kept() {
    let connections = raise_own_limit();
    let mut test = up(|mut options, _| {
        (options.nodes, options.powered) = (4, false);
        options.firmware = Mix::of([Firmware::Bios, Firmware::Uefi]);
        options.set("enroll.policy", "approve")
    });
    let rack = &mut test.rack;
    let host = rack.neighbour("flood", attacker::ADDRESS).or_end();
    give_cards(&host, rack);
    let_all_in(rack);
    let mut rows = vec![boot(rack, "none", Duration::ZERO)];
    report(&rows);
    order(rack);
    asks_in_vain(rack, &host, PLACES[0], "before the floods");
    let orders = recorded_orders(rack);
    let alarms = alarms(rack);
    assert!(orders >= ORDERS && !alarms.is_empty(), "{orders} orders, {alarms:?}");

    let seconds =
        env::var("MESHD_FLOOD_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(600);
    let victims: Vec<MacAddr> = PLACES.iter().map(|place| rack.identity(*place).mac).collect();
    for kind in Flood::ALL {
        rows.push(flooded(rack, &host, kind, &victims, connections, Duration::from_secs(seconds)));
        report(&rows);
        assert_eq!(recorded_orders(rack), orders, "{kind:?}: an operator's order is gone");
        assert!(self::alarms(rack).is_superset(&alarms), "{kind:?}: an alarm is gone");
    }
}

/// Boots all machines while the host floods, and ends the flood after this time.
fn flooded(
    rack: &mut Rack,
    host: &Neighbour,
    kind: Flood,
    victims: &[MacAddr],
    connections: usize,
    least: Duration,
) -> Row {
    let stop = AtomicBool::new(false);
    let central = rack.site().segments[0].address.expect("the lab's site names it");
    let mac = rack.namespace().inside(|| mac_of("br0")).or_end().expect("the rack's bridge");
    let attacker = Attacker { central, mac, victims, connections, stop: &stop };
    thread::scope(|scope| {
        let flood = scope.spawn(|| host.inside(|| attacker.run(kind)));
        // The flood ends also where this test fails.
        let ended = Ended(&stop);
        let mut row = boot(rack, &format!("{kind:?}"), least);
        drop(ended);
        row.sent = flood.join().expect("the flood ran").or_end().expect("the flood was sent");
        row
    })
}

struct Ended<'a>(&'a AtomicBool);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Switches all machines off and on; returns once all are online, at the earliest after `least`.
fn boot(rack: &mut Rack, flood: &str, least: Duration) -> Row {
    let before: Vec<Value> = PLACES.iter().map(|place| session(rack, *place)).collect();
    let began = Instant::now();
    for place in PLACES {
        rack.power(place, Power::Off).or_end();
        rack.power(place, Power::On).or_end();
    }
    for (place, old) in PLACES.into_iter().zip(before) {
        rack.wait_node(place, BOOT, "online by a new boot", |node| {
            node["phase"] == "online" && node["boot"]["session"] != old
        })
        .or_end();
    }
    let boot = began.elapsed();
    let end = began + least;
    while Instant::now() < end {
        thread::park_timeout(end.saturating_duration_since(Instant::now()));
    }
    let memory_mib = memory(rack);
    let state_mib = store_size(rack);
    Row { flood: flood.to_owned(), sent: 0, boot, flooded: began.elapsed(), memory_mib, state_mib }
}

fn session(rack: &Rack, place: u8) -> Value {
    rack.node(place).or_end().map_or(Value::Null, |node| node["boot"]["session"].clone())
}

/// Lets the four machines in when each has shown itself.
fn let_all_in(rack: &mut Rack) {
    for place in PLACES {
        rack.power(place, Power::On).or_end();
    }
    for place in PLACES {
        rack.wait_node(place, BOOT, "known", |node| node["phase"] == "discovered").or_end();
        rack.run_cli(&["node", "approve", &rack.id(place).to_string()]).or_end();
    }
    for place in PLACES {
        until_phase(rack, place, "online", BOOT);
    }
}

/// Gives the host cards of its own, each of which answers ARP for its own address alone.
fn give_cards(host: &Neighbour, rack: &Rack) {
    let central = rack.site().segments[0].address.expect("the lab's site names it");
    let set =
        |name: &str, value: &str| fs::write(format!("/proc/sys/net/ipv4/conf/all/{name}"), value);
    host.inside(|| set("arp_ignore", "1").and_then(|()| set("arp_announce", "2")))
        .or_end()
        .expect("ARP is strict");
    for number in 0..UNKNOWN {
        let name = format!("m{number}");
        let address = unknown_address(central, number);
        let namespace = host.namespace();
        namespace
            .ip(&["link", "add", &name, "link", "eth0", "type", "macvlan", "mode", "bridge"])
            .or_end();
        namespace.ip(&["address", "add", &format!("{address}/24"), "dev", &name]).or_end();
        namespace.ip(&["link", "set", &name, "up"]).or_end();
    }
}

/// Gives as many orders as have to stay on record.
fn order(rack: &Rack) {
    let id = rack.id(PLACES[0]).to_string();
    for number in 0..ORDERS / 2 {
        let reason = format!("before the floods: {number}");
        for verb in ["maintenance", "resume"] {
            rack.run_cli(&["node", verb, &id, "--reason", &reason]).or_end();
        }
    }
}

fn recorded_orders(rack: &Rack) -> usize {
    let text = rack.run_cli(&["audit", "--limit", "20000", "-o", "json"]).or_end();
    text.matches("before the floods: ").count()
}

/// Times of the alarms of the rack's own machines.
fn alarms(rack: &Rack) -> BTreeSet<String> {
    let of = |place: u8| {
        let text = rack
            .run_cli(&[
                "events",
                "--node",
                &rack.id(place).to_string(),
                "--limit",
                "10000",
                "-o",
                "json",
            ])
            .or_end();
        let all = text
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).expect("one JSON object a line"));
        all.filter(|event| event["kind"] == "boot_impersonated")
            .map(|event| event["time"].to_string())
            .collect::<Vec<_>>()
    };
    PLACES.into_iter().flat_map(of).collect()
}

/// Resident memory of meshd, in MiB.
fn memory(rack: &Rack) -> u64 {
    let process = rack.status().meshd.expect("meshd runs");
    let status = fs::read_to_string(format!("/proc/{process}/status")).expect("its status");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("its memory");
    line.split_whitespace().next().and_then(|kib| kib.parse::<u64>().ok()).expect("a number") / 1024
}

/// Size of the store, in MiB.
fn store_size(rack: &Rack) -> u64 {
    let files = fs::read_dir(rack.dir().join("state/store")).expect("the store").flatten();
    files.filter_map(|file| file.metadata().ok()).map(|data| data.len()).sum::<u64>() >> 20
}

fn report(rows: &[Row]) {
    let usual = rows[0].boot.as_secs_f64();
    let mut text = String::from(
        "flood                sent      flooded   4 machines online  of usual  memory   store\n",
    );
    for row in rows {
        let boot = row.boot.as_secs_f64();
        let flooded = row.flooded.as_secs();
        text += &format!(
            "{:<17} {:>8} {flooded:>10} s {boot:>16.0} s {:>8.2} {:>4} MiB {:>3} MiB\n",
            row.flood,
            row.sent,
            boot / usual,
            row.memory_mib,
            row.state_mib
        );
    }
    eprintln!("{text}");
    fs::write(repository().join("target/floods.txt"), text).expect("the report");
}

/// This test opens more files than Linux gives a program that does not ask. Returns the connections
/// that it can hold.
fn raise_own_limit() -> usize {
    let wanted = CONNECTIONS + 1_000;
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Root may raise the hard limit, except in some containers.
    let both = Rlimit {
        current: Some(wanted),
        maximum: Some(maximum.map_or(wanted, |most| most.max(wanted))),
    };
    if setrlimit(Resource::Nofile, both).is_err() {
        setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("the limit");
    }
    let current = getrlimit(Resource::Nofile).current.unwrap_or(wanted);
    usize::try_from(current.saturating_sub(1_000).min(CONNECTIONS)).expect("a small number")
}
