//! The duties of mesh-init, in their order. Alpine's initramfs has unpacked the overlay and
//! installed packages; mesh-init checks both, and starts the init of OpenRC. After a failure it
//! ends: the kernel panics, and `panic=` reboots the machine.

use super::{
    FailureReport, FileSource, attempt, command_line::argument, error::BootError, fetch_file,
    start_netconsole,
};
use crate::{
    alpine::{
        self, BootUrls, MODLOOP, PackagesError, link_programs, missing_packages,
        remove_clock_services, use_modules, write_boot_interface,
    },
    clock, console,
    modules::ModuleLoader,
    network, overlay, root,
};
use meshd_proto::mesh_init::{
    BUNDLES_FOLDER, FetchedBundle, MESH_INIT_CONFIG_FILE, MeshInitConfig, PACKAGES_FILE,
};
use meshd_types::MacAddr;
use rustix::{fs::Mode, system::uname};
use std::{
    convert::Infallible,
    fs::{self, File},
    io::Read as _,
    path::Path,
    thread,
    time::Duration,
};

const NAME: &str = "mesh-init";
const ROOT: &str = "/";
const SYSFS: &str = "/sys";
const COMMAND_LINE: &str = "/proc/cmdline";
/// Databases of apk; the first that has a package counts.
const DATABASES: [&str; 2] = ["/usr/lib/apk/db/installed", "/lib/apk/db/installed"];
/// Maximum size of a text file in bytes.
const MAX_TEXT: u64 = 64 << 20;
/// Where fetched files are stored.
const MODLOOP_FILE: &str = "/.modloop.img";
const BUNDLE_FILES: &str = "/.bundles";
/// Size of a block of loop devices, in bytes.
const BLOCK: u32 = 512;
/// Longest time between the delivery of the overlay and mesh-init: Alpine installs packages.
const LONGEST_BOOT: Duration = Duration::from_secs(1800);
/// Seconds until the kernel reboots after a panic; 0 is never.
const PANIC_TIMEOUT: &str = "/proc/sys/kernel/panic";

/// Carries out the duties as PID 1. Returns after a failure: the process must end.
pub fn boot() {
    console::set_name(NAME);
    rustix::process::umask(Mode::from_raw_mode(0o022));
    attempt(run);
    // Without panic= on the command line the kernel would stop here for ever.
    if fs::read_to_string(PANIC_TIMEOUT).is_ok_and(|seconds| seconds.trim() == "0")
        && let Err(error) = fs::write(PANIC_TIMEOUT, "10")
    {
        console::message(format_args!("write {PANIC_TIMEOUT}: {error}"));
    }
}

fn run(report: &mut FailureReport) -> Result<Infallible, BootError> {
    let root = Path::new(ROOT);
    let line = read_text(COMMAND_LINE)?;
    let part = overlay::read_boot_part(root)?;
    let urls = argument(&line, "modloop").and_then(BootUrls::from_modloop);
    let urls = urls.ok_or(BootError::ModloopUrl)?;
    report.target = Some((urls.failed.clone(), part.session));
    let config = alpine::parse(read_text(MESH_INIT_CONFIG_FILE)?.as_bytes())?;

    // The checks use another processor meanwhile.
    let modloop = Fetch::start(modloop_source(&config, &urls), MODLOOP_FILE.to_owned());
    let bundles = start_bundles(&config, &urls)?;
    let checked = overlay::check_manifest(root)?;
    check_packages()?;
    overlay::lock_root(root)?;
    let mac = argument(&line, "BOOTIF").and_then(boot_mac).ok_or(BootError::BootInterface)?;
    let interface = network::interface_of(Path::new(SYSFS), mac).ok_or(BootError::BootInterface)?;
    write_boot_interface(root, &interface)?;
    let delivered = part.issued_at.seconds();
    if let Some(before) = clock::step(delivered, LONGEST_BOOT).map_err(BootError::Clock)? {
        console::message(format_args!("clock set from {before} to {delivered}"));
    }
    remove_clock_services(root)?;

    let mut loader = mount_modloop(modloop, &config)?;
    let server = *urls.failed.server().ip();
    if let Err(cause) = start_netconsole(&mut loader, &interface, server, &line) {
        console::message(format_args!("netconsole is not started: {cause}"));
    }
    mount_bundles(bundles, &config)?;
    console::message(format_args!("overlay: {checked} files checked"));
    console::message(format_args!("ok {} {}", part.node, part.session));
    Ok(root::start_init(std::iter::empty())?)
}

fn read_text(path: &'static str) -> Result<String, BootError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MAX_TEXT).read_to_end(&mut bytes))
        .map_err(|cause| BootError::Read { path, cause })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Parses `01-AA-BB-CC-DD-EE-FF`: the hardware type of Ethernet and an address.
fn boot_mac(text: &str) -> Option<MacAddr> {
    text.strip_prefix("01-").unwrap_or(text).parse().ok()
}

fn check_packages() -> Result<(), BootError> {
    let wanted = read_text(PACKAGES_FILE)?;
    let mut databases = DATABASES.iter().filter_map(|path| read_text(path).ok());
    let database = databases.find(|database| !database.is_empty()).ok_or(PackagesError::None)?;
    let missing = missing_packages(&wanted, &database);
    if missing.is_empty() { Ok(()) } else { Err(PackagesError::Missing(missing).into()) }
}

/// A file that another thread fetches.
struct Fetch {
    name: String,
    thread: thread::JoinHandle<Result<File, BootError>>,
}

impl Fetch {
    fn start(source: FileSource, path: String) -> Self {
        let name = source.name.clone();
        Fetch { name, thread: thread::spawn(move || fetch_file(&source, Path::new(&path))) }
    }

    /// Waits for the file. Returns the loop device that has it.
    fn attach(self) -> Result<String, BootError> {
        let file = self.thread.join().map_err(|_| BootError::Thread(self.name))??;
        root::attach(&file, BLOCK).map_err(BootError::Loop)
    }
}

fn modloop_source(config: &MeshInitConfig, urls: &BootUrls) -> FileSource {
    FileSource {
        name: "modloop".to_owned(),
        urls: vec![urls.modloop.clone()],
        digest: config.modloop.digest,
        size: config.modloop.size,
    }
}

/// Bundles come from where the modloop comes from, by the digest that the overlay names.
fn start_bundles(config: &MeshInitConfig, urls: &BootUrls) -> Result<Vec<Fetch>, BootError> {
    if !config.bundles.is_empty() {
        fs::create_dir_all(BUNDLE_FILES)
            .map_err(|cause| BootError::Create { path: BUNDLE_FILES.to_owned(), cause })?;
    }
    let start = |FetchedBundle { name, layer }: &FetchedBundle| {
        let url = urls.bundle(&layer.digest).ok_or(BootError::ModloopUrl)?;
        let source = FileSource {
            name: format!("bundle {name}"),
            urls: vec![url],
            digest: layer.digest,
            size: layer.size,
        };
        Ok(Fetch::start(source, format!("{BUNDLE_FILES}/{name}")))
    };
    config.bundles.iter().map(start).collect()
}

/// Mounts the modloop, as Alpine's service would have done it. Returns its modules.
fn mount_modloop(modloop: Fetch, config: &MeshInitConfig) -> Result<ModuleLoader, BootError> {
    root::mount_squashfs(&modloop.attach()?, MODLOOP)?;
    let release = uname().release().to_string_lossy().into_owned();
    let modules = Path::new(MODLOOP).join("modules").join(&release);
    if !modules.is_dir() {
        return Err(BootError::ModloopRelease { image: config.image.clone(), release });
    }
    use_modules(Path::new(ROOT))?;
    ModuleLoader::open(modules).map_err(|cause| BootError::Modules { release, cause })
}

fn mount_bundles(fetches: Vec<Fetch>, config: &MeshInitConfig) -> Result<(), BootError> {
    for (fetch, FetchedBundle { name, .. }) in fetches.into_iter().zip(&config.bundles) {
        let mount = || {
            root::mount_squashfs(&fetch.attach()?, &format!("{BUNDLES_FOLDER}/{name}"))?;
            Ok(link_programs(Path::new(ROOT), name)?)
        };
        mount()
            .map_err(|error| BootError::Bundle { name: name.clone(), error: Box::new(error) })?;
    }
    Ok(())
}
