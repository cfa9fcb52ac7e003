//! Containers, run by the real agent with the real crun: programs of a squashfs image with busybox.
//!
//! | module | content |
//! | --- | --- |
//! | `mounts` | volumes that replicas mount |

mod mounts;

use super::{
    agent::Machine,
    fake::{Fake, Seen, deadline},
};
use crate::world::program;
use meshd_central::LinkCommand;
use meshd_proto::{
    FromAgent, FromCentral, NodeReport, NodeSpec, SectionReport, SpecEntry,
    container::{
        ContainerDesiredState, ContainerEntry, ContainerFault, ContainerRestart, ContainerUpdate,
        HealthCheck, HealthProbe, PublishedPort, ReplicaId, ReplicaReport, ReplicaSpec,
        ReplicaState,
    },
};
use meshd_types::Digest;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    collections::BTreeMap,
    fs,
    net::TcpListener as StdTcpListener,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::interval,
};

/// Port in the network of the replica.
const PORT: u16 = 80;
const SERVER: &str = "echo serving; exec httpd -f -p 80 -h /srv";

/// A node with an image, and its agent as a process.
struct ContainerNode {
    fake: Fake,
    machine: Machine,
    agent: Option<Child>,
    generation: u64,
    image: Digest,
    image_size: u64,
}

/// A device of the node, as a file of an image or a volume that everybody may read.
const DEVICE: &str = "device c 0666 0 0 1 5";

/// Makes a squashfs of a folder, with a device file.
fn make_squashfs(tree: &Path) -> PathBuf {
    let image = tree.with_extension("squashfs");
    let made = Command::new("mksquashfs")
        .args([tree, &image])
        .args(["-quiet", "-noappend", "-no-progress", "-comp", "zstd", "-p", DEVICE])
        .output()
        .expect("mksquashfs, from `.ci/setup`");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    image
}

/// Writes an image with busybox. Returns its path.
fn write_image(folder: &Path) -> PathBuf {
    let tree = folder.join("tree");
    for name in ["bin", "proc", "srv", "tmp"] {
        fs::create_dir_all(tree.join(name)).expect("made");
    }
    fs::copy("/bin/busybox", tree.join("bin/busybox")).expect("busybox, from `.ci/setup test`");
    for name in ["sh", "cat", "dd", "grep", "httpd", "id", "ls", "mount", "ps", "sleep", "touch"] {
        symlink("busybox", tree.join("bin").join(name)).expect("linked");
    }
    symlink("/proc", tree.join("link")).expect("linked");
    symlink("/", tree.join("all")).expect("linked");
    fs::write(tree.join("srv/hello"), "hello from a container\n").expect("written");
    make_squashfs(&tree)
}

/// Stores a file on the node, as if the agent had fetched it. Returns digest and size.
fn add_volume(machine: &Machine, file: &Path) -> (Digest, u64) {
    let content = fs::read(file).expect("read");
    let digest = Digest::of(&content);
    let images = machine.path("var/lib/machines/container-images");
    fs::create_dir_all(&images).expect("made");
    fs::write(images.join(digest.to_string()), &content).expect("written");
    (digest, content.len() as u64)
}

impl ContainerNode {
    async fn start() -> Self {
        let fake = Fake::start().await;
        let token = fake.mint(Duration::from_secs(900));
        let machine = Machine::new(&fake, &fake.ca_pem, Some(token));
        let files = tempfile::tempdir().expect("a folder");
        let image_file = write_image(files.path());
        let (image, image_size) = add_volume(&machine, &image_file);
        fs::create_dir_all(machine.path("usr/bin")).expect("made");
        symlink("/usr/bin/crun", machine.path("usr/bin/crun")).expect("linked");
        let mut node =
            ContainerNode { fake, machine, agent: None, generation: 0, image, image_size };
        node.start_agent().await;
        node
    }

    /// Starts the agent, and waits for its link.
    async fn start_agent(&mut self) {
        self.fake.forget_seen();
        self.agent = Some(self.machine.spawn(&program(env!("CARGO_BIN_EXE_mesh-agent"))));
        self.fake.wait(|seen| seen.iter().any(|seen| matches!(seen, Seen::Up(_)))).await;
        self.generation = 0;
    }

    fn kill_agent(&mut self) {
        let mut agent = self.agent.take().expect("it runs");
        agent.kill().and_then(|()| agent.wait()).expect("killed");
    }

    fn spec(&self, script: &str) -> ReplicaSpec {
        ReplicaSpec {
            run: 1,
            image: self.image,
            image_size: self.image_size,
            argv: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(),
            env: BTreeMap::from([("PATH".to_owned(), "/bin".to_owned())]),
            working_dir: "/".to_owned(),
            uid: 1000,
            gid: 1000,
            cpu_millis: 1000,
            memory_mib: 64,
            scratch_mib: 4,
            ports: Vec::new(),
            mounts: Vec::new(),
            restart: ContainerRestart::Never,
            health: None,
            stop_seconds: 1,
        }
    }

    async fn order(&mut self, desired_state: ContainerDesiredState) {
        self.generation += 1;
        let entry = SpecEntry::Containers(ContainerEntry { replica: replica(), desired_state });
        let spec = NodeSpec { generation: self.generation, entry };
        self.fake.command(LinkCommand::Send(FromCentral::Spec(spec))).await;
    }

    async fn run(&mut self, spec: ReplicaSpec) {
        self.order(ContainerDesiredState::Run(Box::new(spec))).await;
    }

    /// Waits for a report after the last order.
    async fn reports(&self, wanted: impl Fn(&ReplicaReport) -> bool) -> ReplicaReport {
        let found = |seen: &[Seen]| -> Option<ReplicaReport> {
            let Seen::Message(FromAgent::Report(NodeReport { observed, state })) = seen
                .iter()
                .rev()
                .find(|seen| matches!(seen, Seen::Message(FromAgent::Report(report)) if matches!(report.state, SectionReport::Containers(ContainerUpdate::All { .. }))))?
            else {
                return None;
            };
            let SectionReport::Containers(ContainerUpdate::All { replicas }) = state else {
                return None;
            };
            let report = replicas.iter().find(|report| report.replica == replica())?;
            (*observed == self.generation && wanted(report)).then(|| report.clone())
        };
        self.fake.wait(|seen| found(seen).is_some()).await;
        found(&self.fake.seen()).expect("seen")
    }

    async fn reports_state(&self, state: ReplicaState) -> ReplicaReport {
        self.reports(|report| report.state == state).await
    }

    /// Removes the replica, and checks that nothing is left of it.
    async fn remove(&mut self) {
        self.order(ContainerDesiredState::Gone).await;
        let released = ContainerUpdate::Released { replica: replica() };
        let is_released = |seen: &Seen| matches!(seen, Seen::Message(FromAgent::Report(report)) if report.state == SectionReport::Containers(released.clone()));
        self.fake.wait(|seen| seen.iter().any(is_released)).await;
        assert!(!self.file("").exists(), "files");
        assert_eq!(names(&self.machine.path("run/meshd-containers/runtime")), [""; 0], "runtime");
        let group = self.cgroup();
        assert!(!group.exists(), "control groups: {}", group.display());
        // The kernel frees the device after the last process.
        deadline(async {
            let mut looks = interval(Duration::from_millis(20));
            while has_loop_device(&self.image) {
                looks.tick().await;
            }
        })
        .await;
        let mounts = fs::read_to_string("/proc/self/mounts").expect("readable");
        assert!(!mounts.contains("meshd-container"), "{mounts}");
    }

    /// The control group of the replica.
    fn cgroup(&self) -> PathBuf {
        let folder = self.machine.path("run/meshd-containers");
        let digest = Digest::of(folder.as_os_str().as_encoded_bytes()).to_string();
        let mounts = fs::read_to_string("/proc/self/mounts").expect("readable");
        let root = mounts
            .lines()
            .find_map(|line| line.split(' ').nth(1).filter(|_| line.contains(" cgroup2 rw")))
            .expect("control groups");
        Path::new(root).join(format!("meshd-containers-{}/{}", &digest[..12], replica()))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.machine.path("run/meshd-containers/web.0").join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.file("log")).unwrap_or_default()
    }

    /// Waits until the log is this: a program that runs may not have written yet.
    async fn log_is(&self, wanted: &str) {
        deadline(async {
            let mut looks = interval(Duration::from_millis(20));
            while self.log() != wanted {
                looks.tick().await;
            }
        })
        .await;
    }

    /// Process ID of the program.
    fn pid(&self) -> i32 {
        fs::read_to_string(self.file("pid")).expect("there").trim().parse().expect("a number")
    }
}

impl Drop for ContainerNode {
    fn drop(&mut self) {
        // A failed test leaves no program. The supervisor ends with its group.
        let _ = fs::write(self.cgroup().join("cgroup.kill"), "1");
        if let Some(mut agent) = self.agent.take() {
            let _ = agent.kill().and_then(|()| agent.wait());
        }
    }
}

fn replica() -> ReplicaId {
    "web.0".parse().expect("a replica")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn has_loop_device(image: &Digest) -> bool {
    let image = image.to_string();
    names(Path::new("/sys/block")).iter().filter(|name| name.starts_with("loop")).any(|name| {
        let file = Path::new("/sys/block").join(name).join("loop/backing_file");
        fs::read_to_string(file).is_ok_and(|backing| backing.contains(&image))
    })
}

/// A port of the node that nobody has.
fn free_port() -> u16 {
    let listener = StdTcpListener::bind("0.0.0.0:0").expect("a free port");
    listener.local_addr().expect("bound").port()
}

/// Requests a file until it is answered.
async fn get(port: u16, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.0\r\n\r\n");
    deadline(async {
        let mut attempts = interval(Duration::from_millis(20));
        loop {
            attempts.tick().await;
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
            let mut answer = String::new();
            if stream.write_all(request.as_bytes()).await.is_ok()
                && stream.read_to_string(&mut answer).await.is_ok_and(|length| length > 0)
            {
                return answer;
            }
        }
    })
    .await
}

fn with_port(spec: ReplicaSpec, node: u16) -> ReplicaSpec {
    ReplicaSpec { ports: vec![PublishedPort { node, container: PORT }], ..spec }
}

fn health(probe: HealthProbe) -> Option<HealthCheck> {
    Some(HealthCheck {
        probe,
        interval_seconds: 1,
        timeout_seconds: 60,
        failures: 1,
        start_seconds: 0,
    })
}

#[tokio::test]
async fn replica_serves_its_port_without_agent_and_leaves_nothing() {
    let mut node = ContainerNode::start().await;
    let runtime = |seen: &Seen| matches!(seen, Seen::Up(hello) if hello.facts.container_runtime.as_deref().is_some_and(|text| text.starts_with("crun ")));
    assert!(node.fake.seen().iter().any(runtime), "the hello names the runtime");
    let port = free_port();
    let spec = with_port(node.spec(SERVER), port);
    let probe = HealthProbe::Http { port: PORT, path: "/hello".to_owned() };
    node.run(ReplicaSpec { health: health(probe), ..spec.clone() }).await;
    let healthy = ReplicaState::Running { healthy: Some(true) };
    node.reports_state(healthy.clone()).await;
    assert!(get(port, "/hello").await.contains("hello from a container"));
    node.log_is("serving\n").await;

    let pid = node.pid();
    node.kill_agent();
    assert!(get(port, "/hello").await.contains("hello from a container"), "no agent runs");
    node.start_agent().await;
    let report = node.reports_state(healthy).await;
    assert_eq!((report.run, report.restarts, node.pid()), (1, 0, pid), "taken over");

    // A later start replaces it.
    node.run(ReplicaSpec { run: 2, ..spec }).await;
    let report = node.reports(|report| report.run == 2 && report.state == RUNNING).await;
    assert_eq!(report.restarts, 0);
    assert_ne!(node.pid(), pid);
    assert!(get(port, "/hello").await.contains("hello from a container"));
    node.remove().await;
    assert!(TcpStream::connect(("127.0.0.1", port)).await.is_err(), "nobody listens");
}

const RUNNING: ReplicaState = ReplicaState::Running { healthy: None };

#[tokio::test]
async fn program_of_a_replica_is_confined() {
    let mut node = ContainerNode::start().await;
    let script = "id; grep -E 'Cap(Eff|Bnd)|NoNewPrivs|Seccomp:' /proc/self/status; ls /proc/1/fd; \
                  mount -t tmpfs x /tmp && echo mounted; ps | grep -c .; ls /sys/class/net; \
                  dd if=/dev/zero of=/dev/shm/big bs=1M count=64 2>/dev/null || echo full; \
                  touch /srv/x || echo read-only; cat /proc/kcore | grep -c x; exit 7";
    for (run, uid) in [(1, 1000), (2, 0)] {
        let spec = node.spec(script);
        node.run(ReplicaSpec { run, uid, gid: uid, ..spec }).await;
        let exited = ReplicaState::Exited { code: 7 };
        node.reports(|report| report.run == run && report.state == exited).await;
    }
    let log = node.log();
    let lines: Vec<&str> = log.lines().collect();
    for line in ["uid=1000 gid=1000", "CapEff:\t0000000000000000", "CapBnd:\t0000000000000000"] {
        assert!(lines.contains(&line), "{line}: {log}");
    }
    assert!(lines.contains(&"uid=0 gid=0"), "{log}");
    for line in ["CapEff:\t00000000000004eb", "CapBnd:\t00000000000004eb", "NoNewPrivs:\t1"] {
        assert!(lines.contains(&line), "{line}: {log}");
    }
    assert!(lines.contains(&"Seccomp:\t2") && lines.contains(&"full"), "{log}");
    assert!(lines.contains(&"lo") && !lines.contains(&"eth0"), "{log}");
    assert!(!lines.contains(&"mounted"), "{log}");
    node.remove().await;
}

#[tokio::test]
async fn program_that_ends_without_agent_is_restarted_by_its_policy() {
    let mut node = ContainerNode::start().await;
    let spec = node.spec("echo begins; exec sleep 1000");
    node.run(ReplicaSpec { restart: ContainerRestart::Always, ..spec.clone() }).await;
    node.reports_state(RUNNING).await;
    node.log_is("begins\n").await;
    node.kill_agent();
    let program = node.cgroup().join("program/cgroup.kill");
    fs::write(program, "1").expect("killed");
    deadline(async {
        let mut looks = interval(Duration::from_millis(20));
        while !node.file("end.json").exists() {
            looks.tick().await;
        }
    })
    .await;
    let end = fs::read_to_string(node.file("end.json")).expect("there");
    assert!(end.contains("\"code\":137"), "{end}");
    node.start_agent().await;
    node.reports(|report| report.restarts == 1 && report.state == RUNNING).await;
    node.log_is("begins\nbegins\n").await;

    // A stopped one keeps its log. Its program does not obey SIGTERM: it is the first process.
    node.order(ContainerDesiredState::Stopped).await;
    node.reports_state(ReplicaState::Exited { code: 137 }).await;
    assert_eq!(node.log(), "begins\nbegins\n");
    node.remove().await;
}

#[tokio::test]
async fn replica_whose_supervisor_was_killed_runs_again() {
    let mut node = ContainerNode::start().await;
    let spec = node.spec("echo begins; exec sleep 1000");
    node.run(ReplicaSpec { restart: ContainerRestart::Always, ..spec }).await;
    node.reports_state(RUNNING).await;
    let processes = node.cgroup().join("supervisor/cgroup.procs");
    for process in fs::read_to_string(processes).expect("there").lines() {
        let process = process.parse().ok().and_then(Pid::from_raw).expect("a process");
        kill_process(process, Signal::KILL).expect("killed");
    }
    node.reports(|report| report.restarts == 1 && report.state == RUNNING).await;
    node.remove().await;
}

/// Changes a specification; the second value is a TCP port that is in use.
type Change = fn(ReplicaSpec, u16) -> ReplicaSpec;

#[tokio::test]
async fn replica_that_cannot_start_reports_its_fault() {
    let mut node = ContainerNode::start().await;
    let taken = StdTcpListener::bind("0.0.0.0:0").expect("a free port");
    let port = taken.local_addr().expect("bound").port();
    let missing: Change = |spec, _| ReplicaSpec { argv: vec!["/bin/missing".to_owned()], ..spec };
    // The first user of VMs.
    let of_vm: Change = |spec, _| ReplicaSpec { uid: 0x7140_0000, ..spec };
    for (run, change, expected) in [
        (1, missing, ContainerFault::ProgramMissing),
        (2, with_port as Change, ContainerFault::PortInUse),
        (3, of_vm, ContainerFault::Prepare),
    ] {
        let spec = node.spec("sleep 1000");
        node.run(ReplicaSpec { run, ..change(spec, port) }).await;
        node.reports(|report| {
            report.run == run
                && matches!(&report.state, ReplicaState::Failed { kind, detail }
                    if *kind == expected && !detail.is_empty())
        })
        .await;
    }
    node.remove().await;
}

#[tokio::test]
async fn unhealthy_replica_is_restarted() {
    let mut node = ContainerNode::start().await;
    let argv = ["/bin/sh", "-c", "! grep -q second /tmp/starts"].map(str::to_owned).to_vec();
    let spec = node.spec("exec sleep 1000");
    let spec = ReplicaSpec { restart: ContainerRestart::Always, ..spec };
    // The file exists nowhere: `grep` fails, so the check succeeds.
    node.run(ReplicaSpec { health: health(HealthProbe::Exec { argv }), ..spec.clone() }).await;
    node.reports_state(ReplicaState::Running { healthy: Some(true) }).await;
    let probe = HealthProbe::Tcp { port: PORT };
    node.run(ReplicaSpec { run: 2, health: health(probe), ..spec }).await;
    node.reports(|report| report.run == 2 && report.restarts > 0).await;
    node.remove().await;
}
