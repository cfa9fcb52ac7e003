//! 64-bit ARM.

use super::facts::{ArchitectureFacts, UefiFirmware};

/// Devices use the SMMU; with `=1` they could access all memory. A kernel may be built to bypass
/// the SMMU by default.
const TRANSLATED: &str = "iommu.passthrough=0";

pub(super) const FACTS: ArchitectureFacts = ArchitectureFacts {
    name: "aarch64",
    debian_name: "arm64",
    ipxe_names: &["arm64"],
    elf_machine: 183,
    multiarch: "aarch64-linux-gnu",
    glibc_loader: "ld-linux-aarch64.so.1",
    musl_loader: "lib/ld-musl-aarch64.so.1",
    consoles: &["tty0", "ttyAMA0,115200"],
    vfio_args: &[TRANSLATED],
    guarded_args: &[TRANSLATED],
    max_command_line: 2047,
    runs_vms: false,
    qemu: "qemu-system-aarch64",
    qemu_model_prefix: "  ",
    qemu_package: "qemu-system-arm",
    bundled_uefi: &[],
    installed_uefi: &[UefiFirmware {
        code: "/usr/share/AAVMF/AAVMF_CODE.fd",
        vars: "/usr/share/AAVMF/AAVMF_VARS.fd",
        secure_boot: false,
    }],
    uefi_package: "qemu-efi-aarch64",
};
