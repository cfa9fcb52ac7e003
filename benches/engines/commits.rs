//! Durable changes a second: one writer that waits for each, and 64 writers whose changes share a
//! flush.

use super::{
    engine::{ALL, Kind, lease},
    frame::{Contender, Goal, RUNS, Table, medians},
};
use std::time::{Duration, Instant};

/// How long one run of a contender takes.
const SPAN: Duration = Duration::from_millis(500);
/// Writers, as a rack that powers on has them. The peers get their changes as one batch, which is
/// the best that they can do.
const GROUPS: [(u32, &str); 2] =
    [(1, "durable changes, 1 writer"), (64, "durable changes, 64 writers")];

pub fn rows(table: &mut Table) -> anyhow::Result<()> {
    for (writers, name) in GROUPS {
        let mut contenders = ALL.map(|kind| Contender {
            name: kind.name,
            program: None,
            measure: Box::new(move || Ok([rate(kind, writers)?])),
        });
        let results = medians(RUNS, &mut contenders);
        let Some([ours]) = results[0] else { continue };
        for (peer, result) in contenders.iter().zip(results).skip(1) {
            if let Some([theirs]) = result {
                table.compare(name, "/s", ours, (peer.name, theirs), Goal::None);
            }
        }
    }
    Ok(())
}

fn rate(kind: Kind, writers: u32) -> anyhow::Result<f64> {
    let folder = tempfile::tempdir()?;
    let mut engine = (kind.open)(folder.path())?;
    let begin = Instant::now();
    let mut rounds = 0;
    while begin.elapsed() < SPAN {
        let leases: Vec<_> = (0..writers).map(|writer| lease(writer, rounds)).collect();
        engine.commit(&leases)?;
        rounds += 1;
    }
    Ok(f64::from(rounds) * f64::from(writers) / begin.elapsed().as_secs_f64())
}
