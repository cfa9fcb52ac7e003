//! What differs between architectures, and how a program would otherwise write it into its text.

/// Names, numbers and paths of one architecture.
#[derive(Debug)]
pub struct ArchitectureFacts {
    /// Name in Alpine, Linux and Rust.
    pub name: &'static str,
    /// Name in Debian, in Go and in OCI images.
    pub debian_name: &'static str,
    /// Values of iPXE's `${buildarch}`.
    pub ipxe_names: &'static [&'static str],
    /// `e_machine` of ELF programs.
    pub elf_machine: u16,
    /// Folder of Debian's libraries, below `lib` and `usr/lib`.
    pub multiarch: &'static str,
    /// File name of glibc's loader.
    pub glibc_loader: &'static str,
    /// Path of musl's loader, relative to the root.
    pub musl_loader: &'static str,
    /// Kernel consoles of a site that names none; the last one is /dev/console.
    pub consoles: &'static [&'static str],
    /// Kernel arguments that VFIO needs.
    pub vfio_args: &'static [&'static str],
    /// Kernel arguments of which any other value gives devices access to all memory.
    pub guarded_args: &'static [&'static str],
    /// Maximum length of the kernel command line in bytes: COMMAND_LINE_SIZE without the final NUL.
    /// The kernel silently cuts off the rest.
    pub max_command_line: usize,
    /// True if nodes of this architecture run VMs: the agent forms the arguments of QEMU for them.
    pub runs_vms: bool,
    /// Program of QEMU.
    pub qemu: &'static str,
    /// Start of the lines with a processor model in the output of QEMU's option `-cpu help`.
    pub qemu_model_prefix: &'static str,
    /// Debian's package of QEMU.
    pub qemu_package: &'static str,
    /// UEFI firmware for virtual machines, as the bundle `qemu` contains it: paths relative to the
    /// bundle.
    pub bundled_uefi: &'static [UefiFirmware],
    /// UEFI firmware for virtual machines, as distributions install it; the first one that exists
    /// is used.
    pub installed_uefi: &'static [UefiFirmware],
    /// Debian's package of the UEFI firmware.
    pub uefi_package: &'static str,
}

/// The two flash images of a UEFI firmware.
#[derive(Debug)]
pub struct UefiFirmware {
    pub code: &'static str,
    /// Template of the variables.
    pub vars: &'static str,
    /// True if built for Secure Boot, with the usual keys enrolled.
    pub secure_boot: bool,
}
