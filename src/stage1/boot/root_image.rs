//! The duties of stage 1 for a root image, in their order. After a failure, the machine reboots.

use super::{FailureReport, FileSource, attempt, error::BootError, fetch_file, start_netconsole};
use crate::{
    alpine, clock,
    config::{self, BootConfig, RootImage},
    console,
    modules::{self, ModuleLoader},
    network, overlay,
    root::{
        self,
        tether::{self, Tether},
    },
};
use meshd_proto::stage1::{
    ROOT_REPORT_FILE, RootMode, RootReport, STAGE1_CONFIG_FILE, STAGE1_OVERLAY_FILE,
};
use rustix::system::{RebootCommand, reboot, uname};
use std::{
    convert::Infallible,
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

const SYSFS: &str = "/sys";
const COMMAND_LINE: &str = "/proc/cmdline";
/// Modules that no device names. What is built into the kernel is not in the index.
const ALWAYS: [&str; 10] = [
    "virtio_pci",
    "virtio_mmio",
    "af_packet",
    "loop",
    "squashfs",
    "overlay",
    "dm_mod",
    "crypto-sha256",
    "crypto-crc32c",
    "dm_verity",
];
/// Time for the NIC to appear. Firmware of some NICs takes half a minute.
const NIC_PATIENCE: Duration = Duration::from_secs(60);
/// Time for a link after the NIC is up; then DHCP is tried anyway.
const LINK_PATIENCE: Duration = Duration::from_secs(15);
/// Interval between polls of sysfs.
const POLL: Duration = Duration::from_millis(100);
/// Time to read the reason on the console before the machine reboots.
const REBOOT_DELAY: Duration = Duration::from_secs(10);
/// Longest time between the delivery of the overlay and the start of stage 1.
const LONGEST_START: Duration = Duration::from_secs(60);

/// Boots this machine as PID 1. Returns only if the kernel refuses to reboot after a failure.
pub fn boot() {
    attempt(run);
    console::message(format_args!("reboot in {} s", REBOOT_DELAY.as_secs()));
    clock::pause(REBOOT_DELAY);
    if let Err(error) = reboot(RebootCommand::Restart) {
        console::message(format_args!("reboot: {error}"));
    }
}

fn run(report: &mut FailureReport) -> Result<Infallible, BootError> {
    root::mount_early()?;
    let config = read_config()?;
    console::message(format_args!("node {}, boot session {}", config.node, config.session));
    if let Some(before) = clock::step(config.time, LONGEST_START).map_err(BootError::Clock)? {
        console::message(format_args!("clock set from {before} to {}", config.time));
    }
    let mut loader = open_modules()?;
    ALWAYS.iter().for_each(|name| loader.load(name));
    let interface = find_nic(&mut loader, &config)?;
    let lease = start_network(&interface, &config)?;
    report.target = Some((config.failed_url.clone(), config.session));
    let line = fs::read_to_string(COMMAND_LINE).unwrap_or_default();
    let server = *config.failed_url.server().ip();
    if let Err(cause) = start_netconsole(&mut loader, &interface, server, &line) {
        console::message(format_args!("netconsole is not started: {cause}"));
    }

    let tether = match config.mode {
        RootMode::Ram => None,
        RootMode::Tethered => Some(tether_root(&mut loader, &config)?),
    };
    start_root(&config, &interface, &lease, tether.as_ref()).map_err(|error| {
        match tether.and_then(|tether| tether.failure()) {
            Some(cause) => BootError::TetheredRead { error: Box::new(error), cause },
            None => error,
        }
    })
}

/// Mounts the root, and starts its first program.
fn start_root(
    config: &BootConfig,
    interface: &str,
    lease: &network::Lease,
    tether: Option<&Tether>,
) -> Result<Infallible, BootError> {
    let device = match tether {
        Some(tether) => tether.device.to_owned(),
        None => root_in_memory(config)?,
    };
    let new_root = assemble_root(&device, config)?;
    let archive = File::open(STAGE1_OVERLAY_FILE)
        .map_err(|cause| BootError::Read { path: STAGE1_OVERLAY_FILE, cause })?;
    let members = overlay::unpack(archive, &new_root)?;
    overlay::require_boot_part(&new_root, config.node, config.session)?;
    let checked = overlay::check_manifest(&new_root)?;
    overlay::lock_root(&new_root)?;
    root::require_init(&new_root)?;
    network::write_handover(
        Path::new("/run"),
        &new_root,
        interface,
        config.mac,
        lease,
        config.mode,
    )
    .map_err(BootError::Handover)?;
    let process = tether.map(|tether| tether.process);
    if alpine::has_alpine_overlay(&new_root) {
        alpine::configure_root(&new_root, interface, process)?;
    }
    if root::has_selinux() {
        label_overlay(&new_root)?;
    }
    let root = RootReport { mode: config.mode, size: config.root.size, process };
    write_root_report(&root).map_err(BootError::Report)?;
    console::message(format_args!("overlay: {members} members, {checked} files checked"));
    console::message(format_args!("ok {} {}", config.node, config.session));
    Ok(root::switch_root(&new_root, std::env::args_os().skip(1))?)
}

fn label_overlay(new_root: &Path) -> Result<(), BootError> {
    let labelled = root::label(new_root, &root::layers(), |error| console::message(error))?;
    if let Some(count) = labelled {
        console::message(format_args!("overlay: SELinux labels of {count} files and folders"));
    }
    Ok(())
}

fn read_config() -> Result<BootConfig, BootError> {
    let path = STAGE1_CONFIG_FILE;
    let mut bytes = Vec::new();
    let limit = config::MAX_CONFIG as u64 + 1;
    File::open(path)
        .and_then(|file| file.take(limit).read_to_end(&mut bytes))
        .map_err(|cause| BootError::Read { path, cause })?;
    Ok(config::parse(&bytes)?)
}

fn open_modules() -> Result<ModuleLoader, BootError> {
    let release = uname().release().to_string_lossy().into_owned();
    let folder = PathBuf::from("/lib/modules").join(&release);
    ModuleLoader::open(folder).map_err(|cause| BootError::Modules { release, cause })
}

/// Loads modules for all devices until the NIC exists. A driver may make further devices.
fn find_nic(loader: &mut ModuleLoader, config: &BootConfig) -> Result<String, BootError> {
    let sysfs = Path::new(SYSFS);
    let begin = Instant::now();
    loop {
        while loader.load_for_devices(sysfs) {}
        if let Some(interface) = network::interface_of(sysfs, config.mac) {
            return Ok(interface);
        }
        if begin.elapsed() > NIC_PATIENCE {
            break;
        }
        clock::pause(POLL);
    }
    for (module, error) in loader.errors() {
        console::message(format_args!("load module {module}: {error}"));
    }
    let explanation =
        network::explain_missing_nic(&modules::network_devices(sysfs), loader.index(), |module| {
            loader.error(module).map(ToString::to_string)
        });
    Err(BootError::MissingNic { mac: config.mac, explanation })
}

fn start_network(interface: &str, config: &BootConfig) -> Result<network::Lease, BootError> {
    let failed = |operation| {
        move |cause| BootError::Link { operation, interface: interface.to_owned(), cause }
    };
    network::set_up(interface).map_err(failed("set up"))?;
    let begin = Instant::now();
    while !network::has_carrier(Path::new(SYSFS), interface) && begin.elapsed() < LINK_PATIENCE {
        clock::pause(POLL);
    }
    let lease = network::acquire(interface, config.mac)
        .map_err(|cause| BootError::Lease { interface: interface.to_owned(), cause })?;
    if let Some(mtu) = lease.mtu {
        network::set_mtu(interface, mtu).map_err(failed("set the MTU of"))?;
    }
    network::add_address(interface, lease.address, lease.prefix)
        .map_err(failed("add the address of"))?;
    if let Some(router) = lease.router {
        network::add_default_route(interface, router)
            .map_err(failed("add the default route of"))?;
    }
    console::message(format_args!(
        "{interface} {}: {}/{} from {}",
        config.mac, lease.address, lease.prefix, lease.server
    ));
    Ok(lease)
}

fn require_memory(root: u64, config: &BootConfig) -> Result<(), BootError> {
    let meminfo = fs::read_to_string("/proc/meminfo")
        .map_err(|cause| BootError::Read { path: "/proc/meminfo", cause })?;
    Ok(root::require_memory(&meminfo, root, config.upper_bytes)?)
}

/// Starts the process that serves the root.
fn tether_root(loader: &mut ModuleLoader, config: &BootConfig) -> Result<Tether, BootError> {
    require_memory(tether::memory(config.root.size), config)?;
    loader.load("nbd");
    let tether = tether::start(&config.root)?;
    console::message(format_args!(
        "root: tethered, {} bytes at {} servers",
        config.root.size,
        config.root.urls.len()
    ));
    Ok(tether)
}

/// The process that serves a tethered root; its standard input is the kernel's socket.
pub fn serve_root() -> io::Result<()> {
    let config = read_config().map_err(io::Error::other)?;
    tether::serve(&config.root)
}

/// Fetches the root. Returns its block device.
fn root_in_memory(config: &BootConfig) -> Result<String, BootError> {
    let image = fetch_root(config)?;
    root::attach(&image, config::BLOCK as u32).map_err(BootError::Loop)
}

fn fetch_root(config: &BootConfig) -> Result<File, BootError> {
    require_memory(config.root.size, config)?;
    let path = root::mount_image_store(config.root.size)?;
    let RootImage { urls, digest, size, .. } = config.root.clone();
    fetch_file(&FileSource { name: "root".to_owned(), urls, digest, size }, &path)
}

fn assemble_root(block_device: &str, config: &BootConfig) -> Result<PathBuf, BootError> {
    let mut image = File::open(block_device).map_err(BootError::Open)?;
    let device = root::open_verity(&mut image, block_device, &config.root.verity)?;
    root::mount_lower(&device)?;
    Ok(root::mount_overlay(config.upper_bytes)?)
}

fn write_root_report(report: &RootReport) -> io::Result<()> {
    let path = Path::new(ROOT_REPORT_FILE);
    fs::create_dir_all(path.parent().unwrap_or(path))?;
    fs::write(path, serde_json::to_vec(report)?)
}
