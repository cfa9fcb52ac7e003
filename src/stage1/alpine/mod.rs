//! Files that mesh-init and stage 1 read and write on an Alpine node.
//!
//! | module | content |
//! | --- | --- |
//! | `boot_urls` | URLs of the boot plane, from the kernel's command line: pure |
//! | `config` | `/etc/meshd/mesh-init.json`: bounded, and validated before its first use |
//! | `installed` | packages that apk has installed: pure |
//! | `os_files` | modules, firmware, programs of bundles, and the boot interface of the OS |

mod boot_urls;
mod config;
mod installed;
mod os_files;

pub use boot_urls::BootUrls;
pub use config::{MeshInitConfigError, parse};
pub use installed::{PackagesError, missing_packages};
pub use os_files::{
    MODLOOP, OsFileError, configure_root, has_alpine_overlay, link_programs, remove_clock_services,
    use_modules, write_boot_interface,
};
