//! The program `stage1`: the first program of a node with a root image, the process that serves a
//! tethered root, and the one that labels files.

use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    if name == meshd_stage1::ROOT_PROGRAM_PROCESS {
        eprintln!("enter the root: {}", meshd_stage1::become_root_program(arguments));
        return ExitCode::FAILURE;
    }
    if name == meshd_proto::stage1::TETHER_PROCESS {
        return match meshd_stage1::boot::serve_root() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    // It mounts, removes and reboots: only the kernel may start it.
    if std::process::id() != 1 {
        eprintln!("start stage1: it is the first program of a node, started as rdinit=");
        return ExitCode::from(2);
    }
    meshd_stage1::boot::boot();
    // The kernel panics, and `panic=` reboots the machine.
    ExitCode::FAILURE
}
