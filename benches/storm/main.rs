//! A boot storm: thousands of machines power on, and every one of them goes through every protocol
//! step of the boot chain with real packets, real TLS and a real link, until the central node calls
//! it online.
//!
//! `cargo bench --bench storm -- [--nodes N] [--over SECONDS] [--bulk yes] [--seconds LIMIT]`
//!
//! Without bulk the image's parts, the loader and the agent are a few hundred bytes each; every
//! request for them is made all the same. Machines and central node share the processors of this
//! machine. What the rows mean stands in docs/performance.md.

#[allow(dead_code, unused_imports, reason = "each bench uses its part of the frame")]
#[path = "../frame/mod.rs"]
mod frame;

mod agent;
mod arguments;
mod dhcp;
mod fabric;
mod fault;
mod http;
mod machine;
mod overlay;
mod report;
mod tally;
mod tftp;
mod views;

use anyhow::Context as _;
use arguments::Arguments;
use frame::{Site, Wire};
use machine::Machine;
use meshd_agent::facts;
use meshd_agent::system::Tree;
use meshd_proto::Facts;
use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};
use tally::{Step, Tally};
use tokio::{sync::OnceCell, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Between two looks at how far the machines are.
const LOOK: Duration = Duration::from_millis(500);
/// Files that are open at once beside one for each machine: its link, or what it fetches before
/// there is one.
const SPARE_FILES: u64 = 4096;

/// What all machines share.
pub struct Storm {
    fabric: fabric::Fabric,
    tally: Tally,
    trust: OnceCell<agent::Trust>,
    /// Of a machine with as many devices as this one; each fills in what is its own.
    facts: Facts,
    /// What the firmware fetches.
    loader: &'static str,
    over: CancellationToken,
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::read(std::env::args().skip(1))?;
    frame::begin()?;
    raise_file_limit(arguments.nodes)?;
    let wire = Wire::new()?;
    fabric::attach(&wire)?;
    let site = site(&arguments);
    let (server, _) = site.serve(&wire)?;
    frame::calibrate(&mut frame::Table::new())?;
    println!(
        "storm: {} machines power on within {} s, bulk {}",
        arguments.nodes,
        arguments.over.as_secs_f64(),
        if arguments.bulk { "included" } else { "left out" }
    );
    wire.client.inside(|| -> anyhow::Result<()> {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
        runtime.block_on(weather(&arguments, &wire, &site, server))
    })?
}

/// The site: everybody is let in; the machines are behind a relay.
fn site(arguments: &Arguments) -> Site {
    let segment = format!(
        "[[segment]]\nrelay = \"{}\"\nrange = \"{}\"\nnetmask = \"255.255.0.0\"\nlease = \"1h\"",
        fabric::RELAY,
        fabric::RANGE
    );
    let site = Site { more: segment, ..Site::default() };
    if arguments.bulk {
        site
    } else {
        Site { agent_bytes: 400, part_bytes: [400; 4], loader_bytes: Some(400), ..site }
    }
}

/// Both ends inherit it.
fn raise_file_limit(nodes: u32) -> anyhow::Result<()> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let wanted = u64::from(nodes) + SPARE_FILES;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    let least = maximum.map_or(wanted, |maximum| maximum.max(wanted));
    setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(least) }).with_context(|| {
        format!("{nodes} machines need {wanted} open files; raise the hard limit (ulimit -Hn), or take fewer machines")
    })
}

async fn weather(
    arguments: &Arguments,
    wire: &Wire,
    site: &Site,
    server: frame::Server,
) -> anyhow::Result<()> {
    let storm = Arc::new(Storm {
        fabric: fabric::Fabric::open()?,
        tally: Tally::default(),
        trust: OnceCell::new(),
        facts: facts::collect(
            &Tree::new(Path::new("/")),
            Path::new("/nowhere"),
            None,
            None,
            &Facts::default(),
        ),
        loader: "snponly.efi",
        over: CancellationToken::new(),
    });
    let relay = Arc::clone(&storm);
    tokio::spawn(async move { relay.fabric.relay().await });
    let begin = report::Moment::now();
    let cpu = server.cpu();
    let mut machines = JoinSet::new();
    for number in 0..arguments.nodes {
        let machine = Machine::new(Arc::clone(&storm), number);
        let power_on = arguments.over.mul_f64(f64::from(number) / f64::from(arguments.nodes));
        machines.spawn(async move {
            tokio::time::sleep(power_on).await;
            machine.run().await;
        });
    }
    watch(arguments, &storm, begin, Step::Link).await?;
    let report = tokio::task::block_in_place(|| {
        report::Report::new(arguments, wire, &server, &storm, begin, cpu)
    })?;
    report.print();
    tokio::task::block_in_place(|| views::measure(arguments, wire, &server))?;
    println!("storm: meshd is killed and started again; every agent dials anew");
    let began = report::Moment::now();
    let server = tokio::task::block_in_place(|| {
        server.kill();
        site.start(wire)
    })?;
    watch(arguments, &storm, began, Step::Return).await?;
    report::print_return(arguments, &storm, began, server.peak_memory());
    storm.over.cancel();
    machines.shutdown().await;
    Ok(())
}

/// Waits until every machine that has not given up has finished a step, or time is up.
async fn watch(
    arguments: &Arguments,
    storm: &Storm,
    begin: report::Moment,
    step: Step,
) -> anyhow::Result<()> {
    let all = usize::try_from(arguments.nodes)?;
    let mut looks = tokio::time::interval(LOOK);
    let end = Instant::now() + arguments.limit;
    loop {
        looks.tick().await;
        let lost = usize::try_from(storm.tally.lost())?;
        report::progress(begin.elapsed(), &storm.tally);
        if storm.tally.finished(step) + lost >= all || Instant::now() > end {
            return Ok(());
        }
    }
}
