//! Warm reboot: loads the next boot of this node into its kernel, over mutual TLS.
//!
//! ```text
//! devices free? ──▶ plan ──▶ kernel, initrds ──▶ trial load ──▶ overlay ──▶ load ──▶ report ──▶ reboot by kexec
//!       └──────────────┴─────────────┴──────────────┴────────────┴─────────┴────────┴──▶ unload, reboot by firmware
//! ```
//! Everything is in memory that no path names. The overlay, which holds the token, comes last:
//! nothing that can be known to fail before has cost a secret. See docs/adr/0060-warm-reboot.md.
//!
//! | module | content |
//! | --- | --- |
//! | `memory_part` | fetches a part into memory, and verifies its digest |

mod memory_part;

use crate::{
    link::call::{self, Endpoint},
    system::{self, Tree},
};
use memory_part::{append_overlay, append_part};
use meshd_proto::{
    VERSION, WARM_BOOT_PATH, WARM_REPORT_PATH,
    warm_boot::{ColdBootCause, WarmBootAnswer, WarmBootPlan, WarmBootReport, WarmBootRequest},
};
use meshd_types::BootSessionId;
use std::{ffi::CString, fs::File, io, time::Duration};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};

/// Time to load a boot. A node that takes longer boots through its firmware.
const LOAD_TIMEOUT: Duration = Duration::from_secs(10 * 60);
/// Time in the boot queue. A machine in iPXE would wait longer.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5 * 60);
/// Memory that stays free beside the copies of the kernel and its initrds, in bytes.
const FREE_MEMORY: u64 = 128 << 20;
/// The image is in the memory files, and in the kernel.
const COPIES: u64 = 2;
/// Exists if systemd runs.
pub(crate) const SYSTEMD: &str = "/run/systemd/system";
/// `1` if a kernel is loaded.
const LOADED: &str = "/sys/kernel/kexec_loaded";
/// Held by the thread that loads a kernel, which runs on after a timeout.
static LOADS: Mutex<()> = Mutex::const_new(());
/// Devices of this driver may be used by a guest, which the firmware must end.
const VFIO_DRIVER: &str = "/sys/bus/pci/drivers/vfio-pci";

/// Loads the next boot. Afterwards a reboot by kexec starts it.
///
/// # Errors
/// The reason for a boot through the firmware, which the central node knows too. No kernel is
/// loaded then.
pub(crate) async fn load(endpoint: &Endpoint, tree: &Tree) -> Result<(), String> {
    let mut session = None;
    let loaded = timeout(LOAD_TIMEOUT, load_all(endpoint, tree, &mut session)).await;
    let minutes = LOAD_TIMEOUT.as_secs() / 60;
    let loaded =
        loaded.unwrap_or_else(|_| Err(format!("it took more than {minutes} minutes").into()));
    let Err(failure) = loaded else { return Ok(()) };
    unload(tree).await;
    report(endpoint, session, Some(&failure))
        .await
        .unwrap_or_else(|error| tracing::warn!(error, "cannot report a failed warm boot"));
    Err(failure.reason)
}

/// Why a boot cannot be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LoadFailure {
    cause: ColdBootCause,
    reason: String,
}

impl LoadFailure {
    fn new(cause: ColdBootCause, reason: impl Into<String>) -> Self {
        LoadFailure { cause, reason: reason.into() }
    }
}

impl From<String> for LoadFailure {
    fn from(reason: String) -> Self {
        LoadFailure::new(ColdBootCause::Other, reason)
    }
}

/// Unloads the kernel of a warm boot, also one that a thread is still loading.
pub(crate) async fn unload(tree: &Tree) {
    let _loads = LOADS.lock().await;
    if tree.read(LOADED).as_deref() != Some("1") {
        return;
    }
    if let Err(error) = meshd_kexec::unload() {
        // With OpenRC it starts only beside its marker; systemd has a command for it.
        tracing::error!(%error, "cannot unload the kernel of a warm boot");
    }
}

/// Starts the loaded kernel, if there is one. Returns only without one.
///
/// # Errors
/// As reboot(2).
pub fn start_loaded_kernel() -> io::Result<()> {
    if meshd_kexec::is_loaded() { meshd_kexec::start() } else { Ok(()) }
}

async fn load_all(
    endpoint: &Endpoint,
    tree: &Tree,
    session: &mut Option<BootSessionId>,
) -> Result<(), LoadFailure> {
    check_devices(tree)?;
    let plan = plan(endpoint).await?;
    *session = Some(plan.session);
    check_memory(&plan, system::memory(tree).available_kib)?;
    let command_line = CString::new(plan.command_line.clone())
        .map_err(|_| "the command line has a zero byte".to_owned())?;
    let mut kernel = memory_file()?;
    append_part(endpoint, &plan.kernel, &mut kernel).await?;
    let mut initrd = memory_file()?;
    for part in &plan.initrds {
        append_part(endpoint, part, &mut initrd).await?;
    }
    load_kernel(&kernel, &initrd, &command_line).await?;
    append_overlay(endpoint, plan.session, &mut initrd).await?;
    load_kernel(&kernel, &initrd, &command_line).await?;
    Ok(report(endpoint, Some(plan.session), None).await?)
}

/// Refuses a node whose devices a guest may use: only a reset of the machine resets all of them.
fn check_devices(tree: &Tree) -> Result<(), LoadFailure> {
    let is_device = |name: &String| name.contains(':');
    match tree.list(VFIO_DRIVER).into_iter().find(is_device) {
        Some(device) => {
            let reason = format!("device {device} is bound to vfio-pci");
            Err(LoadFailure::new(ColdBootCause::VfioDevice, reason))
        }
        None => Ok(()),
    }
}

fn check_memory(plan: &WarmBootPlan, available_kib: u64) -> Result<(), LoadFailure> {
    let parts = plan.initrds.iter().chain([&plan.kernel]);
    let size = parts.fold(0u64, |sum, part| sum.saturating_add(part.size));
    let needed = size.saturating_mul(COPIES).saturating_add(FREE_MEMORY);
    let available = available_kib.saturating_mul(1024);
    if needed <= available {
        return Ok(());
    }
    let [needed, available] = [needed, available].map(|bytes| bytes >> 20);
    let reason = format!("{needed} MiB of memory are needed, {available} MiB are free");
    Err(LoadFailure::new(ColdBootCause::Memory, reason))
}

fn memory_file() -> Result<File, String> {
    meshd_kexec::memory_file().map_err(|error| format!("cannot create a file in memory: {error}"))
}

/// Requests the plan, and waits while the boot queue is full.
async fn plan(endpoint: &Endpoint) -> Result<WarmBootPlan, LoadFailure> {
    let deadline = Instant::now() + QUEUE_TIMEOUT;
    loop {
        let request = WarmBootRequest { version: VERSION };
        let answer = call::post(endpoint, WARM_BOOT_PATH, &request).await;
        match answer.map_err(|error| format!("cannot get the plan: {error}"))? {
            WarmBootAnswer::Plan(plan) => return Ok(plan),
            // The central node has recorded its own cause.
            WarmBootAnswer::Cold { reason } => return Err(reason.into()),
            WarmBootAnswer::Wait { seconds } => {
                let retry = Instant::now() + Duration::from_secs(seconds.into());
                if retry > deadline {
                    let reason = "the boot queue is full";
                    return Err(LoadFailure::new(ColdBootCause::BootQueue, reason));
                }
                tracing::info!(seconds, "the boot queue is full; waiting");
                sleep(retry - Instant::now()).await;
            }
        }
    }
}

async fn load_kernel(
    kernel: &File,
    initrd: &File,
    command_line: &CString,
) -> Result<(), LoadFailure> {
    let cannot = |error: &dyn std::fmt::Display| {
        LoadFailure::new(ColdBootCause::KernelLoad, format!("cannot load the kernel: {error}"))
    };
    let [kernel, initrd] = [kernel, initrd].map(File::try_clone);
    let (kernel, initrd) =
        (kernel.map_err(|error| cannot(&error))?, initrd.map_err(|error| cannot(&error))?);
    let command_line = command_line.clone();
    let loads = LOADS.lock().await;
    let loaded = tokio::task::spawn_blocking(move || {
        let _loads = loads;
        meshd_kexec::load(&kernel, &initrd, &command_line)
    });
    let loaded = loaded.await.map_err(|error| cannot(&error))?;
    loaded.map_err(|error| cannot(&meshd_kexec::explain(&error)))
}

async fn report(
    endpoint: &Endpoint,
    session: Option<BootSessionId>,
    failure: Option<&LoadFailure>,
) -> Result<(), String> {
    let report = WarmBootReport {
        version: VERSION,
        session,
        failure: failure.map(|failure| failure.reason.clone()),
        cause: failure.map(|failure| failure.cause).unwrap_or_default(),
    };
    let answer: Result<serde_json::Value, _> =
        call::post(endpoint, WARM_REPORT_PATH, &report).await;
    answer.map(drop).map_err(|error| format!("the central node did not take the report: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;
    use meshd_proto::warm_boot::WarmBootPart;
    use meshd_types::Digest;

    #[test]
    fn device_of_vfio_requires_a_cold_boot() {
        let fake = FakeMachine::new("", &[]);
        assert_eq!(check_devices(&fake.tree), Ok(()), "no driver");
        fake.file("sys/bus/pci/drivers/vfio-pci/new_id", "");
        assert_eq!(check_devices(&fake.tree), Ok(()), "no device");
        fake.file("sys/bus/pci/drivers/vfio-pci/0000:01:00.0/vendor", "0x10de");
        let refusal = check_devices(&fake.tree).expect_err("a device");
        assert_eq!(refusal.reason, "device 0000:01:00.0 is bound to vfio-pci");
        assert_eq!(refusal.cause, ColdBootCause::VfioDevice);
    }

    #[test]
    fn boot_that_does_not_fit_into_memory_is_cold() {
        let part = |size| WarmBootPart { name: "kernel".into(), digest: Digest([1; 32]), size };
        let plan = WarmBootPlan {
            session: BootSessionId([1; 12]),
            kernel: part(8 << 20),
            initrds: vec![part(24 << 20)],
            command_line: String::new(),
        };
        let needed_kib = 192 << 10;
        assert_eq!(check_memory(&plan, needed_kib), Ok(()));
        let refusal = check_memory(&plan, needed_kib - 1).expect_err("too little");
        assert_eq!(refusal.reason, "192 MiB of memory are needed, 191 MiB are free");
        assert_eq!(refusal.cause, ColdBootCause::Memory);
        let huge = WarmBootPlan { kernel: part(u64::MAX), ..plan };
        assert!(check_memory(&huge, u64::MAX / 2048).is_err());
    }
}
