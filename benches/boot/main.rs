//! Power-on to online, `cargo bench --bench boot -- [--rounds N] [alpine|debian]`: meshd with Alpine
//! beside stock Alpine netboot from dnsmasq and nginx, and meshd with Debian beside LTSP.
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
    let arguments: Vec<String> =
        std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let (rounds, parts) = parse(&arguments)?;
    frame::begin()?;
    let mut table = Table::new();
    for part in parts {
        match part {
            Part::Alpine => measure_alpine(&mut table, rounds)?,
            Part::Debian => measure_debian(&mut table, rounds)?,
        }
    }
    table.finish("boot");
    Ok(())
}

/// Measures Alpine, which installs packages at boot or is a root image, beside stock Alpine.
fn measure_alpine(table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    let systems = [System::Alpine, System::AlpineRam, System::AlpineTethered];
    let central = Central::prepare(repository(), &systems)?;
    let blobs = repository().join(".lab/blobs");
    let stock =
        stock::Files::prepare(repository(), &blobs, &repository().join(".lab/bench-stock"))?;
    let wire = central.options(System::Alpine);
    let measured = measure_beside(
        rounds,
        &central,
        systems,
        Contender {
            name: "stock Alpine",
            program: Some("dnsmasq"),
            measure: Box::new(|| peer("stock", &wire, |rack| stock.serve(rack))),
        },
    );
    let goal = Goal::AtMost(ALPINE_GOAL);
    for (work, ours) in ["Alpine", "Alpine root, ram", "Alpine root, tethered"].iter().zip(measured)
    {
        compare(table, work, ours.0, ("dnsmasq+nginx", ours.1), goal);
    }
    compare_role_changes(table, &central, "Alpine", System::Alpine, rounds);
    Ok(())
}

/// Measures Debian beside LTSP.
fn measure_debian(table: &mut Table, rounds: usize) -> anyhow::Result<()> {
    let systems = [System::DebianRam, System::DebianTethered];
    let central = Central::prepare(repository(), &systems)?;
    let ltsp = ltsp::Files::prepare(repository(), &repository().join(".lab/bench-ltsp"))?;
    let wire = central.options(System::Alpine);
    let measured = measure_beside(
        rounds,
        &central,
        systems,
        Contender {
            name: "LTSP",
            program: Some("ganesha.nfsd"),
            measure: Box::new(|| peer("LTSP", &wire, |rack| ltsp.serve(rack))),
        },
    );
    let goal = Goal::AtMost(DEBIAN_GOAL);
    for (work, ours) in ["Debian, ram", "Debian, tethered"].iter().zip(measured) {
        compare(table, work, ours.0, ("LTSP", ours.1), goal);
    }
    compare_role_changes(table, &central, "Debian, ram", System::DebianRam, rounds);
    Ok(())
}

/// Medians of boots of systems, each beside the median of their peer.
fn measure_beside<const N: usize>(
    rounds: usize,
    central: &Central,
    systems: [System; N],
    peer: Contender<'_, 2>,
) -> [(Option<Boot>, Option<Boot>); N] {
    let ours = |system: System| Contender {
        name: system.name(),
        program: None,
        measure: Box::new(move || central.boot(system)),
    };
    let mut contenders: Vec<_> = systems.map(ours).into_iter().chain([peer]).collect();
    let medians = frame::medians(rounds, &mut contenders);
    std::array::from_fn(|number| (medians[number], medians[N]))
}

fn compare_role_changes(
    table: &mut Table,
    central: &Central,
    work: &str,
    system: System,
    rounds: usize,
) {
    let [Some(cold), Some(warm)] = role_changes(central, system, rounds) else { return };
    for (change, cold, warm) in [("VMs to MPI", cold[0], warm[0]), ("MPI to VMs", cold[1], warm[1])]
    {
        let work = format!("{work}: {change}, warm");
        table.compare(&work, "s", warm, ("the same, cold", cold), Goal::AtMost(WARM_GOAL));
    }
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
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

/// The boots that are measured beside one peer.
#[derive(Clone, Copy)]
enum Part {
    Alpine,
    Debian,
}

/// Returns the number of rounds, and the parts to measure.
fn parse(arguments: &[String]) -> anyhow::Result<(usize, Vec<Part>)> {
    let usage = "usage: cargo bench --bench boot -- [--rounds N] [alpine|debian]";
    let (rounds, words) = match arguments {
        [flag, count, words @ ..] if flag == "--rounds" => {
            (count.parse().context("--rounds takes a number")?, words)
        }
        words => (frame::RUNS, words),
    };
    let parts = match words {
        [] => vec![Part::Alpine, Part::Debian],
        [word] if word == "alpine" => vec![Part::Alpine],
        [word] if word == "debian" => vec![Part::Debian],
        _ => anyhow::bail!(usage),
    };
    Ok((rounds, parts))
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
