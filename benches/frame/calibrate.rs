//! What this machine can do at this moment, for figures that have no peer to be compared with.

use super::{Goal, RUNS, Table};
use meshd_types::Digest;
use rcgen::{KeyPair, SigningKey as _};
use std::{
    hint::black_box,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

/// How long one run of a row takes.
const SPAN: Duration = Duration::from_secs(1);
/// Bytes of one hash, and of one write to the loopback.
const CHUNK: usize = 1 << 20;

/// The median rate of some work, in times a second.
pub fn rate(mut work: impl FnMut()) -> f64 {
    let mut rates: Vec<f64> = (0..RUNS)
        .map(|_| {
            let begin = Instant::now();
            let mut count = 0u32;
            while begin.elapsed() < SPAN {
                work();
                count += 1;
            }
            f64::from(count) / begin.elapsed().as_secs_f64()
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[RUNS / 2]
}

/// Prints SHA-256, P-256 and loopback, one core each.
pub fn calibrate(table: &mut Table) -> anyhow::Result<()> {
    let chunk = vec![7; CHUNK];
    let hashes = rate(|| {
        black_box(Digest::of(&chunk));
    });
    table.alone("calibration: SHA-256", "MB/s", hashes * CHUNK as f64 / 1e6, Goal::None);
    let key = KeyPair::generate()?;
    let signatures = rate(|| drop(black_box(key.sign(b"message"))));
    table.alone("calibration: ECDSA P-256 signatures", "/s", signatures, Goal::None);
    table.alone("calibration: loopback TCP", "GB/s", loopback(&chunk)?, Goal::None);
    Ok(())
}

fn loopback(chunk: &[u8]) -> std::io::Result<f64> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let mut out = TcpStream::connect(listener.local_addr()?)?;
    let (mut into, _) = listener.accept()?;
    let sink = thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        while into.read(&mut buffer).is_ok_and(|length| length > 0) {}
    });
    let mut broken = None;
    let writes = rate(|| broken = broken.take().or(out.write_all(chunk).err()));
    drop(out);
    // It only reads, and cannot panic.
    let _ = sink.join();
    broken.map_or(Ok(writes * chunk.len() as f64 / 1e9), Err)
}
