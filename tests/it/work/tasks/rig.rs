//! Two machines in namespaces of their own, each with the real agent, behind one switch; and a
//! program of MPI for them.

use crate::world::{World, eventually, program};
use meshd_agent::system::user_ids;
use meshd_lab::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

/// Tasks of all agents on this machine have the same user: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// How often a task is tried whose time ended it. MPICH 4.0.2 with UCX 1.13 over TCP hangs in
/// MPI_Finalize now and then on a busy machine, without meshd as well (one run in seven beside a
/// build): a rank that has closed waits in PMI's barrier and reads no more, another wants its word
/// to close. No setting of UCX that was tried spares it. Such a run ends by its time, leaves
/// nothing, and is made again.
const ATTEMPTS: u8 = 5;

/// How shared memory is named that a test leaves.
pub const LEFT: &str = "meshd-test-left";

pub struct Rig {
    // Dropped in this order: agents before what they run in.
    pub machines: Vec<Machine>,
    pub world: World,
    files: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

pub struct Machine {
    pub id: String,
    uuid: String,
    folder: PathBuf,
    namespace: Namespace,
    agent: Option<Child>,
}

/// A folder that every user may pass.
fn open_folder() -> tempfile::TempDir {
    // Not below /tmp: a task has one of its own.
    let dir = tempfile::tempdir_in("/var/lib").unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

impl Rig {
    /// Two nodes of group `pair`, online.
    pub fn new() -> Self {
        Self::of(World::prepared("approve"))
    }

    /// Two nodes of group `pair` on this site, online.
    pub fn of(mut world: World) -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let files = open_folder();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/work/tasks/program.c");
        let compiled = Command::new("mpicc")
            .arg("-O1")
            .arg("-o")
            .arg(files.path().join("program"))
            .arg(source)
            .output();
        let compiled = compiled.expect("mpicc, from `.ci/setup test`");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let switch = |args: &[&str]| world.nodes.ip(args).unwrap();
        switch(&["link", "add", "switch", "type", "bridge"]);
        switch(&["link", "set", "switch", "up"]);
        switch(&["link", "set", "eth0", "master", "switch"]);
        let mut known = [fresh_uuid(), fresh_uuid()].map(|uuid| (node_id(&world, &uuid), uuid));
        // As a task has its nodes: the first one is the head.
        known.sort();
        let machines = known
            .into_iter()
            .zip(1..)
            .map(|(known, number)| Machine::new(&world, files.path(), number, known));
        let machines: Vec<Machine> = machines.collect();
        let site = fs::read_to_string(&world.site).unwrap();
        let group =
            format!("[groups.pair]\nnodes = [\"{}\", \"{}\"]\n", machines[0].id, machines[1].id);
        fs::write(&world.site, site + group.as_str()).unwrap();
        world.start();
        let mut rig = Rig { machines, world, files, _turn: turn };
        for number in 0..2 {
            rig.machines[number].join(&rig.world);
            rig.start_agent(number);
        }
        (0..2).for_each(|number| rig.until_phase(number, "online"));
        rig
    }

    pub fn start_agent(&mut self, number: usize) {
        self.machines[number].start(&[]);
    }

    /// Replaces an agent by one that this program starts, which sets something.
    pub fn restart_agent_by(&mut self, number: usize, by: &[&str]) {
        self.kill_agent(number);
        self.machines[number].start(by);
    }

    /// kill -9 of the agent alone.
    pub fn kill_agent(&mut self, number: usize) {
        let mut agent = self.machines[number].agent.take().expect("it runs");
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    /// One machine is not reached by another one.
    pub fn hide(&self, hidden: usize, from: usize) {
        let address = format!("10.77.0.5{}/32", hidden + 1);
        self.machines[from].namespace.ip(&["route", "add", "prohibit", &address]).unwrap();
    }

    pub fn until_phase(&self, number: usize, phase: &str) {
        let id = &self.machines[number].id;
        eventually(&format!("{id} is {phase}"), || {
            let nodes = self.world.json(&["node", "list", "-o", "json"]);
            let node =
                nodes.as_array().unwrap().iter().find(|node| node["id"] == id.as_str()).cloned();
            match node {
                Some(node) if node["phase"] == phase => Ok(()),
                node => Err(format!("{node:?}\n{}", self.machines[number].log())),
            }
        });
    }

    pub fn program(&self) -> String {
        self.files.path().join("program").display().to_string()
    }

    pub fn file(&self, name: &str) -> String {
        self.files.path().join(name).display().to_string()
    }

    /// Runs a task to its end, which comes: exit code, what it wrote, what it complained of.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        if args.contains(&"--timeout") {
            return self.run_once(args);
        }
        let bounded = [&["--timeout", "30s"], args].concat();
        for _ in 1..ATTEMPTS {
            let ended = self.run_once(&bounded);
            if !ended.2.contains("time_limit") {
                return ended;
            }
            self.is_clean();
        }
        self.run_once(&bounded)
    }

    /// Does this with a task until it is not ended by its time.
    pub fn unless_hung(
        &mut self,
        mut attempt: impl FnMut(&mut Self, u8) -> (String, Value),
    ) -> (String, Value) {
        for number in 1..ATTEMPTS {
            let (id, task) = attempt(self, number);
            if task["cause"] != "time_limit" {
                return (id, task);
            }
            self.is_clean();
        }
        attempt(self, ATTEMPTS)
    }

    fn run_once(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.world.meshd(&[&["task", "run", "--group", "pair"], args].concat());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Begins a task, which its time ends if it hangs; its ID.
    pub fn begin(&self, args: &[&str]) -> String {
        let bound = if args.contains(&"--timeout") { &[][..] } else { &["--timeout", "20m"] };
        let (code, id, command_output) = self.run_once(&[&["--detach"], bound, args].concat());
        assert_eq!(code, 0, "{command_output}");
        id.trim().to_owned()
    }

    pub fn task(&self, id: &str) -> Value {
        self.world.json(&["task", "show", id, "-o", "json"])
    }

    pub fn logs(&self, id: &str) -> String {
        let output = self.world.meshd(&["task", "logs", id]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Waits until a task has written something so often.
    pub fn until_written(&self, id: &str, text: &str, times: usize) {
        eventually(&format!("{times} times `{text}`"), || {
            let logs = self.logs(id);
            if logs.matches(text).count() == times {
                Ok(())
            } else {
                Err(format!("{logs}\n{}", self.task(id)))
            }
        });
    }

    pub fn until_state(&self, id: &str, state: &str) -> Value {
        eventually(&format!("the task is {state}"), || {
            let task = self.task(id);
            if task["state"] == state {
                Ok(task)
            } else {
                Err(format!("{task}\n{}", self.machines[0].log()))
            }
        })
    }

    /// Waits until a task has ended, however it did. Ended by its time, its ranks ran until then:
    /// an end that is not told is another fault.
    pub fn until_ended(&self, id: &str) -> Value {
        let mut ranks = 0;
        let task = eventually("the task has ended", || {
            let task = self.task(id);
            if ["succeeded", "failed", "cancelled", "timed_out"]
                .iter()
                .any(|state| task["state"] == *state)
            {
                return Ok(task);
            }
            if task["state"] == "running" {
                ranks = self.ranks();
            }
            Err(format!("{task}\n{}", self.machines[0].log()))
        });
        assert!(task["cause"] != "time_limit" || ranks > 0, "its end was lost: {task}");
        task
    }

    /// Processes of the program, whoever runs them now.
    pub fn ranks(&self) -> usize {
        let program = self.program();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|entry| {
                fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == Path::new(&program))
            })
            .count()
    }

    /// Processes with this command line.
    pub fn running(&self, argv: &[&str]) -> usize {
        let line: String = argv.iter().map(|arg| format!("{arg}\0")).collect();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|entry| {
                fs::read(entry.path().join("cmdline")).is_ok_and(|own| own == line.as_bytes())
            })
            .count()
    }

    /// Nothing of any task is left on any machine.
    pub fn is_clean(&self) {
        assert_eq!(self.ranks(), 0);
        for machine in &self.machines {
            let left = |folder: &Path| fs::read_dir(folder).map_or(0, |entries| entries.count());
            assert_eq!(left(&machine.folder.join("tasks")), 0, "{}", machine.id);
            // The agent removes a group after it has told the end.
            for group in groups_of(&machine.id) {
                eventually("the control group is removed", || {
                    if group.exists() { Err(group.display().to_string()) } else { Ok(()) }
                });
            }
        }
        let shared = fs::read_dir("/dev/shm").unwrap().flatten().filter(|file| {
            use std::os::unix::fs::MetadataExt as _;
            let ours = file.file_name().to_string_lossy().starts_with(LEFT);
            ours || file.metadata().is_ok_and(|file| user_ids::TASKS.contains(&file.uid()))
        });
        assert_eq!(shared.count(), 0, "shared memory");
    }
}

impl Machine {
    fn new(world: &World, files: &Path, number: u8, (id, uuid): (String, String)) -> Self {
        let namespace = world.nodes.derived(&format!("m{number}"));
        namespace.create().unwrap();
        let port = format!("port{number}");
        world
            .nodes
            .ip(&[
                "link",
                "add",
                &port,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                namespace.name(),
            ])
            .unwrap();
        world.nodes.ip(&["link", "set", &port, "up", "master", "switch"]).unwrap();
        namespace.ip(&["address", "add", &format!("10.77.0.5{number}/24"), "dev", "eth0"]).unwrap();
        namespace.ip(&["link", "set", "eth0", "up"]).unwrap();
        let folder = files.join(format!("machine{number}"));
        fs::create_dir_all(folder.join("root")).unwrap();
        Machine { id, uuid, folder, namespace, agent: None }
    }

    fn join(&self, world: &World) {
        let ticket = self.folder.join("ticket");
        let made = world.meshd(&[
            "token",
            "create",
            "--uuid",
            &self.uuid,
            "--out",
            ticket.to_str().unwrap(),
        ]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    fn start(&mut self, by: &[&str]) {
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).unwrap();
        let place = |name: &str| self.folder.join(name);
        let mut command = Command::new("env");
        command.args(by).arg(program(env!("CARGO_BIN_EXE_mesh-agent")));
        command
            .arg("run")
            .arg("--token-file")
            .arg(place("ticket"))
            .arg("--state-dir")
            .arg(place("state"));
        command
            .arg("--tasks-dir")
            .arg(place("tasks"))
            .arg("--root")
            .arg(place("root"))
            .args(["--reboot", "/bin/true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(self.namespace.spawn(&mut command).unwrap());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

/// No other test has this machine: an agent ends what is left of the tasks of its node, on this
/// machine by the node's ID.
fn fresh_uuid() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let run = std::process::id();
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    format!("6a6f6273-0405-0607-0809-{:04x}{run:08x}", made % 0x10000)
}

fn node_id(world: &World, uuid: &str) -> String {
    let command_output = world.meshd(&["id", "--uuid", uuid]);
    String::from_utf8(command_output.stdout).unwrap().lines().next().unwrap().to_owned()
}

/// Control groups of the tasks of a node, wherever the system has them.
fn groups_of(id: &str) -> impl Iterator<Item = PathBuf> {
    let group = format!("meshd-{id}");
    ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"]
        .into_iter()
        .map(move |root| Path::new(root).join(&group))
}

/// What an agent that a test has killed could not end.
fn end_what_is_left(id: &str) {
    for group in groups_of(id).filter(|group| group.exists()) {
        let _ = fs::write(group.join("cgroup.kill"), "1");
        let end = Instant::now() + Duration::from_secs(10);
        let emptied = || {
            fs::read_to_string(group.join("cgroup.events"))
                .is_ok_and(|events| events.contains("populated 0"))
        };
        while !emptied() && Instant::now() < end {
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let tasks = fs::read_dir(&group)
            .into_iter()
            .flatten()
            .flatten()
            .filter(|entry| entry.path().is_dir());
        tasks.for_each(|task| drop(fs::remove_dir(task.path())));
        let _ = fs::remove_dir(&group);
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the agent of {}\n{}", self.id, self.log());
        }
        // It kills its tasks when it is asked to end.
        if let Some(mut agent) = self.agent.take() {
            let _ = kill_process(Pid::from_child(&agent), Signal::TERM);
            let end = Instant::now() + Duration::from_secs(20);
            while matches!(agent.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::park_timeout(Duration::from_millis(20));
            }
            let _ = agent.kill();
            let _ = agent.wait();
        }
        end_what_is_left(&self.id);
        unmount_all_below(&self.folder);
        let _ = self.namespace.delete();
    }
}

/// Removes the folders of tasks that ended with their agent: the next agent would do it.
fn unmount_all_below(folder: &Path) {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let places = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for place in places.filter(|place| Path::new(place).starts_with(folder)) {
        let _ = Command::new("umount").arg(place).status();
    }
}
