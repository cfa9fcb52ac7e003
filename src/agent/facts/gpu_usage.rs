//! Utilisation of GPUs, from `nvidia-smi` of the host's driver. GPUs of VMs are not the host's.

use crate::system::{Tree, holders::GPU_QUERY_ARGUMENTS};
use std::{
    path::Path,
    process::{ExitStatus, Stdio},
    time::Duration,
};
use tokio::{io::AsyncReadExt as _, process::Command, task::JoinHandle, time::timeout};

const PROGRAMS: [&str; 2] = ["/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi"];
/// A driver without its daemon needs seconds to start; one that hangs never answers.
const TIME_LIMIT: Duration = Duration::from_secs(10);
/// Maximum length of the output, in bytes.
const MAX_OUTPUT: u64 = 64 << 10;
const PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// Runs the program in the background, at most one at a time.
#[derive(Default)]
pub(super) struct GpuMeter(Option<JoinHandle<Option<u8>>>);

impl GpuMeter {
    /// Returns the result of the run that the last call began, and begins the next one. A program
    /// that the kernel does not end has no result, and no other one begins.
    pub(super) fn next_percent(&mut self, tree: &Tree) -> Option<u8> {
        if self.0.as_ref().is_some_and(|run| !run.is_finished()) {
            return None;
        }
        let program = PROGRAMS.into_iter().find(|program| tree.has(program));
        let next = program.filter(|_| tree.is_running_system());
        let next = next.map(|program| tokio::spawn(run(program.as_ref(), TIME_LIMIT)));
        let ended = std::mem::replace(&mut self.0, next)?;
        // It has finished, so this takes no time.
        futures_util::FutureExt::now_or_never(ended)?.ok().flatten()
    }

    /// Drops a result that was not taken. A program that still runs keeps others from starting.
    pub(super) fn drop_result(&mut self) {
        self.0 = self.0.take().filter(|run| !run.is_finished());
    }
}

/// Runs the program, and waits for its end also after the limit.
async fn run(program: &Path, limit: Duration) -> Option<u8> {
    let mut child = Command::new(program)
        .args(GPU_QUERY_ARGUMENTS)
        .env_clear()
        .env("PATH", PATH)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .ok()?;
    let output = child.stdout.take()?;
    let mut bytes = Vec::new();
    let ended = timeout(limit, async {
        let mut output = output.take(MAX_OUTPUT);
        output.read_to_end(&mut bytes).await.ok()?;
        drop(output);
        child.wait().await.ok()
    })
    .await;
    let status = ended.ok().flatten();
    // A driver that hangs keeps its process in the kernel: the wait for it keeps others from
    // starting. If it has ended, both return at once.
    let _ = child.start_kill();
    let _ = child.wait().await;
    status.filter(ExitStatus::success).and_then(|_| mean_percent(&String::from_utf8_lossy(&bytes)))
}

/// Returns the mean of all GPUs with a value. A GPU in MIG mode says `[N/A]`.
fn mean_percent(output: &str) -> Option<u8> {
    let percent = |line: &str| {
        let (_, percent) = line.split_once(',')?;
        percent.trim().parse::<u32>().ok().filter(|percent| *percent <= 100)
    };
    let percents: Vec<u32> = output.lines().filter_map(percent).collect();
    let sum: u32 = percents.iter().sum();
    u8::try_from(sum.checked_div(u32::try_from(percents.len()).ok()?)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Output in the form of nvidia-smi with `--format=csv,noheader,nounits`, of a host with four
    /// GPUs, one of them in MIG mode.
    const FOUR_GPUS: &str = "0, 97\n1, 100\n2, [N/A]\n3, 0\n";

    #[test]
    fn mean_of_gpus_ignores_those_without_a_value() {
        assert_eq!(mean_percent(FOUR_GPUS), Some(65));
        for output in ["", "No devices were found\n", "0, [N/A]\n", "0, 101\n", "0\n", "0, -1\n"] {
            assert_eq!(mean_percent(output), None, "{output}");
        }
    }

    proptest! {
        #[test]
        fn any_output_has_a_percent_or_none(output in "(?s).{0,200}") {
            prop_assert!(mean_percent(&output).is_none_or(|percent| percent <= 100));
        }
    }

    fn program(folder: &Path, text: &str) -> std::path::PathBuf {
        let path = folder.join("nvidia-smi");
        let copied = std::process::Command::new("install")
            .args(["-m", "755", "/dev/stdin"])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn();
        let mut install = copied.expect("install");
        std::io::Write::write_all(&mut install.stdin.take().expect("a pipe"), text.as_bytes())
            .expect("written");
        assert!(install.wait().expect("it ends").success());
        path
    }

    #[tokio::test]
    async fn program_that_fails_or_hangs_has_no_value() {
        let folder = tempfile::tempdir().expect("a folder");
        let answer = "#!/bin/sh\n[ \"$1\" = --query-gpu=index,utilization.gpu ] && echo '0, 42'\n";
        let works = program(folder.path(), answer);
        assert_eq!(run(&works, TIME_LIMIT).await, Some(42));
        let fails = program(folder.path(), "#!/bin/sh\necho '0, 42'; exit 9\n");
        assert_eq!(run(&fails, TIME_LIMIT).await, None);
        let hangs = program(folder.path(), "#!/bin/sh\nexec tail -f /dev/null\n");
        assert_eq!(run(&hangs, Duration::from_millis(50)).await, None);
        let mute = program(folder.path(), "#!/bin/sh\nexec tail -f /dev/null >/dev/null\n");
        assert_eq!(run(&mute, Duration::from_millis(50)).await, None, "it closed its output");
        let floods = program(folder.path(), "#!/bin/sh\nexec yes 0, 9\n");
        assert_eq!(run(&floods, TIME_LIMIT).await, None, "a broken pipe ends it");
        assert_eq!(run(Path::new("/no/such/program"), TIME_LIMIT).await, None);
    }
}
