//! The duties of the first program of a node. A duty that fails is reported: a node never runs
//! half.
//!
//! | module | content |
//! | --- | --- |
//! | `attempt` | runs the duties of a boot; prints and reports why one failed |
//! | `command_line` | arguments of the kernel: pure |
//! | `error` | why a boot fails |
//! | `fetched_file` | fetches a file of known digest, with progress |
//! | `kernel_messages` | starts netconsole |
//! | `mesh_init` | the duties of a boot with an Alpine image, in their order |
//! | `root_image` | the duties of a boot with a root image, in their order |

mod attempt;
pub mod command_line;
pub mod error;
mod fetched_file;
mod kernel_messages;
mod mesh_init;
mod root_image;

use attempt::{FailureReport, attempt};
use fetched_file::{FileSource, fetch_file};
use kernel_messages::start_netconsole;

pub use mesh_init::boot as boot_alpine;
pub use root_image::{boot as boot_root_image, serve_root};
