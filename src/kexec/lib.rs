//! Loads a kernel into the running one, and starts it without the firmware.
//!
//! ```text
//! load(kernel, initrd, command line) ──▶ the kernel keeps a copy ──▶ start(), after the shutdown of all services
//!                                                      └──▶ unload()
//! ```
//! rustix has no safe function for kexec_file_load(2), and the crates that have one need a C library.
//! The constants are those of Linux 6.1.

use rustix::{
    fs::{MemfdFlags, memfd_create},
    system::{RebootCommand, reboot},
};
use std::{
    ffi::{CStr, c_char, c_int, c_long, c_ulong},
    fs::{self, File},
    io,
    os::fd::AsRawFd as _,
};

#[cfg(target_arch = "x86_64")]
const KEXEC_FILE_LOAD: c_long = 320;
#[cfg(target_arch = "aarch64")]
const KEXEC_FILE_LOAD: c_long = 294;
/// Flag of kexec_file_load(2): remove the loaded kernel.
const KEXEC_FILE_UNLOAD: c_ulong = 1;
/// `1` if a kernel is loaded.
const LOADED: &str = "/sys/kernel/kexec_loaded";

/// Creates a file in memory that no path names.
///
/// # Errors
/// As memfd_create(2).
pub fn memory_file() -> io::Result<File> {
    Ok(File::from(memfd_create("warm-boot", MemfdFlags::CLOEXEC)?))
}

/// Loads a kernel, in place of one that was loaded before.
///
/// # Errors
/// As kexec_file_load(2). [`explain`] names the usual causes.
pub fn load(kernel: &File, initrd: &File, command_line: &CStr) -> io::Result<()> {
    kexec_file_load([kernel.as_raw_fd(), initrd.as_raw_fd()], command_line, 0)
}

/// Removes the loaded kernel: a reboot goes through the firmware.
///
/// # Errors
/// As kexec_file_load(2).
pub fn unload() -> io::Result<()> {
    kexec_file_load([-1, -1], c"", KEXEC_FILE_UNLOAD)
}

/// Returns true if a kernel is loaded.
pub fn is_loaded() -> bool {
    fs::read_to_string(LOADED).is_ok_and(|text| text.trim() == "1")
}

/// Starts the loaded kernel at once. Returns only if that fails.
///
/// # Errors
/// As reboot(2).
pub fn start() -> io::Result<()> {
    Ok(reboot(RebootCommand::Kexec)?)
}

/// Returns the cause of a failed [`load`] in words.
pub fn explain(error: &io::Error) -> String {
    // Numbers of Linux, which are the same on x86_64 and aarch64.
    let cause = match error.raw_os_error() {
        Some(1) => "kernel lockdown or kernel.kexec_load_disabled forbids kexec",
        Some(8) => "the file is no kernel that kexec can start",
        Some(12 | 99) => "there is too little memory in one piece",
        Some(38) => "the running kernel was built without CONFIG_KEXEC_FILE",
        Some(61 | 74 | 126 | 127 | 129) => "the running kernel accepts signed kernels only",
        _ => "the running kernel refuses it",
    };
    format!("{cause} ({error})")
}

#[expect(unsafe_code, reason = "kexec_file_load(2) takes a pointer to the command line")]
fn kexec_file_load(files: [c_int; 2], command_line: &CStr, flags: c_ulong) -> io::Result<()> {
    // SAFETY: the signature is that of syscall(2).
    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }
    let length = command_line.to_bytes_with_nul().len() as c_ulong;
    let text: *const c_char = command_line.as_ptr();
    // SAFETY: the kernel reads `length` bytes at `text`, which live until the end of this function,
    // and no other memory of this process.
    let result = unsafe { syscall(KEXEC_FILE_LOAD, files[0], files[1], length, text, flags) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    #[test]
    fn text_is_no_kernel_and_is_not_loaded() {
        let mut kernel = memory_file().expect("memory");
        kernel.write_all(b"no kernel").expect("written");
        let initrd = memory_file().expect("memory");
        let error = load(&kernel, &initrd, c"panic=10").expect_err("no kernel");
        let text = explain(&error);
        assert!(text.contains('('), "{text}");
        assert!(!is_loaded());
    }

    #[test]
    fn refusal_of_the_kernel_has_its_cause() {
        let explained = |number| explain(&io::Error::from_raw_os_error(number));
        assert!(explained(1).starts_with("kernel lockdown"));
        assert!(explained(38).starts_with("the running kernel was built without"));
        assert!(explained(129).starts_with("the running kernel accepts signed"));
        assert!(explained(5).starts_with("the running kernel refuses it"));
    }
}
