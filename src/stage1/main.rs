//! The program `stage1`: the first program of a node with a root image, and the process that serves
//! a tethered root.

use std::process::ExitCode;

fn main() -> ExitCode {
    if std::env::args_os().next().is_some_and(|name| name == meshd_proto::stage1::TETHER_PROCESS) {
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
