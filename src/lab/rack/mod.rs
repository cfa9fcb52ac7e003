//! A rack: created whole or not at all, and removed when dropped.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `cleanup` | removes a rack: recorded processes, leftovers of a crash, networks and files |
//! | `emulator` | diagnoses a silent node when a test fails: emulator, kernel or agent |
//! | `neighbour` | other machines on the rack's network: a stranger, another DHCP server, a relay |
//! | `power` | power, serial ports and status of the rack's nodes |
//! | `record` | `rack.json`: the record of a rack's processes and networks |

pub(crate) mod cleanup;
pub(crate) mod emulator;
pub(crate) mod neighbour;
pub(crate) mod power;
pub(crate) mod record;

use super::{
    Accel, Extra, Firmware, Interrupt, LabError, Mix, Namespace, ProcessId, Shape, central,
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
    path::{Path, PathBuf},
    process::Child,
};

/// What rack to make.
#[derive(Clone, Debug)]
pub struct Options {
    /// Everything that the rack keeps on disk is in here; made if it is not there.
    pub dir: PathBuf,
    /// The user's site file.
    pub site: PathBuf,
    /// The meshd under trial.
    pub program: PathBuf,
    pub nodes: u8,
    pub firmware: Mix,
    pub shape: Shape,
    /// What nodes have besides, by turns as their firmware; empty for nothing.
    pub extras: Vec<Vec<Extra>>,
    /// Keys of the site file to override beside the lab's own.
    pub settings: Vec<Setting>,
    /// Built images, to share them between racks; default: `blobs` in `dir`.
    pub blobs: Option<PathBuf>,
    /// Nodes boot this profile and no other: what only other profiles need is not built.
    pub only_profile: Option<String>,
    /// Somebody may sit at the nodes' serial ports.
    pub console: bool,
    /// Press the power buttons at once.
    pub powered: bool,
    /// Ends every wait.
    pub interrupt: Interrupt,
}

impl Options {
    /// Two BIOS nodes, powered at once.
    pub fn new(dir: impl Into<PathBuf>, site: impl Into<PathBuf>, program: impl Into<PathBuf>) -> Self {
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

/// A running rack.
pub struct Rack {
    pub(super) layout: Layout,
    pub(super) namespace: Namespace,
    pub(super) tools: Tools,
    pub(super) site: Site,
    pub(super) record: Record,
    /// Processes that this program started itself, to be reaped.
    pub(super) children: BTreeMap<String, Child>,
    pub(super) interrupt: Interrupt,
    /// The rack outlives this value.
    detached: bool,
}

impl Rack {
    /// Makes a rack; `talk` hears what is being done. What was made before a failure is taken down again.
    pub fn up(options: &Options, talk: &mut dyn FnMut(&str)) -> Result<Rack, LabError> {
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
        central::ensure_images(&options.program, &site, options.only_profile.as_deref(), talk)?;
        let (accel, reason) = accel::probe(&tools.qemu, &dir)?;
        talk(&match accel {
            Accel::Kvm => format!("nodes run under KVM: {reason}"),
            Accel::Tcg => format!("nodes are emulated: {reason}"),
        });
        let record = record(options, accel);
        record.save(&dir)?;
        let (children, interrupt) = (BTreeMap::new(), options.interrupt.clone());
        let mut rack = Rack { layout, namespace, tools, site, record, children, interrupt, detached: false };
        rack.wire()?;
        rack.start_central()?;
        talk(&format!("meshd serves in {}, {} nodes are plugged in", rack.namespace.name(), options.nodes));
        for place in 1..=if options.powered { options.nodes } else { 0 } {
            rack.power_on(place)?;
        }
        Ok(rack)
    }

    /// Builds the images that a rack needs, without making one: no networks, no root.
    pub fn prepare(options: &Options, talk: &mut dyn FnMut(&str)) -> Result<(), LabError> {
        let dir = make_dir(&options.dir)?;
        let layout = Layout::of(&dir, options.blobs.as_deref());
        let _lock = lock(&dir)?;
        refuse_if_up(&dir)?;
        let site = site::derive(&options.site, &layout, &options.settings, options.nodes)?;
        meshd_image::catalog::load_agent(&site)?;
        central::ensure_images(&options.program, &site, options.only_profile.as_deref(), talk)
    }

    /// The rack that runs in this folder. Dropping it does not end the rack.
    pub fn attach(dir: &Path) -> Result<Rack, LabError> {
        let not_up = || LabError::NotUp { dir: dir.to_owned() };
        let dir = fs::canonicalize(dir).map_err(|_| not_up())?;
        let record = Record::load(&dir)?.ok_or_else(not_up)?;
        let layout = Layout::of(&dir, None);
        let site = meshd_config::load(&layout.site).map_err(|faults| LabError::Site(faults.to_string()))?;
        let layout = Layout::of(&dir, Some(&site.blobs_dir));
        let tools = Tools::locate(&site.boot.loaders_dir)?;
        let namespace = Namespace::of(&tools.ip, &dir);
        let (children, interrupt) = (BTreeMap::new(), Interrupt::default());
        Ok(Rack { layout, namespace, tools, site, record, children, interrupt, detached: true })
    }

    /// Reads the user's site file again. A file with errors changes nothing.
    fn derive_again(&mut self, talk: &mut dyn FnMut(&str)) -> Result<(), LabError> {
        let user = self.record.user_site.clone().ok_or(LabError::Options(
            "this rack was made by an earlier release; run `meshd lab down`, then `meshd lab up`".to_owned(),
        ))?;
        self.site = site::derive(&user, &self.layout, &self.record.settings, self.size())?;
        central::ensure_images(&self.record.program, &self.site, None, talk)
    }

    /// Takes over changes of the user's site file, overlays and images, as `meshd reload` does. Gives what meshd says.
    pub fn reload(&mut self, talk: &mut dyn FnMut(&str)) -> Result<String, LabError> {
        let _lock = lock(&self.layout.dir)?;
        self.derive_again(talk)?;
        self.run_cli(&["reload"])
    }

    /// Ends meshd and starts it with the user's site file as it is now. Nodes keep running.
    pub fn restart(&mut self, talk: &mut dyn FnMut(&str)) -> Result<(), LabError> {
        tools::check_privilege()?;
        let _lock = lock(&self.layout.dir)?;
        self.derive_again(talk)?;
        self.stop_central()?;
        self.start_central()
    }

    /// Bridge and taps.
    fn wire(&self) -> Result<(), LabError> {
        let segment = &self.site.segments[0];
        let Some(address) = segment.address else {
            return Err(LabError::Site("the lab's own site file has no address".to_owned()));
        };
        self.namespace.create()?;
        bridge::create(&self.namespace, address, site::prefix_len(&self.site))?;
        self.record.nodes.iter().try_for_each(|node| bridge::add_tap(&self.namespace, &node.tap()))
    }

    /// Ends it.
    pub fn down(mut self) -> Result<(), LabError> {
        self.detached = true;
        self.tear_down()
    }

    fn tear_down(&mut self) -> Result<(), LabError> {
        let _lock = lock(&self.layout.dir)?;
        let swept = cleanup::sweep(&self.layout.dir, &self.namespace, Some(&self.record), Logs::Keep);
        for child in self.children.values_mut() {
            // They are gone; this only reaps them.
            let _ = child.try_wait();
        }
        swept
    }

    /// Lets the rack outlive this value.
    pub fn leave(mut self) {
        self.detached = true;
    }

    pub fn dir(&self) -> &Path {
        &self.layout.dir
    }

    /// The rack's own site file.
    pub fn site_file(&self) -> &Path {
        &self.layout.site
    }

    /// The rack's own site.
    pub fn site(&self) -> &Site {
        &self.site
    }

    /// The rack's network.
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
            eprintln!("{}{}", self.last_words(60), self.emulators());
        }
        if let Err(error) = self.tear_down() {
            eprintln!("the rack in {} is not wholly gone: {error}", self.layout.dir.display());
        }
    }
}

/// Ends the rack in this folder, also one whose `lab up` crashed. False if there was none.
pub fn end(dir: &Path) -> Result<bool, LabError> {
    tools::check_privilege()?;
    let Ok(dir) = fs::canonicalize(dir) else { return Ok(false) };
    let _lock = lock(&dir)?;
    let ip = tools::find("ip").unwrap_or_else(|| PathBuf::from("ip"));
    let namespace = Namespace::of(&ip, &dir);
    // A damaged record is no reason to leave processes behind: those inside the namespace are found without it.
    let record = Record::load(&dir).unwrap_or_default();
    let was = record.is_some() || namespace.exists();
    cleanup::sweep(&dir, &namespace, record.as_ref(), Logs::Keep)?;
    Ok(was)
}

fn record(options: &Options, accel: Accel) -> Record {
    let extras = |place: u8| options.extras.iter().cycle().nth(usize::from(place).saturating_sub(1)).cloned();
    let node = |place| NodeRecord {
        place,
        firmware: options.firmware.at(place),
        extras: extras(place).unwrap_or_default(),
        identity: None,
        process: None,
    };
    Record {
        host_boot: crate::host::process::host_boot_id(),
        program: options.program.clone(),
        user_site: std::path::absolute(&options.site).ok(),
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

/// Two `meshd lab` on one folder at the same moment would undo each other's work.
fn lock(dir: &Path) -> Result<File, LabError> {
    use rustix::fs::{FlockOperation, flock};
    let path = dir.join("lock");
    let file = File::create(&path).map_err(LabError::file("write", &path))?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| LabError::Locked { dir: dir.to_owned() })?;
    Ok(file)
}

fn refuse_if_up(dir: &Path) -> Result<(), LabError> {
    let Some(record) = Record::load(dir)? else { return Ok(()) };
    let same_boot = record.host_boot == crate::host::process::host_boot_id();
    let alive = record.processes().into_iter().map(|(_, process)| process).any(ProcessId::is_alive);
    if same_boot && alive { Err(LabError::AlreadyUp { dir: dir.to_owned() }) } else { Ok(()) }
}
