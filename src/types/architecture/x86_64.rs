//! 64-bit x86.

use super::facts::{ArchitectureFacts, UefiFirmware};

pub(super) const FACTS: ArchitectureFacts = ArchitectureFacts {
    name: "x86_64",
    debian_name: "amd64",
    // `undionly.kpxe` is always built for i386, and starts 64-bit kernels.
    ipxe_names: &["x86_64", "i386"],
    elf_machine: 62,
    multiarch: "x86_64-linux-gnu",
    glibc_loader: "ld-linux-x86-64.so.2",
    musl_loader: "lib/ld-musl-x86_64.so.1",
    consoles: &["tty0", "ttyS0,115200"],
    // Both arguments are always set: AMD's IOMMU is on by default and ignores `intel_iommu`.
    vfio_args: &["intel_iommu=on", "iommu=pt"],
    guarded_args: &[],
    max_command_line: 2047,
    runs_vms: true,
    qemu: "qemu-system-x86_64",
    qemu_model_prefix: "x86 ",
    qemu_package: "qemu-system-x86",
    bundled_uefi: &[
        ovmf("share/qemu/OVMF_CODE_4M.fd", "share/qemu/OVMF_VARS_4M.fd"),
        secure("share/qemu/OVMF_CODE_4M.ms.fd", "share/qemu/OVMF_VARS_4M.ms.fd"),
    ],
    // Debian, then Alpine, Fedora and Arch.
    installed_uefi: &[
        ovmf("/usr/share/OVMF/OVMF_CODE_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.fd"),
        ovmf("/usr/share/OVMF/OVMF_CODE.fd", "/usr/share/OVMF/OVMF_VARS.fd"),
        ovmf("/usr/share/edk2/ovmf/OVMF_CODE.fd", "/usr/share/edk2/ovmf/OVMF_VARS.fd"),
        ovmf("/usr/share/edk2/x64/OVMF_CODE.fd", "/usr/share/edk2/x64/OVMF_VARS.fd"),
        ovmf("/usr/share/edk2/x64/OVMF_CODE.4m.fd", "/usr/share/edk2/x64/OVMF_VARS.4m.fd"),
        secure("/usr/share/OVMF/OVMF_CODE_4M.ms.fd", "/usr/share/OVMF/OVMF_VARS_4M.ms.fd"),
        secure("/usr/share/OVMF/OVMF_CODE.secboot.fd", "/usr/share/OVMF/OVMF_VARS.ms.fd"),
        secure(
            "/usr/share/edk2/x64/OVMF_CODE.secure.fd",
            "/usr/share/edk2/x64/OVMF_VARS.secure.fd",
        ),
    ],
    uefi_package: "ovmf",
};

const fn ovmf(code: &'static str, vars: &'static str) -> UefiFirmware {
    UefiFirmware { code, vars, secure_boot: false }
}

const fn secure(code: &'static str, vars: &'static str) -> UefiFirmware {
    UefiFirmware { code, vars, secure_boot: true }
}
