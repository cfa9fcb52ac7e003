//! Two machines in namespaces of their own, each with the real agent, behind one switch; and a program of MPI for them.

use crate::world::{World, eventually};
use meshd::lab::Namespace;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// Jobs of all agents on this machine have the same user: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub struct Rig {
    // Dropped in this order: agents before what they run in.
    pub machines: Vec<Machine>,
    pub world: World,
    files: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

pub struct Machine {
    pub id: String,
    folder: PathBuf,
    namespace: Namespace,
    agent: Option<Child>,
}

/// A folder that every user may pass.
fn open_folder() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

impl Rig {
    /// Two nodes of group `pair`, online.
    pub fn new() -> Self {
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let files = open_folder();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/jobs/program.c");
        let compiled =
            Command::new("mpicc").arg("-O1").arg("-o").arg(files.path().join("program")).arg(source).output();
        let compiled = compiled.expect("mpicc, from `.ci/setup test`");
        assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
        let mut world = World::prepared("approve");
        let switch = |args: &[&str]| world.nodes.ip(args).unwrap();
        switch(&["link", "add", "switch", "type", "bridge"]);
        switch(&["link", "set", "switch", "up"]);
        switch(&["link", "set", "eth0", "master", "switch"]);
        let machines: Vec<Machine> = (1..=2).map(|number| Machine::new(&world, files.path(), number)).collect();
        let site = fs::read_to_string(&world.site).unwrap();
        let group = format!("[groups.pair]\nnodes = [\"{}\", \"{}\"]\n", machines[0].id, machines[1].id);
        fs::write(&world.site, site + &group).unwrap();
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
        self.machines[number].start();
    }

    /// kill -9 of the agent alone.
    pub fn kill_agent(&mut self, number: usize) {
        let mut agent = self.machines[number].agent.take().expect("it runs");
        agent.kill().unwrap();
        agent.wait().unwrap();
    }

    pub fn until_phase(&self, number: usize, phase: &str) {
        let id = &self.machines[number].id;
        eventually(&format!("{id} is {phase}"), || {
            let nodes = self.world.json(&["node", "list", "-o", "json"]);
            let node = nodes.as_array().unwrap().iter().find(|node| node["id"] == id.as_str()).cloned();
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

    /// Runs a task to its end: exit code, what it wrote, what it complained of.
    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.world.meshd(&[&["task", "run", "--group", "pair"], args].concat());
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    /// Begins a task; its ID.
    pub fn begin(&self, args: &[&str]) -> String {
        let (code, id, said) = self.run(&[&["--detach"], args].concat());
        assert_eq!(code, 0, "{said}");
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
            if logs.matches(text).count() == times { Ok(()) } else { Err(format!("{logs}\n{}", self.task(id))) }
        });
    }

    pub fn until_state(&self, id: &str, state: &str) -> Value {
        eventually(&format!("the task is {state}"), || {
            let task = self.task(id);
            if task["state"] == state { Ok(task) } else { Err(format!("{task}\n{}", self.machines[0].log())) }
        })
    }

    /// Processes of the program, whoever runs them now.
    pub fn ranks(&self) -> usize {
        let program = self.program();
        let entries = fs::read_dir("/proc").unwrap().flatten();
        entries
            .filter(|entry| fs::read_link(entry.path().join("exe")).is_ok_and(|exe| exe == Path::new(&program)))
            .count()
    }

    /// Nothing of any task is left on any machine.
    pub fn is_clean(&self) {
        assert_eq!(self.ranks(), 0);
        for machine in &self.machines {
            let left = |folder: &Path| fs::read_dir(folder).map_or(0, |entries| entries.count());
            assert_eq!(left(&machine.folder.join("jobs")), 0, "{}", machine.id);
            let group = format!("meshd-{}", machine.id);
            for root in ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"] {
                assert!(!Path::new(root).join(&group).exists(), "{group}");
            }
        }
        let shared = fs::read_dir("/dev/shm").unwrap().flatten().filter(|file| {
            use std::os::unix::fs::MetadataExt as _;
            file.metadata().is_ok_and(|file| file.uid() == meshd::wire::job::JOB_UID)
        });
        assert_eq!(shared.count(), 0, "shared memory");
    }
}

impl Machine {
    fn new(world: &World, files: &Path, number: u8) -> Self {
        let namespace = world.nodes.beside(&format!("m{number}"));
        namespace.create().unwrap();
        let port = format!("port{number}");
        world
            .nodes
            .ip(&["link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", namespace.name()])
            .unwrap();
        world.nodes.ip(&["link", "set", &port, "up", "master", "switch"]).unwrap();
        namespace.ip(&["address", "add", &format!("10.77.0.5{number}/24"), "dev", "eth0"]).unwrap();
        namespace.ip(&["link", "set", "eth0", "up"]).unwrap();
        let id = world.meshd(&["id", "--uuid", &uuid(number)]);
        let id = String::from_utf8(id.stdout).unwrap().lines().next().unwrap().to_owned();
        let folder = files.join(format!("machine{number}"));
        fs::create_dir_all(folder.join("root")).unwrap();
        Machine { id, folder, namespace, agent: None }
    }

    fn join(&self, world: &World) {
        let number = self.folder.to_str().unwrap().chars().last().unwrap().to_digit(10).unwrap();
        let ticket = self.folder.join("ticket");
        let uuid = uuid(u8::try_from(number).unwrap());
        let made = world.meshd(&["token", "create", "--uuid", &uuid, "--out", ticket.to_str().unwrap()]);
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }

    fn start(&mut self) {
        let log = fs::OpenOptions::new().create(true).append(true).open(self.folder.join("log")).unwrap();
        let place = |name: &str| self.folder.join(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_mesh-agent"));
        command.arg("run").arg("--token-file").arg(place("ticket")).arg("--state-dir").arg(place("state"));
        command.arg("--jobs-dir").arg(place("jobs")).arg("--root").arg(place("root")).args(["--reboot", "/bin/true"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.agent = Some(self.namespace.spawn(&mut command).unwrap());
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.join("log")).unwrap_or_default()
    }
}

fn uuid(number: u8) -> String {
    format!("4c010203-0405-0607-0809-0a0b0c0d0e0{number}")
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the agent of {}\n{}", self.id, self.log());
        }
        // It kills its jobs when it is asked to end.
        if let Some(mut agent) = self.agent.take() {
            let _ = kill_process(Pid::from_child(&agent), Signal::TERM);
            let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
            while matches!(agent.try_wait(), Ok(None)) && std::time::Instant::now() < end {
                std::thread::park_timeout(std::time::Duration::from_millis(20));
            }
            let _ = agent.kill();
            let _ = agent.wait();
        }
        let _ = self.namespace.delete();
    }
}
