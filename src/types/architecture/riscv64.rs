//! 64-bit RISC-V.

use super::facts::{ArchitectureFacts, UefiFirmware};

pub(super) const FACTS: ArchitectureFacts = ArchitectureFacts {
    name: "riscv64",
    debian_name: "riscv64",
    ipxe_names: &["riscv64"],
    elf_machine: 243,
    multiarch: "riscv64-linux-gnu",
    glibc_loader: "ld-linux-riscv64-lp64d.so.1",
    musl_loader: "lib/ld-musl-riscv64.so.1",
    consoles: &["tty0", "ttyS0,115200"],
    vfio_args: &[],
    guarded_args: &[],
    max_command_line: 1023,
    runs_vms: false,
    qemu: "qemu-system-riscv64",
    qemu_model_prefix: "  ",
    qemu_package: "qemu-system-misc",
    bundled_uefi: &[],
    installed_uefi: &[UefiFirmware {
        code: "/usr/share/qemu-efi-riscv64/RISCV_VIRT_CODE.fd",
        vars: "/usr/share/qemu-efi-riscv64/RISCV_VIRT_VARS.fd",
        secure_boot: false,
    }],
    uefi_package: "qemu-efi-riscv64",
};
