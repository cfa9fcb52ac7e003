//! CPU models of QEMU (`-cpu help`), cached for each QEMU binary.

use crate::vm::lock_helpers::locked;
use meshd_types::Architecture;
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::SystemTime,
};

type CpuModelSet = Arc<BTreeSet<String>>;

/// Models by QEMU binary, valid for one modification time.
#[derive(Clone, Debug, Default)]
pub struct CpuModels(Arc<Mutex<BTreeMap<PathBuf, (SystemTime, CpuModelSet)>>>);

impl CpuModels {
    /// Returns the models of a QEMU binary; `None` if QEMU does not list them. Blocks.
    pub fn get(&self, qemu: &Path) -> Option<CpuModelSet> {
        let changed = qemu.metadata().ok()?.modified().ok()?;
        let mut all = locked(&self.0);
        if let Some((_, models)) = all.get(qemu).filter(|(cached_at, _)| *cached_at == changed) {
            return Some(models.clone());
        }
        let mut command = Command::new(qemu);
        let output = command
            .args(["-cpu", "help"])
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .output()
            .ok()?;
        let models = Arc::new(parse(&String::from_utf8_lossy(&output.stdout)));
        if models.is_empty() {
            tracing::warn!(qemu = %qemu.display(), status = %output.status, "QEMU does not list its CPU models");
            return None;
        }
        all.insert(qemu.to_owned(), (changed, models.clone()));
        Some(models)
    }
}

fn parse(text: &str) -> BTreeSet<String> {
    let Some(architecture) = Architecture::host() else { return BTreeSet::new() };
    let prefix = architecture.facts().qemu_model_prefix;
    text.lines()
        .filter_map(|line| Some(line.strip_prefix(prefix)?.split_whitespace().next()?.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_cached_until_the_qemu_binary_changes() {
        use crate::fake::write_program;
        use std::fs;
        let dir = tempfile::tempdir().expect("a folder");
        let qemu = dir.path().join("qemu");
        let count = dir.path().join("count");
        let install = |output: &str| {
            let text =
                format!("#!/bin/sh\necho >>{}\ncat <<'END'\n{output}\nEND\n", count.display());
            let new = dir.path().join("new");
            write_program(&new, &text);
            fs::rename(new, &qemu).expect("renamed");
        };
        let calls = || fs::read_to_string(&count).unwrap_or_default().lines().count();
        let models = CpuModels::default();
        assert!(models.get(&qemu).is_none());
        install(
            "Available CPUs:\nx86 EPYC   (alias of EPYC-v4)\nx86 host   (only with KVM)\n\nRecognized CPUID flags:\n  svm",
        );
        let known: Vec<String> = models.get(&qemu).expect("a list").iter().cloned().collect();
        assert_eq!(known, ["EPYC", "host"]);
        assert!(models.get(&qemu).is_some() && calls() == 1);
        install("nothing");
        fs::File::open(&qemu).expect("there").set_modified(SystemTime::UNIX_EPOCH).expect("set");
        assert!(models.get(&qemu).is_none());
    }
}
