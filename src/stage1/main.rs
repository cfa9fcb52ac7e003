//! The first program of a node: `stage1` for a root image, `mesh-init` for Alpine, the process that
//! serves a tethered root, and the one that becomes a program of the root. Its name decides.

use meshd_proto::{mesh_init::MESH_INIT_PROGRAM, stage1::TETHER_PROCESS};
use std::{path::Path, process::ExitCode};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    if name == meshd_stage1::ROOT_PROGRAM_PROCESS {
        eprintln!("enter the root: {}", meshd_stage1::become_root_program(arguments));
        return ExitCode::FAILURE;
    }
    if name == TETHER_PROCESS {
        return match meshd_stage1::boot::serve_root() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    // It mounts, removes and reboots: only the kernel may start it.
    if std::process::id() != 1 {
        let name = Path::new(&name).display();
        eprintln!("start {name}: it is the first program of a node, which the kernel starts");
        return ExitCode::from(2);
    }
    if Path::new(&name).file_name() == Path::new(MESH_INIT_PROGRAM).file_name() {
        meshd_stage1::boot::boot_alpine();
    } else {
        meshd_stage1::boot::boot_root_image();
    }
    // The kernel panics, and `panic=` reboots the machine.
    ExitCode::FAILURE
}
