//! TFTP: many readers of one kernel. dnsmasq and tftpd-hpa do not speak RFC 7440; asked for
//! windows, they answer in lock step. async-tftp is the package of the design card, which meshd's
//! engine replaced: ADR 6.
//!
//! CPU is that of all processes of the server, from `/proc/PID/stat`; on veth the kernel counts
//! most of the client's receiving to it.

mod echo;
mod load;
mod servers;

use crate::frame::{Contender, Goal, RUNS, Table, Wire, medians};
use load::{Done, Load};
pub use servers::serve_async_tftp;
use servers::{Server, start};
use std::time::Duration;

/// One work, and what we want to be for it.
struct Work {
    name: &'static str,
    load: Load,
    /// Ratio to dnsmasq, in MB/s and in CPU.
    speed: Goal,
    cpu: Goal,
}

/// Speed and CPU beside the responder that knows nothing: what it takes is the kernel's.
const NEAR_ECHO: (Goal, Goal) = (Goal::AtLeast(0.9), Goal::AtMost(1.1));

const LOCK_STEP: Load = Load { clients: 64, block: 1468, window: 1, rounds: 1 };

/// All rows of TFTP.
pub fn rows(table: &mut Table) -> anyhow::Result<()> {
    let works = [
        Work {
            name: "64 clients, lock step",
            load: LOCK_STEP,
            speed: Goal::AtLeast(1.3),
            cpu: Goal::AtMost(0.6),
        },
        Work {
            name: "1 client, lock step",
            load: Load { clients: 1, rounds: 10, ..LOCK_STEP },
            speed: Goal::AtLeast(1.2),
            cpu: Goal::None,
        },
        Work {
            name: "64 clients, windows of 16",
            load: Load { window: 16, ..LOCK_STEP },
            speed: Goal::AtLeast(1.4),
            cpu: Goal::AtMost(0.25),
        },
    ];
    let wire = Wire::new()?;
    for work in &works {
        compare(table, &wire, work);
    }
    crowd(table, &wire)
}

fn compare(table: &mut Table, wire: &Wire, work: &Work) {
    let figures = |done: &Done, cpu: Duration| {
        anyhow::ensure!(
            done.complete == work.load.clients,
            "{} of {} clients",
            done.complete,
            work.load.clients
        );
        Ok([
            done.bytes as f64 / 1e6 / done.time.as_secs_f64(),
            cpu.as_secs_f64() * 1e9 / done.bytes as f64,
        ])
    };
    let run = |server| {
        move || {
            let (process, name) = start(server, wire)?;
            let before = process.cpu();
            let done = wire.client.inside(|| work.load.run(&name, &servers::kernel(wire)?))??;
            figures(&done, process.cpu().saturating_sub(before))
        }
    };
    let mut contenders: Vec<Contender<'_, 2>> = Server::ALL
        .map(|server| Contender {
            name: server.name(),
            program: server.program(),
            measure: Box::new(run(server)),
        })
        .into();
    if work.load.window == 1 {
        let measure = || {
            let responder = echo::start(wire, servers::kernel(wire)?)?;
            let done = wire.client.inside(|| work.load.run("kernel", &servers::kernel(wire)?))?;
            let cpu = responder.stop()?;
            figures(&done?, cpu)
        };
        contenders.push(Contender { name: "echo", program: None, measure: Box::new(measure) });
    }
    let results = medians(RUNS, &mut contenders);
    let Some([speed, cpu]) = results[0] else { return };
    for (peer, result) in contenders.iter().zip(results).skip(1) {
        let Some([their_speed, their_cpu]) = result else { continue };
        let (faster, cheaper) = match peer.name {
            "dnsmasq" => (work.speed, work.cpu),
            "echo" => NEAR_ECHO,
            _ => (Goal::None, Goal::None),
        };
        let name = format!("TFTP, {}", work.name);
        table.compare(&name, "MB/s", speed, (peer.name, their_speed), faster);
        // tftpd-hpa leaves no trace of what its children cost.
        if peer.name != "tftpd-hpa" {
            table.compare("  its CPU", "s/GB", cpu, (peer.name, their_cpu), cheaper);
        }
    }
}

/// As many as a rack that powers on at once, in lock step: who finishes? Once each, because peers
/// take the whole time.
fn crowd(table: &mut Table, wire: &Wire) -> anyhow::Result<()> {
    let load = Load { clients: 500, ..LOCK_STEP };
    for server in Server::ALL {
        if server.program().is_some_and(|program| !crate::frame::installed(program)) {
            continue;
        }
        let (_process, name) = start(server, wire)?;
        let done = wire.client.inside(|| load.run(&name, &servers::kernel(wire)?))??;
        if server == Server::Meshd {
            let goal = Goal::AtLeast(load.clients as f64);
            table.alone("TFTP, 500 clients: how many complete", "", done.complete as f64, goal);
            table.alone(
                "  all of them after",
                "s",
                done.time.as_secs_f64(),
                Goal::AtMost(load::PATIENCE.as_secs_f64()),
            );
        } else {
            table.note(&format!(
                "  {}: {} of 500 after {:.0} s",
                server.name(),
                done.complete,
                done.time.as_secs_f64()
            ));
        }
    }
    Ok(())
}
