//! A rack, created completely or not at all, and removed when dropped.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `central` | runs meshd inside the rack's namespace and calls its CLI |
//! | `cleanup` | removes a rack: recorded processes, leftovers of a crash, networks and files |
//! | `emulator` | diagnoses a silent node when a test fails: emulator, kernel or agent |
//! | `neighbour` | other machines on the rack's network: an unknown machine, another DHCP server, a relay |
//! | `power` | power, serial ports and status of the rack's nodes |
//! | `record` | `rack.json`: the record of a rack's processes and networks |
//! | `shared_blobs` | racks that use a folder of blobs, and lists that killed ones left there |

mod central;
pub(crate) mod cleanup;
pub(crate) mod emulator;
pub(crate) mod neighbour;
pub(crate) mod power;
pub(crate) mod record;
mod shared_blobs;

use super::{
    Accel, Extra, Firmware, Interrupt, LabError, Mix, Namespace, ProcessId, Shape,
    site::{self, Layout, Setting},
};
use crate::{
    network::bridge,
    qemu::accel,
    tools::{self, Tools},
};
use cleanup::Logs;
use meshd_config::Site;
use record::{NodeRecord, Record};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Child,
};

/// Options of a rack.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of all files of the rack; created if absent.
    pub dir: PathBuf,
    /// The user's site file.
    pub site: PathBuf,
    /// The meshd under test.
    pub program: PathBuf,
    pub nodes: u8,
    pub firmware: Mix,
    pub shape: Shape,
    /// Additional hardware, assigned in rotation.
    pub extras: Vec<Vec<Extra>>,
    /// Keys of the site file to override, in addition to the lab's own.
    pub settings: Vec<Setting>,
    /// Folder of built images, to share them between racks; default: `blobs` in `dir`.
    pub blobs: Option<PathBuf>,
    /// The only profile that nodes boot: images of other profiles are not built.
    pub only_profile: Option<String>,
    /// Give the nodes' serial ports console sockets.
    pub console: bool,
    /// Power the nodes on.
    pub powered: bool,
    /// Ends all waits.
    pub interrupt: Interrupt,
}

impl Options {
    /// Creates options of a rack with two BIOS nodes, which are powered on at once.
    pub fn new(
        dir: impl Into<PathBuf>,
        site: impl Into<PathBuf>,
        program: impl Into<PathBuf>,
    ) -> Self {
        Options {
            dir: dir.into(),
            site: site.into(),
            program: program.into(),
            nodes: 2,
            firmware: Mix::of([Firmware::Bios]),
            shape: Shape::default(),
            extras: Vec::new(),
            settings: Vec::new(),
            blobs: None,
            only_profile: None,
            console: false,
            powered: true,
            interrupt: Interrupt::default(),
        }
    }

    /// Overrides a key of the site file.
    pub fn set(mut self, key: &str, to: &str) -> Self {
        self.settings.push((key.to_owned(), to.to_owned()));
        self
    }
}

pub struct Rack {
    pub(super) layout: Layout,
    pub(super) namespace: Namespace,
    pub(super) tools: Tools,
    pub(super) site: Site,
    pub(super) record: Record,
    /// Child processes of this program, to be reaped.
    pub(super) children: BTreeMap<String, Child>,
    pub(super) interrupt: Interrupt,
    /// Whether the rack outlives this value.
    detached: bool,
}

impl Rack {
    /// Creates a rack; `report` receives progress messages. A failure removes everything that was
    /// created.
    pub fn up(options: &Options, report: &mut dyn FnMut(&str)) -> Result<Rack, LabError> {
        tools::check_privilege()?;
        options.shape.check(options.nodes)?;
        let dir = make_dir(&options.dir)?;
        let layout = Layout::of(&dir, options.blobs.as_deref());
        layout.check()?;
        let _lock = lock(&dir)?;
        refuse_if_up(&dir)?;
        let site = site::derive(&options.site, &layout, &options.settings, options.nodes)?;
        meshd_image::catalog::load_agent(&site)?;
        let tools = Tools::locate(&site.boot.loaders_dir)?;
        let namespace = Namespace::of(&tools.ip, &dir);
        cleanup::sweep(&dir, &namespace, None, Logs::Remove)?;
        shared_blobs::withdraw_dead_racks(&site.blobs_dir, &tools.ip)?;
        ensure_images(options, &site, report)?;
        let (accel, reason) = accel::probe(&tools.qemu, &dir)?;
        report(&match accel {
            Accel::Kvm => format!("nodes run under KVM: {reason}"),
            Accel::Tcg => format!("nodes are emulated: {reason}"),
        });
        let record = record(options, accel);
        record.save(&dir)?;
        let children = BTreeMap::new();
        let interrupt = options.interrupt.clone();
        let mut rack =
            Rack { layout, namespace, tools, site, record, children, interrupt, detached: false };
        rack.create_network()?;
        rack.start_central()?;
        report(&format!(
            "meshd serves in {}; nodes plugged in: {}",
            rack.namespace.name(),
            options.nodes
        ));
        for position in 1..=if options.powered { options.nodes } else { 0 } {
            rack.power_on(position)?;
        }
        Ok(rack)
    }

    /// Builds the images of a rack without creating it: no networks, no root.
    pub fn prepare(options: &Options, report: &mut dyn FnMut(&str)) -> Result<(), LabError> {
        let dir = make_dir(&options.dir)?;
        let layout = Layout::of(&dir, options.blobs.as_deref());
        let _lock = lock(&dir)?;
        refuse_if_up(&dir)?;
        let site = site::derive(&options.site, &layout, &options.settings, options.nodes)?;
        meshd_image::catalog::load_agent(&site)?;
        ensure_images(options, &site, report)
    }

    /// Attaches to the running rack in a folder. Dropping the value does not end the rack.
    pub fn attach(dir: &Path) -> Result<Rack, LabError> {
        let not_up = || LabError::NotUp { dir: dir.to_owned() };
        let dir = fs::canonicalize(dir).map_err(|_| not_up())?;
        let record = Record::load(&dir)?.ok_or_else(not_up)?;
        let layout = Layout::of(&dir, None);
        let site = meshd_config::load(&layout.site)?;
        let layout = Layout::of(&dir, Some(&site.blobs_dir));
        let tools = Tools::locate(&site.boot.loaders_dir)?;
        let namespace = Namespace::of(&tools.ip, &dir);
        let children = BTreeMap::new();
        let interrupt = Interrupt::default();
        Ok(Rack { layout, namespace, tools, site, record, children, interrupt, detached: true })
    }

    /// Derives the site file again. A file with errors changes nothing.
    fn rederive_site(&mut self, report: &mut dyn FnMut(&str)) -> Result<(), LabError> {
        self.site =
            site::derive(&self.record.user_site, &self.layout, &self.record.settings, self.size())?;
        let program = &self.record.program;
        let interrupt = &self.interrupt;
        central::ensure_images(program, &self.site, None, interrupt, report)
    }

    /// Applies changes of the user's site file, overlays and images, as `meshd reload` does.
    /// Returns the output of meshd.
    pub fn reload(&mut self, report: &mut dyn FnMut(&str)) -> Result<String, LabError> {
        let _lock = lock(&self.layout.dir)?;
        self.rederive_site(report)?;
        self.run_cli(&["reload"])
    }

    /// Restarts meshd with the present site file of the user. Nodes keep running.
    pub fn restart(&mut self, report: &mut dyn FnMut(&str)) -> Result<(), LabError> {
        tools::check_privilege()?;
        let _lock = lock(&self.layout.dir)?;
        self.rederive_site(report)?;
        self.stop_central()?;
        // An earlier reload may have changed the site file, so the former address is not known.
        bridge::set_address(&self.namespace, self.address()?, site::prefix_len(&self.site))?;
        self.start_central()
    }

    /// Returns the address of the central node.
    fn address(&self) -> Result<Ipv4Addr, LabError> {
        let address = self.site.segments[0].address;
        address.ok_or_else(|| LabError::Site("the lab's own site file has no address".to_owned()))
    }

    /// Creates bridge and taps.
    fn create_network(&self) -> Result<(), LabError> {
        let address = self.address()?;
        self.namespace.create()?;
        bridge::create(&self.namespace, address, site::prefix_len(&self.site))?;
        let mut taps = self.record.nodes.iter().flat_map(|node| node.taps());
        taps.try_for_each(|tap| bridge::add_tap(&self.namespace, &tap))
    }

    /// Removes the rack.
    pub fn down(mut self) -> Result<(), LabError> {
        self.detached = true;
        self.tear_down()
    }

    fn tear_down(&mut self) -> Result<(), LabError> {
        let _lock = lock(&self.layout.dir)?;
        let swept =
            cleanup::sweep(&self.layout.dir, &self.namespace, Some(&self.record), Logs::Keep);
        for child in self.children.values_mut() {
            // Reap the child, which has ended.
            let _ = child.try_wait();
        }
        swept
    }

    /// Lets the rack outlive this value.
    pub fn detach(mut self) {
        self.detached = true;
    }

    pub fn dir(&self) -> &Path {
        &self.layout.dir
    }

    pub fn site_file(&self) -> &Path {
        &self.layout.site
    }

    pub fn site(&self) -> &Site {
        &self.site
    }

    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        if self.detached {
            return;
        }
        if std::thread::panicking() {
            let _ = writeln!(io::stderr(), "{}{}", self.log_ends(60), self.emulators());
        }
        if let Err(error) = self.tear_down() {
            let _ = writeln!(
                io::stderr(),
                "cannot remove the rack in {} completely: {error}",
                self.layout.dir.display()
            );
        }
    }
}

/// Removes the rack in a folder, also after a crash of `lab up`. Returns false if there was none.
pub fn end(dir: &Path) -> Result<bool, LabError> {
    tools::check_privilege()?;
    let Ok(dir) = fs::canonicalize(dir) else { return Ok(false) };
    let _lock = lock(&dir)?;
    let ip = tools::find("ip").unwrap_or_else(|| PathBuf::from("ip"));
    let namespace = Namespace::of(&ip, &dir);
    // A damaged record is ignored, because the clean-up also finds processes by their namespace.
    let record = Record::load(&dir).unwrap_or_default();
    let existed = record.is_some() || namespace.exists();
    cleanup::sweep(&dir, &namespace, record.as_ref(), Logs::Keep)?;
    Ok(existed)
}

/// Builds the images of a rack that are not up to date.
fn ensure_images(
    options: &Options,
    site: &Site,
    report: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    let only = options.only_profile.as_deref();
    central::ensure_images(&options.program, site, only, &options.interrupt, report)
}

fn record(options: &Options, accel: Accel) -> Record {
    let extras = |position: u8| {
        options.extras.iter().cycle().nth(usize::from(position).saturating_sub(1)).cloned()
    };
    let node = |position| NodeRecord {
        position,
        firmware: options.firmware.at(position),
        extras: extras(position).unwrap_or_default(),
        identity: None,
        process: None,
    };
    Record {
        host_boot: crate::host::process::host_boot_id(),
        program: options.program.clone(),
        user_site: std::path::absolute(&options.site).unwrap_or_else(|_| options.site.clone()),
        settings: options.settings.clone(),
        accel,
        shape: options.shape,
        console: options.console,
        central: None,
        nodes: (1..=options.nodes).map(node).collect(),
    }
}

fn make_dir(dir: &Path) -> Result<PathBuf, LabError> {
    fs::create_dir_all(dir).map_err(LabError::file("make", dir))?;
    fs::canonicalize(dir).map_err(LabError::file("find", dir))
}

/// Locks a folder against another `meshd lab`.
fn lock(dir: &Path) -> Result<File, LabError> {
    use rustix::fs::{FlockOperation, flock};
    let path = dir.join("lock");
    let file = File::create(&path).map_err(LabError::file("write", &path))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| LabError::Locked { dir: dir.to_owned() })?;
    Ok(file)
}

fn refuse_if_up(dir: &Path) -> Result<(), LabError> {
    let Some(record) = Record::load(dir)? else { return Ok(()) };
    let same_boot = record.host_boot == crate::host::process::host_boot_id();
    let alive = record.processes().into_iter().map(|(_, process)| process).any(ProcessId::is_alive);
    if same_boot && alive { Err(LabError::AlreadyUp { dir: dir.to_owned() }) } else { Ok(()) }
}
