//! Racks for tests, each in a folder of its own, with the programs of this build. At most two nodes
//! run at a time.

use meshd_lab::{LabError, Options, Rack, Shape, Wait};
use serde_json::Value;
use std::{
    cell::Cell,
    env, fs,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::{Path, PathBuf},
    sync::{Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// From power-on to online under emulation, two nodes at a time on two busy processors.
pub const BOOT: Duration = Duration::from_secs(8 * 60);
/// From one stage of a boot to the next.
pub const STAGE: Duration = Duration::from_secs(4 * 60);
/// What happens within a running system.
pub const SOON: Duration = Duration::from_secs(180);

/// Emulated nodes that may run at a time: a boot keeps one processor busy, and more of them would
/// miss every deadline.
const PLACES: u8 = 2;
static FREE_PLACES: Mutex<u8> = Mutex::new(PLACES);
static PLACE_FREED: Condvar = Condvar::new();

/// The right to run so many nodes.
pub struct Places(u8);

impl Places {
    /// Waits until so many nodes may run.
    pub fn wait(nodes: u8) -> Self {
        let nodes = nodes.min(PLACES);
        let free = FREE_PLACES.lock().unwrap_or_else(PoisonError::into_inner);
        let free = PLACE_FREED.wait_while(free, |free| *free < nodes);
        *free.unwrap_or_else(PoisonError::into_inner) -= nodes;
        Places(nodes)
    }

    /// Waits until no other node runs.
    pub fn all() -> Self {
        Self::wait(PLACES)
    }
}

impl Drop for Places {
    fn drop(&mut self) {
        *FREE_PLACES.lock().unwrap_or_else(PoisonError::into_inner) += self.0;
        PLACE_FREED.notify_all();
    }
}

/// A rack with the folder that it lives in and the right to exist.
pub struct TestRack {
    // Dropped in this order: the rack first.
    pub rack: Rack,
    lists: InUseLists,
    dir: tempfile::TempDir,
    _places: Places,
}

/// The lists of a rack in the folder of blobs, which racks share. They outlive a site: nobody else
/// may remove what they name.
#[derive(Default)]
struct InUseLists {
    site_id: Option<String>,
}

impl Drop for InUseLists {
    fn drop(&mut self) {
        let Some(id) = &self.site_id else { return };
        for suffix in ["", ".volumes"] {
            let _ = fs::remove_file(blobs().join(format!("in-use/rack-a.{id}{suffix}")));
        }
    }
}

thread_local! {
    /// Whether the emulator of the last failed rack of this test was dead.
    static EMULATOR_DIED: Cell<bool> = const { Cell::new(false) };
}

impl Drop for TestRack {
    fn drop(&mut self) {
        let id = fs::read_to_string(self.dir.path().join("lab/state/site-id"));
        self.lists.site_id = id.ok().map(|id| id.trim().to_owned());
        if std::thread::panicking() {
            let verdict = self.rack.emulators();
            let is_dead = verdict.contains("DEAD EMULATOR") && verdict.contains("spins");
            // Only a test with one node, which nobody resets, is retried.
            EMULATOR_DIED.set(is_dead || has_reset_silently(&self.rack.serial(1)));
        }
    }
}

/// True if a node started again, and its kernel neither panicked nor was told to reboot.
fn has_reset_silently(serial: &str) -> bool {
    let mut boots: Vec<&str> = serial.split("Linux version ").skip(1).collect();
    boots.pop();
    boots.iter().any(|boot| !["Kernel panic", "reboot: "].iter().any(|end| boot.contains(end)))
}

#[test]
fn silent_reset_is_told_from_reboot_and_panic() {
    let serial = |end: &str| format!("SeaBIOS\nLinux version 6\n{end}\nSeaBIOS\nLinux version 6\n");
    assert!(has_reset_silently(&serial("login:")));
    assert!(
        !has_reset_silently(&serial("reboot: Restarting system"))
            && !has_reset_silently(&serial("Kernel panic - x"))
    );
    assert!(!has_reset_silently("SeaBIOS\nLinux version 6\nlogin:"));
}

/// Runs a test, and once more if its emulator died: QEMU runs, its processors spin, and the node's
/// kernel answers nothing; or the node starts again without a word of its kernel.
///
/// Linux patches its own text while it runs. QEMU 7.2 loses such a patch if another emulated
/// processor translates the same code meanwhile (fixed in QEMU 8.1). Nodes
/// that run VMs hang in this way at times; nodes of other tests have one CPU. Every other failure
/// ends the test at once.
pub fn retry_dead_emulator(test: impl Fn()) {
    EMULATOR_DIED.set(false);
    let Err(failure) = catch_unwind(AssertUnwindSafe(&test)) else { return };
    if !EMULATOR_DIED.get() {
        resume_unwind(failure);
    }
    eprintln!("the emulator died, see above: the test runs once more");
    test();
}

#[test]
fn dead_emulator_is_retried_once_and_other_failures_never() {
    let runs = |is_dead: bool, failures: u32| {
        let count = Cell::new(0);
        let ended = catch_unwind(AssertUnwindSafe(|| {
            retry_dead_emulator(|| {
                count.set(count.get() + 1);
                EMULATOR_DIED.set(is_dead);
                assert!(count.get() > failures, "this failure is part of the test");
            });
        }));
        (count.get(), ended.is_ok())
    };
    assert_eq!(
        [runs(true, 0), runs(true, 1), runs(true, 2), runs(false, 1)],
        [(1, true), (2, true), (2, false), (1, false)]
    );
}

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A path from the environment, else one in the repository.
pub fn from_env(name: &str, default: &str) -> PathBuf {
    let path = env::var_os(name).map_or_else(|| repository().join(default), PathBuf::from);
    std::path::absolute(path).expect("a path")
}

/// The static agent that nodes can run.
pub fn agent() -> PathBuf {
    let agent = from_env("MESHD_E2E_AGENT", "target/agent/x86_64/mesh-agent");
    assert!(
        agent.is_file(),
        "{} is missing: make build, or name a static agent in MESHD_E2E_AGENT",
        agent.display()
    );
    agent
}

/// The folder of built images.
pub fn blobs() -> PathBuf {
    from_env("MESHD_E2E_BLOBS", ".lab/blobs")
}

/// The committed site with what a test changes; `change` is given the rack's folder.
pub fn up(change: impl FnOnce(Options, &Path) -> Options) -> TestRack {
    up_in(|options| Places::wait(options.nodes), |options, dir| change(one_cpu(options), dir))
}

/// As [`up`], while no other rack runs: its nodes run VMs and have two CPUs, or it uses volumes,
/// which racks share.
pub fn up_alone(change: impl FnOnce(Options, &Path) -> Options) -> TestRack {
    up_in(|_| Places::all(), change)
}

/// As [`up`], for a rack of which one node at a time boots.
pub fn up_one_by_one(change: impl FnOnce(Options, &Path) -> Options) -> TestRack {
    up_in(|_| Places::wait(1), |options, dir| change(one_cpu(options), dir))
}

/// Gives nodes one CPU, which excludes the hang of [`retry_dead_emulator`]. A node of a test without
/// VMs hung while it booted, and both of its CPUs spun.
fn one_cpu(mut options: Options) -> Options {
    options.shape = Shape { cpus: 1, ..options.shape };
    options
}

fn up_in(
    wait: impl FnOnce(&Options) -> Places,
    change: impl FnOnce(Options, &Path) -> Options,
) -> TestRack {
    let dir = tempfile::Builder::new().prefix("meshd-e2e").tempdir().expect("a folder");
    let site = repository().join("site.toml");
    let mut options = Options::new(dir.path().join("lab"), site, env!("CARGO_BIN_EXE_meshd"));
    options.blobs = Some(blobs());
    options = options.set("agent.binary", &agent().display().to_string());
    Rack::prepare(&options, &mut |word| eprintln!("{word}"))
        .unwrap_or_else(|error| panic!("{error}"));
    let options = change(options, dir.path());
    let places = wait(&options);
    let rack = Rack::up(&options, &mut |word| eprintln!("{word}"))
        .unwrap_or_else(|error| panic!("{error}"));
    TestRack { rack, lists: InUseLists::default(), dir, _places: places }
}

/// What the rack says, or the end of the test with what is wrong.
pub trait OrEnd<T> {
    fn or_end(self) -> T;
}

impl<T> OrEnd<T> for Result<T, LabError> {
    #[track_caller]
    fn or_end(self) -> T {
        self.unwrap_or_else(|error| panic!("{error}"))
    }
}

/// Waits until the node at this place is in a phase.
pub fn until_phase(rack: &Rack, place: u8, phase: &str, after: Duration) -> Value {
    rack.wait_node(place, after, phase, |node| node["phase"] == phase).or_end()
}

/// Reboots a node by kexec, and returns its details when it is online again. Its boot has no stage
/// of a firmware or a loader, another kernel started, and the result on record is warm.
pub fn reboot_warm(rack: &Rack, place: u8) -> Value {
    let id = rack.id(place).to_string();
    let details = || rack.query(&["node", "show", &id]).or_end();
    let former = details();
    let starts = kernel_starts(rack, place);
    let ordered = Instant::now();
    rack.run_cli(&["node", "reboot", "--warm", "--yes", &id]).or_end();
    let is_next = |node: &Value| {
        node["phase"] == "online" && node["boot"]["session"] != former["boot"]["session"]
    };
    rack.wait_node(place, BOOT, "online in another boot", is_next).or_end();
    eprintln!("node{place}: online {} s after its warm reboot", ordered.elapsed().as_secs());
    let node = details();
    let result = &node["warm_reboot"];
    assert!(result["operation"].is_string() && result["cold"].is_null(), "not warm: {result}");
    let stages = stages(&node);
    let firmware = ["dhcp", "loader", "ipxe_dhcp"];
    assert!(!firmware.iter().any(|stage| stages.contains(stage)), "by its firmware: {stages:?}");
    assert_eq!(stages.first(), Some(&"script"), "{stages:?}");
    assert_eq!(kernel_starts(rack, place), starts + 1, "one kernel started");
    let [kernel, before] = [&node, &former].map(|it| &it["facts"]["system"]["kernel_boot_id"]);
    assert!(kernel.is_string() && kernel != before, "another kernel: {kernel}");
    node
}

/// Waits until the newest boot of the node at this place has reached a stage.
pub fn until_stage(rack: &Rack, place: u8, stage: &str) -> Value {
    rack.wait_node(place, STAGE, &format!("at stage {stage}"), |node| stages(node).contains(&stage))
        .or_end()
}

/// Waits until a node has written a line with this text to its serial port. The line is whole:
/// tests read values behind the text.
pub fn until_written(rack: &Rack, place: u8, text: &str, after: Duration) -> String {
    rack.wait(after, &format!("`{text}` on the serial port of node{place}"), |rack| {
        let serial = rack.serial(place);
        let is_whole =
            serial.split_inclusive('\n').any(|line| line.ends_with('\n') && line.contains(text));
        Ok(Wait::some(is_whole.then_some(serial), "not written"))
    })
    .or_end()
}

/// The stages of the newest boot, in the order in which they were reached.
pub fn stages(node: &Value) -> Vec<&str> {
    let marks = node["boot"]["stages"].as_array().map(Vec::as_slice).unwrap_or_default();
    marks.iter().filter_map(|mark| mark["stage"].as_str()).collect()
}

/// All events so far, oldest first.
pub fn events(rack: &Rack) -> Vec<Value> {
    let text = rack.run_cli(&["events", "--limit", "10000", "-o", "json"]).or_end();
    text.lines().map(|line| serde_json::from_str(line).expect("one JSON object a line")).collect()
}

/// How many events of this kind speak of the node at this place.
pub fn count(rack: &Rack, place: u8, kind: &str) -> usize {
    let id = rack.id(place).to_string();
    events(rack)
        .iter()
        .filter(|event| event["kind"] == kind && event["node"] == id.as_str())
        .count()
}

/// How often the node's kernel started.
pub fn kernel_starts(rack: &Rack, place: u8) -> usize {
    rack.serial(place).matches("Linux version ").count()
}

/// The command lines that the node's kernel printed.
pub fn command_lines(rack: &Rack, place: u8) -> Vec<String> {
    let serial = rack.serial(place);
    serial
        .lines()
        .filter_map(|line| line.split_once("Command line: "))
        .map(|(_, line)| line.to_owned())
        .collect()
}

/// A command line may name blobs by their digest of 64 digits; 32 digits in a row are a capability,
/// and so is its route.
pub fn has_secret(line: &str) -> bool {
    let runs = line.split(|c: char| !c.is_ascii_hexdigit());
    line.contains("/overlay/") || runs.into_iter().any(|run| run.len() >= 32 && run.len() != 64)
}

#[test]
fn command_line_capability_is_detected_and_digest_is_not() {
    assert!(!has_secret(&format!(
        "initrd=initramfs modloop=http://10.77.0.1:8080/blob/{}/modloop",
        "a".repeat(64)
    )));
    assert!(has_secret("apkovl=http://10.77.0.1:8080/overlay/x"));
    assert!(has_secret(&format!("token={}", "0f".repeat(16))));
}
