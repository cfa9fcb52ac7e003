//! CPU models of QEMU (`-cpu help`), cached for each QEMU binary.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

/// How a line of a model begins in `qemu-system-x86_64 -cpu help`.
const MODEL: &str = "x86 ";

type CpuModelSet = Arc<BTreeSet<String>>;

/// What each QEMU said, as long as it is the same file.
#[derive(Clone, Debug, Default)]
pub struct CpuModels(Arc<Mutex<BTreeMap<PathBuf, (SystemTime, CpuModelSet)>>>);

impl CpuModels {
    /// Those of a QEMU; `None` where it does not say. It blocks.
    pub fn of(&self, qemu: &Path) -> Option<CpuModelSet> {
        let changed = qemu.metadata().ok()?.modified().ok()?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, known)) = all.get(qemu).filter(|(seen, _)| *seen == changed) {
            return Some(known.clone());
        }
        let mut command = Command::new(qemu);
        let said = command.args(["-cpu", "help"]).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
        let known = Arc::new(read(&String::from_utf8_lossy(&said.stdout)));
        if known.is_empty() {
            tracing::warn!(qemu = %qemu.display(), status = %said.status, "QEMU does not say which processors it knows");
            return None;
        }
        all.insert(qemu.to_owned(), (changed, known.clone()));
        Some(known)
    }
}

fn read(text: &str) -> BTreeSet<String> {
    text.lines().filter_map(|line| line.strip_prefix(MODEL)?.split_whitespace().next()).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qemu_is_asked_once_and_again_when_it_is_another() {
        use crate::fake::write_program;
        use std::fs;
        let dir = tempfile::tempdir().expect("a folder");
        let (qemu, count) = (dir.path().join("qemu"), dir.path().join("count"));
        let says = |words: &str| {
            let text = format!("#!/bin/sh\necho >>{}\ncat <<'END'\n{words}\nEND\n", count.display());
            let fresh = dir.path().join("new");
            write_program(&fresh, &text);
            fs::rename(fresh, &qemu).expect("there");
        };
        let asked = || fs::read_to_string(&count).unwrap_or_default().lines().count();
        let models = CpuModels::default();
        assert!(models.of(&qemu).is_none());
        says(
            "Available CPUs:\nx86 EPYC   (alias of EPYC-v4)\nx86 host   (only with KVM)\n\nRecognized CPUID flags:\n  svm",
        );
        let known: Vec<String> = models.of(&qemu).expect("it says").iter().cloned().collect();
        assert_eq!(known, ["EPYC", "host"]);
        assert!(models.of(&qemu).is_some() && asked() == 1);
        says("nothing");
        fs::File::open(&qemu).expect("there").set_modified(SystemTime::UNIX_EPOCH).expect("set");
        assert!(models.of(&qemu).is_none());
    }
}
