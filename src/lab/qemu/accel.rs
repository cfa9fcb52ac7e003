//! Chooses KVM or emulation by a probe boot, because `/dev/kvm` may exist and hang, abort, or be
//! slower than emulation.

use crate::{LabError, host::process::wait_for_child};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

/// Accelerator of virtual processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Accel {
    /// Hardware virtualisation.
    Kvm,
    /// Emulation: works everywhere, ten to thirty times slower.
    Tcg,
}

impl Accel {
    /// Returns `-accel` and `-cpu` with their values.
    pub fn args(self) -> [&'static str; 4] {
        match self {
            Accel::Kvm => ["-accel", "kvm", "-cpu", "host"],
            // TCG runs `rep movsb` and `rep stosb` byte by byte. Without these two flags the kernel
            // clears and copies pages by words. Observed with QEMU 7.2: OpenRC's forked shell takes
            // 5 s instead of 80. TCG keeps its translations over a reset, and each write to a page
            // with stale translations is slow. With the default cache of 1 GiB a UEFI machine hung
            // for minutes at its second boot; with 128 MiB it does not. Nested paging (`npt`) stays
            // off: QEMU's emulation of it corrupts state. With two guests at once, one of them
            // iPXE, a guest crashed or stopped with internal-error, or the node ended in a triple
            // fault. Observed on one host in four of four runs with QEMU 7.2.22 and in one of two
            // with 10.0.2; seldom on other hosts. KVM in a node shadows its guests' pages instead.
            // When KVM in a node starts or ends its first guest, Linux patches a jump label in
            // __schedule(). With one thread per CPU, QEMU 7.2.22 kept an old translation of that
            // code. One CPU hit the patch's breakpoint repeatedly although memory had the new code.
            // The other CPU waited with interrupts off, and the node stopped responding.
            // `thread=single` does not help: a guest made no progress in 4 minutes. Nodes with
            // guests therefore keep one KVM guest from boot on, started while one CPU is online:
            // see tests/e2e/work/vms/trial.initd.
            Accel::Tcg => {
                ["-accel", "tcg,thread=multi,tb-size=128", "-cpu", "max,-erms,-fsrm,-npt"]
            }
        }
    }
}

/// Time limit of the emulated probe boot, which normally takes a tenth of a second. A slower host
/// cannot boot nodes.
const TCG_LIMIT: Duration = Duration::from_secs(20);
/// Time that KVM may take beyond twice the emulated time. Working KVM is faster than emulation.
const KVM_ALLOWANCE: Duration = Duration::from_millis(500);
/// Exit code of QEMU when a guest writes [`EXIT_VALUE`] to isa-debug-exit: (value << 1) | 1.
const PROBE_EXIT_CODE: i32 = 33;
const EXIT_VALUE: u8 = 0x10;
/// Size of the probe disk, in bytes. SeaBIOS does not read a disk of a single sector.
const DISK_BYTES: usize = 1 << 20;

/// Boot sector that makes QEMU exit: `mov dx, 0xf4; mov al, 0x10; out dx, al; jmp $`.
fn probe_disk() -> Vec<u8> {
    let mut disk = vec![0; DISK_BYTES];
    let program = [0xba, 0xf4, 0x00, 0xb0, EXIT_VALUE, 0xee, 0xeb, 0xfe];
    disk[..program.len()].copy_from_slice(&program);
    disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    disk
}

/// Boots the probe under emulation, then under KVM if `/dev/kvm` exists. Returns the accelerator
/// and the reason.
pub fn probe(qemu: &Path, dir: &Path) -> Result<(Accel, String), LabError> {
    if !Path::new("/dev/kvm").exists() {
        return Ok((Accel::Tcg, "there is no /dev/kvm".to_owned()));
    }
    let disk = dir.join("probe.img");
    fs::write(&disk, probe_disk()).map_err(LabError::file("write", &disk))?;
    let verdict = compare(|accel, limit| boot(qemu, &disk, accel, limit));
    // Ignore the error: the next probe overwrites the file of 1 MiB.
    let _ = fs::remove_file(&disk);
    verdict
}

fn compare(
    mut boot: impl FnMut(Accel, Duration) -> Result<Option<Duration>, LabError>,
) -> Result<(Accel, String), LabError> {
    let Some(emulated) = boot(Accel::Tcg, TCG_LIMIT)? else {
        let detail = "a probe boot did not end under emulation".to_owned();
        return Err(LabError::Failed { program: "QEMU".to_owned(), detail });
    };
    let limit = emulated * 2 + KVM_ALLOWANCE;
    Ok(match boot(Accel::Kvm, limit)? {
        Some(taken) => (Accel::Kvm, format!("a probe boot took {} ms", taken.as_millis())),
        None => {
            let limit = limit.as_millis();
            let emulated = emulated.as_millis();
            let reason = "/dev/kvm is there, but a probe boot failed or took more than";
            (Accel::Tcg, format!("{reason} {limit} ms, against {emulated} ms without it"))
        }
    })
}

/// Returns the duration of the probe boot; `None` if it did not complete.
fn boot(
    qemu: &Path,
    disk: &Path,
    accel: Accel,
    limit: Duration,
) -> Result<Option<Duration>, LabError> {
    let mut command = Command::new(qemu);
    command
        .args(["-machine", "q35,graphics=off", "-nodefaults", "-display", "none", "-m", "128"])
        .args(accel.args());
    command.args(["-device", "isa-debug-exit,iobase=0xf4,iosize=0x04", "-drive"]);
    command.arg(format!("if=ide,format=raw,file={}", super::command_line::escaped(disk)));
    let quiet = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let start = Instant::now();
    let mut child = quiet
        .spawn()
        .map_err(|source| LabError::Spawn { program: qemu.display().to_string(), source })?;
    let ended = wait_for_child(&mut child, limit, "the probe boot");
    let taken = start.elapsed();
    // Wait with a limit, because QEMU may not end by SIGKILL while broken KVM blocks it.
    let _ = child.kill();
    let _ = wait_for_child(&mut child, Duration::from_secs(5), "the probe boot");
    Ok(ended.ok().filter(|status| status.code() == Some(PROBE_EXIT_CODE)).map(|_| taken))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(kvm: Option<u64>) -> Accel {
        let boots = |accel, limit: Duration| {
            let taken = if accel == Accel::Tcg { Some(130) } else { kvm };
            Ok(taken.map(Duration::from_millis).filter(|taken| *taken <= limit))
        };
        compare(boots).expect("emulation works").0
    }

    #[test]
    fn kvm_slower_than_emulation_is_not_used() {
        assert_eq!(verdict(Some(90)), Accel::Kvm);
        assert_eq!(
            verdict(Some(3_600)),
            Accel::Tcg,
            "seen on a nested host: it works, thirty times slower"
        );
        assert_eq!(verdict(None), Accel::Tcg, "it hung or aborted");
    }

    #[test]
    fn probe_disk_is_bootable() {
        let disk = probe_disk();
        assert_eq!((disk.len(), &disk[510..512]), (DISK_BYTES, &[0x55, 0xaa][..]));
    }
}
