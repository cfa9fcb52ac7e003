//! One altered bit in the files that a kill leaves: is it refused, is it harmless, or is something
//! gone without a word? The test of ADR 15.

use super::{
    engine::{ALL, Kind, Leases, lease, record},
    frame::{Goal, Table},
};
use anyhow::Context as _;
use std::{
    fs,
    panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook},
    path::{Path, PathBuf},
    process::Command,
};

/// Changes, each acknowledged alone before the next one.
const CHANGES: u32 = 300;
/// Bits that are altered, one in each try. Bytes that are zero are padding in most files, so none
/// is altered.
const TRIES: u64 = 60;

#[derive(Default)]
struct Outcome {
    refused: u32,
    whole: u32,
    lost: u32,
    /// The most records that were missing or altered.
    most: usize,
    /// Those of a copy without an altered bit.
    undamaged: usize,
}

pub fn rows(table: &mut Table) -> anyhow::Result<()> {
    let hook = take_hook();
    // An engine that panics refuses, too.
    set_hook(Box::new(|_| {}));
    let outcomes: Vec<_> = ALL.iter().map(|kind| damaged(*kind)).collect();
    set_hook(hook);
    for (kind, outcome) in ALL.iter().zip(outcomes) {
        let Outcome { refused, whole, lost, most, undamaged } =
            outcome.with_context(|| kind.name)?;
        let name = format!("a bit altered after a kill: {}, lost silently", kind.name);
        let goal = if kind.name == ALL[0].name { Goal::AtMost(0.0) } else { Goal::None };
        table.alone(&name, "", f64::from(lost), goal);
        table
            .note(&format!("  of {TRIES}: refused {refused}, whole {whole}; at most {most} of {CHANGES} records lost"));
        if undamaged > 0 {
            table.note(&format!("  a copy without an altered bit lost {undamaged}"));
        }
    }
    Ok(())
}

fn damaged(kind: Kind) -> anyhow::Result<Outcome> {
    let folder = tempfile::tempdir()?;
    let live = folder.path().join("live");
    let killed = folder.path().join("killed");
    let tried = folder.path().join("tried");
    fs::create_dir(&live)?;
    let mut engine = (kind.open)(&live)?;
    let mut all = Leases::new();
    for number in 0..CHANGES {
        let lease = lease(number, number);
        engine.commit(std::slice::from_ref(&lease))?;
        all.extend([record(&lease)?]);
    }
    copy(&live, &killed)?;
    drop(engine);
    let places = written(&killed)?;
    let missing =
        |read: &Leases| all.iter().filter(|(key, value)| read.get(*key) != Some(value)).count();
    copy(&killed, &tried)?;
    let mut outcome =
        Outcome { undamaged: missing(&(kind.open)(&tried)?.read()?), ..Outcome::default() };
    fs::remove_dir_all(&tried)?;
    for number in 0..TRIES {
        copy(&killed, &tried)?;
        // The same places in each run, spread over all files.
        let place = number * (places.len() as u64) / TRIES
            + number * 7_919 % (places.len() as u64 / TRIES).max(1);
        let (file, at) = &places[usize::try_from(place)? % places.len()];
        alter(&tried.join(file), *at, u8::try_from(number % 8)?)?;
        let read = catch_unwind(AssertUnwindSafe(|| (kind.open)(&tried)?.read()));
        match read {
            Ok(Ok(read)) if read == all => outcome.whole += 1,
            Ok(Ok(read)) => {
                outcome.lost += 1;
                outcome.most = outcome.most.max(missing(&read));
            }
            Ok(Err(_)) | Err(_) => outcome.refused += 1,
        }
        fs::remove_dir_all(&tried)?;
    }
    Ok(outcome)
}

fn copy(from: &Path, to: &Path) -> anyhow::Result<()> {
    let copied = Command::new("cp").args(["-a", "--sparse=always"]).arg(from).arg(to).status()?;
    anyhow::ensure!(copied.success(), "cp: {copied}");
    Ok(())
}

/// Every byte of every file that is not zero.
fn written(folder: &Path) -> anyhow::Result<Vec<(PathBuf, u64)>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in fs::read_dir(next)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let relative = path.strip_prefix(folder)?.to_owned();
            let bytes = fs::read(&path)?;
            found.extend(
                (0u64..)
                    .zip(&bytes)
                    .filter(|(_, byte)| **byte != 0)
                    .map(|(at, _)| (relative.clone(), at)),
            );
        }
    }
    anyhow::ensure!(!found.is_empty(), "nothing was written");
    found.sort();
    Ok(found)
}

fn alter(file: &Path, at: u64, bit: u8) -> anyhow::Result<()> {
    use std::os::unix::fs::FileExt as _;
    let file = fs::OpenOptions::new().read(true).write(true).open(file)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    byte[0] ^= 1 << bit;
    Ok(file.write_all_at(&byte, at)?)
}
