//! Fake machines for tests: sysfs and procfs in a folder, and a kernel that binds drivers.

use crate::{
    system::Tree,
    vfio::{KernelOps, ProbeError},
};
use std::{
    cell::RefCell,
    collections::BTreeMap,
    fs,
    io::{self, Write as _},
    os::unix::fs::symlink,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// One PCI function: address, `vendor:device`, class, IOMMU group (none below 0), bound driver or
/// empty, NUMA node.
pub type PciFunctionRow = (&'static str, &'static str, &'static str, i32, &'static str, i32);

/// Interface, destination, mask and gateway.
type FakeRoute<'a> = (&'a str, [u8; 4], [u8; 4], [u8; 4]);

/// A machine whose files are removed on drop.
pub struct FakeMachine {
    dir: tempfile::TempDir,
    pub tree: Tree,
    probe_errors: BTreeMap<u32, ProbeError>,
    /// Every write, as `path <- text`.
    pub writes: RefCell<Vec<String>>,
}

impl FakeMachine {
    /// Returns a machine with these functions, this kernel command line and the VFIO modules.
    pub fn new(cmdline: &str, rows: &[PciFunctionRow]) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let tree = Tree::new(dir.path());
        let fake =
            FakeMachine { dir, tree, probe_errors: BTreeMap::new(), writes: RefCell::default() };
        fake.file("proc/cmdline", &format!("{cmdline}\n"));
        for module in ["vfio", "vfio_iommu_type1", "vfio_pci"] {
            fake.folder(&format!("sys/module/{module}"));
        }
        fake.folder("sys/kernel/iommu_groups");
        rows.iter().for_each(|row| fake.function(*row));
        fake
    }

    fn function(&self, row: PciFunctionRow) {
        let (address, ids, class, group, driver, numa) = row;
        let (vendor, device) = ids.split_once(':').expect("vendor:device");
        let folder = format!("sys/devices/pci0000:00/{address}");
        for (name, text) in [
            ("vendor", format!("0x{vendor}\n")),
            ("device", format!("0x{device}\n")),
            ("class", format!("0x{class}00\n")),
            ("numa_node", format!("{numa}\n")),
            ("driver_override", "(null)\n".to_owned()),
            ("config", format!("{vendor}{device}")),
        ] {
            self.file(&format!("{folder}/{name}"), &text);
        }
        self.link(
            &format!("sys/bus/pci/devices/{address}"),
            &format!("../../../devices/pci0000:00/{address}"),
        );
        if group >= 0 {
            self.link(
                &format!("{folder}/iommu_group"),
                &format!("../../../kernel/iommu_groups/{group}"),
            );
            let members = format!("sys/kernel/iommu_groups/{group}/devices");
            self.link(
                &format!("{members}/{address}"),
                &format!("../../../../devices/pci0000:00/{address}"),
            );
        }
        if !driver.is_empty() {
            self.bind(address, driver);
        }
    }

    fn bind(&self, address: &str, driver: &str) {
        self.folder(&format!("sys/bus/pci/drivers/{driver}"));
        let link = format!("sys/devices/pci0000:00/{address}/driver");
        self.link(&link, &format!("../../../bus/pci/drivers/{driver}"));
    }

    pub fn file(&self, path: &str, text: &str) {
        self.raw(path, text.as_bytes());
    }

    pub fn raw(&self, path: &str, bytes: &[u8]) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        fs::write(path, bytes).expect("written");
    }

    pub fn folder(&self, path: &str) {
        fs::create_dir_all(self.dir.path().join(path)).expect("made");
    }

    /// Creates or replaces a symbolic link.
    pub fn link(&self, path: &str, target: &str) {
        let path = self.dir.path().join(path);
        fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        let _ = fs::remove_file(&path);
        symlink(target, path).expect("linked");
    }

    /// Adds a network interface of a function.
    pub fn interface(&self, name: &str, mac: &str, function: &str) {
        let folder = format!("sys/devices/pci0000:00/{function}/net/{name}");
        self.file(&format!("{folder}/address"), &format!("{mac}\n"));
        self.link(&format!("{folder}/device"), "../..");
        self.link(
            &format!("sys/class/net/{name}"),
            &format!("../../devices/pci0000:00/{function}/net/{name}"),
        );
    }

    /// Writes the IPv4 routes.
    pub fn routes(&self, routes: &[FakeRoute<'_>]) {
        let number = |address: [u8; 4]| format!("{:08X}", u32::from_ne_bytes(address));
        let mut table =
            "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\n".to_owned();
        for (name, net, mask, gateway) in routes {
            table += &format!(
                "{name} {} {} 1 0 0 0 {} 0 0 0\n",
                number(*net),
                number(*gateway),
                number(*mask)
            );
        }
        self.file("proc/net/route", &table);
    }

    /// Adds a disk of a function with one partition; `number` is the device number of the
    /// partition.
    pub fn disk(&self, name: &str, function: &str, number: &str) {
        let folder = format!("sys/devices/pci0000:00/{function}/nvme/nvme0/{name}");
        self.file(&format!("{folder}/uevent"), &format!("MAJOR=259\nDEVNAME={name}\n"));
        self.file(&format!("{folder}/{name}p1/partition"), "1\n");
        self.file(&format!("{folder}/{name}p1/dev"), &format!("{number}\n"));
        self.link(
            &format!("sys/block/{name}"),
            &format!("../devices/pci0000:00/{function}/nvme/nvme0/{name}"),
        );
    }

    /// Adds a process that has a device node open.
    pub fn process(&self, id: u32, name: &str, node: &str) {
        self.file(&format!("proc/{id}/comm"), &format!("{name}\n"));
        self.link(&format!("proc/{id}/fd/7"), node);
    }

    /// Removes a function from the bus.
    pub fn vanish(&self, address: &str) {
        fs::remove_file(self.dir.path().join(format!("sys/bus/pci/devices/{address}")))
            .expect("it was there");
    }

    /// Makes probes of a group fail.
    pub fn fail_probe(&mut self, group: u32, error: ProbeError) {
        self.probe_errors.insert(group, error);
    }

    pub fn driver(&self, address: &str) -> Option<String> {
        self.tree.link(&format!("/sys/bus/pci/devices/{address}/driver"))
    }

    fn functions_of(&self, group: u32) -> Vec<String> {
        self.tree.list(&format!("/sys/kernel/iommu_groups/{group}/devices"))
    }
}

impl KernelOps for FakeMachine {
    fn probe(&self, group: u32) -> Result<(), ProbeError> {
        if let Some(error) = self.probe_errors.get(&group) {
            return Err(error.clone());
        }
        let drivers: Vec<String> =
            self.functions_of(group).iter().filter_map(|function| self.driver(function)).collect();
        if !drivers.iter().any(|driver| driver == "vfio-pci") {
            return Err(ProbeError::Failed(format!("there is no /dev/vfio/{group}")));
        }
        let viable = drivers
            .iter()
            .all(|driver| ["vfio-pci", "pcieport", "pci-stub"].contains(&driver.as_str()));
        if viable { Ok(()) } else { Err(ProbeError::NotViable) }
    }

    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        self.writes.borrow_mut().push(format!("{path} <- {text}"));
        let folder = Path::new(path).parent().and_then(Path::to_str).unwrap_or_default();
        if path == "/sys/bus/pci/drivers_probe" {
            let driver_override =
                self.tree.text(&format!("/sys/bus/pci/devices/{text}/driver_override"));
            if let Some(driver) = driver_override.filter(|driver| driver != "(null)") {
                self.bind(text, &driver);
            }
            return Ok(());
        }
        if path.ends_with("/driver/unbind") {
            return fs::remove_file(self.tree.path(folder));
        }
        fs::write(self.tree.path(path), format!("{text}\n"))
    }
}

/// A loop device of this machine, removed on drop.
pub struct LoopDevice {
    dir: tempfile::TempDir,
    /// `/dev/loop0`.
    pub device: String,
}

impl LoopDevice {
    pub fn new(bytes: u64) -> Self {
        let dir = tempfile::tempdir().expect("a folder");
        let image = dir.path().join("image");
        fs::File::create(&image).and_then(|file| file.set_len(bytes)).expect("made");
        fs::create_dir(dir.path().join("mounted")).expect("made");
        let device = run("losetup", &["-f", "--show", image.to_str().expect("a plain path")])
            .trim()
            .to_owned();
        LoopDevice { dir, device }
    }

    /// `loop0`.
    pub fn name(&self) -> &str {
        self.device.trim_start_matches("/dev/")
    }

    pub fn mount_point(&self) -> String {
        self.dir.path().join("mounted").display().to_string()
    }

    pub fn ext4(&self) {
        run("mkfs.ext4", &["-q", "-F", &self.device]);
    }

    pub fn mount(&self) {
        // ext4 writes to a file system in the background, unless it is mounted read-only.
        run("mount", &["-o", "ro", &self.device, &self.mount_point()]);
    }

    pub fn umount(&self) {
        run("umount", &[&self.mount_point()]);
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        // Errors mean that the device is already unmounted or detached.
        for (program, args) in [
            ("umount", vec![self.mount_point()]),
            ("losetup", vec!["-d".to_owned(), self.device.clone()]),
        ] {
            let _ = Command::new(program).args(args).stderr(Stdio::null()).status();
        }
    }
}

/// Runs a program and returns its output. Panics if the program fails.
pub fn run(program: &str, args: &[&str]) -> String {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Runs a test again in a new network and mount namespace. Returns true for the run in the
/// namespace.
pub fn in_namespace(test: &str) -> bool {
    const INSIDE: &str = "MESHD_TEST_NAMESPACE";
    if std::env::var_os(INSIDE).is_some() {
        run("mount", &["-t", "sysfs", "none", "/sys"]);
        run("ip", &["link", "set", "lo", "up"]);
        return true;
    }
    let mut command = Command::new("unshare");
    command.args(["--net", "--mount", "--"]).arg(std::env::current_exe().expect("this program"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "1");
    let output = command.output().expect("unshare runs");
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// A network namespace, removed on drop.
pub struct NetworkNamespace(Child);

impl NetworkNamespace {
    pub fn new() -> Self {
        let namespace = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/net"));
        let mut child =
            Command::new("unshare").args(["--net", "sleep", "900"]).spawn().expect("unshare runs");
        let own = namespace(std::process::id()).expect("known");
        let deadline = Instant::now() + Duration::from_secs(60);
        while namespace(child.id()).is_ok_and(|current| current == own) {
            assert!(
                child.try_wait().expect("known").is_none() && Instant::now() < deadline,
                "no new namespace"
            );
            std::thread::yield_now();
        }
        NetworkNamespace(child)
    }

    pub fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// Returns the MAC address of a device of the namespace.
    pub fn mac(&self, device: &str) -> String {
        let file = format!("/sys/class/net/{device}/address");
        // A mount namespace with the sysfs of this network namespace.
        let script = format!("mount -t sysfs none /sys && cat {file}");
        run("nsenter", &["-t", &self.pid(), "-n", "unshare", "--mount", "sh", "-c", &script])
            .trim()
            .to_owned()
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, args: &[&str]) {
        run("nsenter", &[&["-t", &self.pid(), "-n", "ip"], args].concat());
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Writes an executable script by another process. A file that this process writes cannot be
/// executed while a child of another test, between `fork` and `exec`, holds its descriptor
/// (ETXTBSY).
pub fn write_program(path: &Path, text: &str) {
    let mut install = Command::new("install")
        .args(["-m", "755", "/dev/stdin"])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .expect("install starts");
    install.stdin.take().expect("a pipe").write_all(text.as_bytes()).expect("written");
    assert!(install.wait().expect("it ends").success(), "cannot write {}", path.display());
}
