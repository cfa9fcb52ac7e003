//! Configuration: parses and validates `site.toml` and `vm.toml`, and reports all faults at once.
//!
//! | module | content |
//! | --- | --- |
//! | `check` | validation of single values of `site.toml` |
//! | `edit` | edits of an inherited list: add or remove one element |
//! | `fault` | faults of a configuration file: position, cause and hint |
//! | `files` | opens files that operators write |
//! | `interfaces` | networks of this machine's interfaces, the default of a missing netmask |
//! | `faulty_file_reader` | reads single values from a site file that may have faults elsewhere |
//! | `parse` | parses `site.toml` section by section, then checks rules between sections |
//! | `profile` | profiles after inheritance, and groups |
//! | `reader` | strict TOML reader: typed getters, faults with line numbers, unknown keys rejected |
//! | `sections` | one module for each section of `site.toml` |
//! | `site` | the validated site, as `super::load` returns it |
//! | `vm` | `vm.toml`: parses a VM file into a `VmRequest`, or reports all its faults |
//!
//! [`parse`] is pure. [`find`] and [`load`] read the file system and the network interfaces.

mod check;
mod edit;
mod fault;
pub mod files;
mod interfaces;
mod faulty_file_reader;
mod parse;
mod profile;
pub mod reader;
mod sections;
mod site;
pub mod vm;

pub use check::{breaks_boot, is_own_arg, kernel_arg};
pub use edit::{Edit, arg_key, edit_args};
pub use fault::{Fault, Faults, nearest, suggest};
pub use interfaces::{InterfaceNetwork, all as interface_networks};
pub use meshd_types::{DhcpMode, Link, Owner, Segment, Subnet, VfioSelector};
pub use parse::{parse, parse_with};
pub use profile::{Group, Hugepages, PageSize, Profile, Setting, WarmPolicy};
pub use reader::parse_duration;
pub use sections::name_pattern::{NamePattern, NumberedNames};
pub use sections::secrets::SecretSource;
pub use sections::vars::MAX_VARS;
pub use sections::vms::{MacPrefix, SlotPolicy, VmAddressPool, VmRules, Vms};
pub use site::{
    Admin, AdminHttps, AgentSettings, BmcCommand, BmcLogin, BmcRule, Boot, Delivery, Enroll,
    EnrollCriteria, EnrollPolicy, EnrollRule, Http, Identity, MetricsListener, Power, Process,
    Reservation, Site, SiteProgram, StallRetryPolicy, Transport, role_on,
};

use std::path::{Path, PathBuf};

/// Default site files, in search order.
pub const DEFAULT_FILES: [&str; 2] = ["site.toml", "/etc/meshd/site.toml"];

/// Returns the explicit site file, else the first of [`DEFAULT_FILES`] that exists.
pub fn find(explicit: Option<&Path>) -> Result<PathBuf, Faults> {
    let default = || DEFAULT_FILES.iter().map(PathBuf::from).find(|file| file.exists());
    explicit.map(Path::to_owned).or_else(default).ok_or_else(|| {
        let [first, second] = DEFAULT_FILES;
        let message = format!("there is no such file, and no {second} either");
        Fault::of_file(
            first,
            message,
            "name the site file with --site FILE, or create one with `meshd init`",
        )
        .into()
    })
}

/// Returns the default admin socket.
pub fn default_admin_socket() -> PathBuf {
    sections::admin::default_socket()
}

/// Reads and validates a site file; returns all faults at once.
pub fn load(file: &Path) -> Result<Site, Faults> {
    let text = reader::read_text(
        file,
        "name the site file with --site FILE, or create one with `meshd init`",
    )?;
    parse_with(&text, file, &interfaces::all())
}

/// Returns the admin socket of a site file, even if the file has faults elsewhere.
pub fn admin_socket(file: &Path) -> Option<PathBuf> {
    let text = reader::read_text(file, "").ok()?;
    faulty_file_reader::admin_socket(&text, file)
}

/// Returns the overlay folder of a site file, even if the file has faults elsewhere.
pub fn overlays_dir(file: &Path) -> Option<PathBuf> {
    let text = reader::read_text(file, "").ok()?;
    faulty_file_reader::overlays_dir(&text, file)
}

#[cfg(test)]
mod tests;
