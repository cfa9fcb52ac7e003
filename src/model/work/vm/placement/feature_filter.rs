//! Filters nodes by features: programs, firmware, bridges, CPU model. The agent checks the same
//! features again before a start.

use super::reject_reason::RejectReason;
use meshd_proto::{
    Hosting,
    vm::{Firmware, VmSpec, VolumeSource},
};

/// CPU models that every QEMU knows.
const ANY_CPU: [&str; 2] = ["host", "max"];

/// Returns the features that the node does not have.
pub fn missing_features<'a>(
    spec: &'a VmSpec,
    hosting: &'a Hosting,
) -> impl Iterator<Item = (RejectReason, String)> + 'a {
    let missing = |is_missing: bool, reason: RejectReason, feature: &str| {
        is_missing.then(|| (reason, format!("it has no {feature}")))
    };
    let layered =
        spec.volumes.iter().any(|volume| matches!(volume.source, VolumeSource::Qcow2 { .. }));
    let is_uefi = spec.firmware == Firmware::Uefi;
    let firmware = match (is_uefi, spec.secure_boot) {
        (false, _) => None,
        (true, false) => missing(!hosting.uefi, RejectReason::FirmwareMissing, "UEFI firmware"),
        (true, true) => missing(
            !hosting.secure_boot,
            RejectReason::FirmwareMissing,
            "UEFI firmware for Secure Boot",
        ),
    };
    let cpu = spec.cpu.as_str();
    let knows = ANY_CPU.contains(&cpu)
        || hosting.cpu_models.is_empty()
        || hosting.cpu_models.iter().any(|model| model == cpu);
    let found = [
        missing(!hosting.qemu, RejectReason::QemuMissing, "QEMU"),
        missing(layered && !hosting.qemu_img, RejectReason::QemuMissing, "qemu-img"),
        (!knows).then(|| (RejectReason::CpuUnknown, format!("its QEMU knows no processor {cpu}"))),
        firmware,
        missing(spec.vtpm && !hosting.tpm, RejectReason::TpmMissing, "swtpm"),
    ];
    let bridges = spec.nics.iter().filter_map(|nic| nic.bridge.as_ref());
    let bridges =
        bridges.filter(|bridge| !hosting.bridges.iter().any(|own| own == bridge.as_str()));
    let bridges =
        bridges.map(|bridge| (RejectReason::BridgeMissing, format!("it has no bridge {bridge}")));
    found.into_iter().flatten().chain(bridges)
}
