//! Power-on to online, `cargo bench --bench boot -- [--rounds N]`: meshd with Alpine beside stock
//! Alpine netboot from dnsmasq and nginx, and meshd with Debian beside LTSP.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `caller` | a machine that nodes of a peer call when they are online, with its servers |
//! | `central` | boots by meshd |
//! | `ltsp` | LTSP: a squashfs that nodes mount by NFS |
//! | `stock` | stock Alpine netboot |
//!
//! All boot the same VM on the same wire, in turns; the median counts. Peers have the kernel, the
//! modules and the packages of our image beside them. A node of a peer is online when its last
//! service has called; meshd's node is online when its agent has enrolled, its link is up and its
//! checks have passed, by the central node's own record. A change of role is measured warm and cold,
//! from the order of the reboot on.

#[allow(dead_code, unused_imports, reason = "each bench uses its part of the frame")]
#[path = "../frame/mod.rs"]
mod frame;
mod caller;
mod central;
mod ltsp;
mod stock;

use anyhow::Context as _;
use central::{Central, Reboot, System};
use frame::{Contender, Goal, Table};
use meshd_lab::{Options, Power, Rack, Shape};
use std::{
    path::Path,
    time::{Duration, Instant},
};

/// From power-on to online, under emulation on a busy machine.
const DEADLINE: Duration = Duration::from_secs(8 * 60);
/// What a boot of Alpine may take of stock's time.
const ALPINE_GOAL: f64 = 0.33;
/// What a boot of Debian may take of the time of LTSP.
const DEBIAN_GOAL: f64 = 0.5;
/// What a warm change of role may take of the time of a cold one.
const WARM_GOAL: f64 = 0.33;
/// The same for all: Debian's root is in memory, too.
const MEMORY_MIB: u32 = 2048;

/// Figures of one boot: seconds until online, and MiB of memory that are not available then.
type Boot = [f64; 2];

fn main() -> anyhow::Result<()> {
    let rounds = rounds(std::env::args().skip(1).filter(|argument| argument != "--bench"))?;
    frame::begin()?;
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let central = Central::prepare(repository)?;
    let blobs = repository.join(".lab/blobs");
    let stock = stock::Files::prepare(repository, &blobs, &repository.join(".lab/bench-stock"))?;
    let ltsp = ltsp::Files::prepare(repository, &repository.join(".lab/bench-ltsp"))?;
    let wire = central.options(System::Alpine);
    let mut contenders = [
        Contender {
            name: "meshd, Alpine",
            program: None,
            measure: Box::new(|| central.boot(System::Alpine)),
        },
        Contender {
            name: "stock Alpine",
            program: Some("dnsmasq"),
            measure: Box::new(|| peer("stock", &wire, |rack| stock.serve(rack))),
        },
        Contender {
            name: "meshd, Debian, ram",
            program: None,
            measure: Box::new(|| central.boot(System::DebianRam)),
        },
        Contender {
            name: "meshd, Debian, tethered",
            program: None,
            measure: Box::new(|| central.boot(System::DebianTethered)),
        },
        Contender {
            name: "LTSP",
            program: Some("ganesha.nfsd"),
            measure: Box::new(|| peer("LTSP", &wire, |rack| ltsp.serve(rack))),
        },
    ];
    let medians = frame::medians(rounds, &mut contenders);
    drop(contenders);
    let [alpine, stock, ram, tethered, ltsp] = medians[..] else {
        panic!("one figure for each contender")
    };
    let changes = [("Alpine", System::Alpine), ("Debian, ram", System::DebianRam)]
        .map(|(work, system)| (work, role_changes(&central, system, rounds)));
    let mut table = Table::new();
    let rows = [
        ("Alpine", alpine, ("dnsmasq+nginx", stock), Goal::AtMost(ALPINE_GOAL)),
        ("Debian, ram", ram, ("LTSP", ltsp), Goal::AtMost(DEBIAN_GOAL)),
        ("Debian, tethered", tethered, ("LTSP", ltsp), Goal::AtMost(DEBIAN_GOAL)),
    ];
    for (work, ours, (name, peer), goal) in rows {
        compare(&mut table, work, ours, (name, peer), goal);
    }
    for (work, [cold, warm]) in changes {
        let (Some(cold), Some(warm)) = (cold, warm) else { continue };
        for (change, cold, warm) in
            [("VMs to MPI", cold[0], warm[0]), ("MPI to VMs", cold[1], warm[1])]
        {
            let work = format!("{work}: {change}, warm");
            table.compare(&work, "s", warm, ("the same, cold", cold), Goal::AtMost(WARM_GOAL));
        }
    }
    table.finish("boot");
    Ok(())
}

/// Medians of the seconds of both changes of role, cold and warm.
fn role_changes(central: &Central, system: System, rounds: usize) -> [Option<[f64; 2]>; 2] {
    let contender = |name, reboot| Contender {
        name,
        program: None,
        measure: Box::new(move || central.change_roles(system, reboot)),
    };
    let mut contenders =
        [contender("a cold reboot", Reboot::Cold), contender("a warm reboot", Reboot::Warm)];
    frame::medians(rounds, &mut contenders).try_into().expect("one for each contender")
}

/// Two rows: time and memory.
fn compare(
    table: &mut Table,
    work: &str,
    ours: Option<Boot>,
    (name, peer): (&str, Option<Boot>),
    goal: Goal,
) {
    let Some([time, memory]) = ours else { return };
    let work =
        [format!("{work}: power-on to online"), format!("{work}: memory in use when online")];
    match peer {
        Some([peer_time, peer_memory]) => {
            table.compare(&work[0], "s", time, (name, peer_time), goal);
            table.compare(&work[1], "MiB", memory, (name, peer_memory), Goal::None);
        }
        None => {
            table.alone(&work[0], "s", time, Goal::None);
            table.alone(&work[1], "MiB", memory, Goal::None);
        }
    }
}

fn rounds(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<usize> {
    match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => Ok(frame::RUNS),
        (Some("--rounds"), Some(count)) => count.parse().context("--rounds takes a number"),
        _ => anyhow::bail!("usage: cargo bench --bench boot -- [--rounds N]"),
    }
}

/// The machine that all boot.
fn shape() -> Shape {
    Shape { memory_mib: MEMORY_MIB, ..Shape::default() }
}

/// One boot by a peer, on the wire and the machine of a rack without its central node.
fn peer(
    name: &str,
    options: &Options,
    serve: impl Fn(&Rack) -> anyhow::Result<caller::Caller>,
) -> anyhow::Result<Boot> {
    let mut rack = Rack::up(options, &mut |_| {})?;
    rack.stop_central()?;
    let server = serve(&rack)?;
    let begun = Instant::now();
    rack.power(1, Power::On)?;
    let online = server.until_called(&rack, DEADLINE);
    let took = begun.elapsed().as_secs_f64();
    let used = online.with_context(|| rack.log_ends(20))?;
    eprintln!("{name}: {took:.1} s, {used:.0} MiB in use");
    drop(server);
    rack.down()?;
    Ok([took, used])
}
