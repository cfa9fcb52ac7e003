//! The agent itself, as it runs on a node, against the made-up central node.

use super::fake::{Fake, NODE, Seen, deadline};
use meshd_agent::link_driver::{self, Options, RunError};
use meshd_central::LinkCommand;
use meshd_proto::{
    ActionId, ActionOrder, ActionOutcome, AgentConfig, BootPart, FromAgent, FromCentral, NodeAction,
};
use meshd_types::{BootSessionId, NodeId, Secret, Timestamp};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};
use tokio::{net::TcpListener, task::JoinHandle};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

/// A node's file system, and its agent.
pub(super) struct Machine {
    root: tempfile::TempDir,
    running: Option<(CancellationToken, JoinHandle<Result<(), RunError>>)>,
}

impl Machine {
    /// What an overlay brings.
    pub(super) fn new(fake: &Fake, ca_pem: &str, token: Option<String>) -> Self {
        let machine = Machine { root: tempfile::tempdir().expect("a folder"), running: None };
        fs::create_dir_all(machine.path("etc/meshd")).expect("made");
        fs::write(machine.path("etc/meshd/ca.pem"), ca_pem).expect("written");
        let node: NodeId = NODE.parse().expect("a node ID");
        let std::net::SocketAddr::V4(address) = fake.address else { panic!("IPv4") };
        let config = AgentConfig {
            version: 1,
            node,
            central: *address.ip(),
            port: address.port(),
            ca_file: "/etc/meshd/ca.pem".into(),
            heartbeat_s: 1,
            profile: "discovery".into(),
            services: Vec::new(),
            units: Vec::new(),
            checks: Default::default(),
            vfio: Vec::new(),
            data_disks: Vec::new(),
            kvm: false,
        };
        let boot = BootPart {
            version: 1,
            node,
            session: BootSessionId([1; 12]),
            generation: "abc".into(),
            issued_at: Timestamp::from_millis(0),
            roots_pem: None,
            http_port: 8080,
            token: token.map(Secret::new),
        };
        fs::write(
            machine.path("etc/meshd/agent.json"),
            serde_json::to_string(&config).expect("plain"),
        )
        .expect("written");
        fs::write(
            machine.path("etc/meshd/boot.json"),
            serde_json::to_string(&boot).expect("plain"),
        )
        .expect("written");
        machine
    }

    pub(super) fn path(&self, path: &str) -> PathBuf {
        self.root.path().join(path)
    }

    /// Sends the agent to another port.
    fn dials(&self, port: u16) {
        let file = self.path("etc/meshd/agent.json");
        let mut config: AgentConfig =
            serde_json::from_slice(&fs::read(&file).expect("there")).expect("JSON");
        config.port = port;
        fs::write(&file, serde_json::to_string(&config).expect("plain")).expect("written");
    }

    pub(super) fn start(&mut self) {
        let options = Options {
            config: self.path("etc/meshd/agent.json"),
            boot_file: self.path("etc/meshd/boot.json"),
            token_file: None,
            state_dir: self.path("run/meshd"),
            tasks_dir: self.path("run/meshd-tasks"),
            containers_dir: self.path("run/meshd-containers"),
            root: self.root.path().to_owned(),
            vm_dir: self.path("var/lib/machines"),
            reboot: vec!["/bin/touch".into(), self.path("rebooted").display().to_string()],
        };
        let shutdown = CancellationToken::new();
        self.running = Some((shutdown.clone(), tokio::spawn(link_driver::run(options, shutdown))));
    }

    /// Starts the agent as a process, which has the hidden verbs of its program.
    pub(super) fn spawn(&self, program: &Path) -> Child {
        let log = File::options().create(true).append(true).open(self.path("log")).expect("a log");
        let mut command = Command::new(program);
        command.arg("run");
        for (option, path) in [
            ("--config", "etc/meshd/agent.json"),
            ("--boot-file", "etc/meshd/boot.json"),
            ("--state-dir", "run/meshd"),
            ("--tasks-dir", "run/meshd-tasks"),
            ("--containers-dir", "run/meshd-containers"),
            ("--vm-dir", "var/lib/machines"),
            ("--root", ""),
        ] {
            command.arg(option).arg(self.path(path));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        command.spawn().expect("mesh-agent runs")
    }

    pub(super) async fn stop(&mut self) {
        let Some((shutdown, running)) = self.running.take() else { return };
        shutdown.cancel();
        deadline(running).await.expect("no panic").expect("it ran");
    }

    fn boot_file(&self) -> String {
        fs::read_to_string(self.path("etc/meshd/boot.json")).expect("there")
    }

    /// Waits for a file; the agent's own end is the only other sign of what it did.
    async fn has(&self, path: &str) {
        deadline(async {
            let mut looks = tokio::time::interval(Duration::from_millis(10));
            while !self.path(path).exists() {
                looks.tick().await;
            }
        })
        .await;
    }
}

fn is_up(seen: &Seen) -> bool {
    matches!(seen, Seen::Up(_))
}

fn heartbeats(seen: &[Seen]) -> usize {
    seen.iter().filter(|seen| matches!(seen, Seen::Message(FromAgent::Heartbeat(_)))).count()
}

fn outcome(seen: &[Seen], wanted: u64) -> Option<ActionOutcome> {
    seen.iter().find_map(|seen| match seen {
        Seen::Message(FromAgent::ActionDone { id: ActionId(id), outcome }) if *id == wanted => {
            Some(outcome.clone())
        }
        _ => None,
    })
}

async fn send(fake: &Fake, task: u64, node: NodeId, life: Duration) {
    let expires_at = fake.now().after(life);
    let task = ActionOrder { id: ActionId(task), node, expires_at, action: NodeAction::Reboot };
    fake.command(LinkCommand::Send(FromCentral::Action(task))).await;
}

#[tokio::test]
async fn agent_enrols_by_token_links_reports_and_reboots_on_order() {
    let fake = Fake::start().await;
    let token = fake.mint(Duration::from_secs(900));
    let mut machine = Machine::new(&fake, &fake.ca_pem, Some(token.clone()));
    machine.start();
    fake.wait(|seen| heartbeats(seen) >= 2).await;
    let seen = fake.seen();
    let Some(Seen::Up(hello)) = seen.first() else { panic!("{seen:?}") };
    assert_eq!((hello.node, hello.session), (fake.node(), BootSessionId([1; 12])));
    assert_eq!(
        (hello.facts.versions.generation.as_str(), hello.facts.versions.profile.as_str()),
        ("abc", "discovery")
    );
    let told = |seen: &Seen| matches!(seen, Seen::Message(FromAgent::Checks(report)) if report.checks.len() == meshd_proto::CHECKS.len());
    assert!(seen.iter().any(told), "{seen:?}");
    assert!(!machine.boot_file().contains(&token), "the used token is gone from the node");
    for private in ["run/meshd/node.key", "run/meshd/certificate.json", "etc/meshd/boot.json"] {
        let mode = fs::metadata(machine.path(private)).expect(private).permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{private}");
    }

    send(&fake, 1, "0000000z".parse().expect("a node ID"), Duration::from_secs(60)).await;
    fake.wait(|seen| matches!(outcome(seen, 1), Some(ActionOutcome::Refused { .. }))).await;
    assert!(!machine.path("rebooted").exists());
    send(&fake, 2, fake.node(), Duration::from_secs(60)).await;
    fake.wait(|seen| outcome(seen, 2) == Some(ActionOutcome::Done)).await;
    machine.has("rebooted").await;
    machine.stop().await;
    fake.wait(|seen| seen.contains(&Seen::Down)).await;
    fake.stop().await;
}

#[tokio::test]
async fn heartbeat_carries_the_utilisation_of_the_node() {
    let fake = Fake::start().await;
    let token = fake.mint(Duration::from_secs(900));
    let mut machine = Machine::new(&fake, &fake.ca_pem, Some(token));
    fs::create_dir_all(machine.path("proc")).expect("a folder");
    fs::write(machine.path("proc/meminfo"), "MemTotal: 1000 kB\nMemAvailable: 250 kB\n")
        .expect("written");
    machine.start();
    let memory = |seen: &Seen| match seen {
        Seen::Message(FromAgent::Heartbeat(heartbeat)) => heartbeat.usage.as_ref()?.memory_percent,
        _ => None,
    };
    fake.wait(|seen| seen.iter().any(|seen| memory(seen).is_some())).await;
    let measured: Vec<u8> = fake.seen().iter().filter_map(memory).collect();
    assert_eq!(measured, [75], "one measurement a minute");
    machine.stop().await;
    fake.stop().await;
}

#[tokio::test]
async fn restarted_agent_keeps_its_key_and_certificate() {
    let fake = Fake::start().await;
    let mut machine = Machine::new(&fake, &fake.ca_pem, Some(fake.mint(Duration::from_secs(900))));
    machine.start();
    fake.wait(|seen| seen.iter().any(is_up)).await;
    machine.stop().await;
    let key = fs::read(machine.path("run/meshd/node.key")).expect("there");
    fake.wait(|seen| seen.contains(&Seen::Down)).await;
    fake.forget_seen();
    machine.start();
    fake.wait(|seen| seen.iter().any(is_up)).await;
    assert_eq!(fs::read(machine.path("run/meshd/node.key")).expect("there"), key);
    machine.stop().await;
    fake.stop().await;
}

#[tokio::test]
async fn refused_token_is_deleted_and_approval_needs_no_reboot() {
    let fake = Fake::start().await;
    let mut machine = Machine::new(&fake, &fake.ca_pem, Some("wrong".into()));
    machine.start();
    fake.wait(|seen| seen.contains(&Seen::Waits(fake.node()))).await;
    assert!(!machine.boot_file().contains("wrong"));
    assert!(!fake.seen().iter().any(is_up));
    fake.approve();
    fake.wait(|seen| seen.iter().any(is_up)).await;
    machine.stop().await;
    fake.stop().await;
}

#[tokio::test]
async fn agent_with_expired_certificate_renews_and_links() {
    let fake = Fake::start().await;
    let mut machine = Machine::new(&fake, &fake.ca_pem, Some(fake.mint(Duration::from_secs(900))));
    machine.start();
    fake.wait(|seen| seen.iter().any(is_up)).await;
    machine.stop().await;
    // As if the node had slept: the file says that the life is over, and so does the central node.
    let kept = machine.path("run/meshd/certificate.json");
    let mut json: serde_json::Value =
        serde_json::from_slice(&fs::read(&kept).expect("there")).expect("JSON");
    json["expires_at"] = "2020-01-02T00:00:00Z".into();
    fs::write(&kept, json.to_string()).expect("written");
    fake.wait(|seen| seen.contains(&Seen::Down)).await;
    fake.advance(Duration::from_secs(30 * 86_400));
    fake.forget_seen();
    machine.start();
    fake.wait(|seen| seen.iter().any(is_up)).await;
    machine.stop().await;
    fake.stop().await;
}

#[tokio::test]
async fn agent_refuses_central_node_of_another_authority() {
    let ours = Fake::start().await;
    let theirs = Fake::start().await;
    let token = ours.mint(Duration::from_secs(900));
    let mut machine = Machine::new(&ours, &ours.ca_pem, Some(token.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    machine.dials(listener.local_addr().expect("bound").port());
    machine.start();
    let (stream, _) = deadline(listener.accept()).await.expect("it dials");
    let refused =
        deadline(TlsAcceptor::from(theirs.authority.server_config()).accept(stream)).await;
    let refused = refused.expect_err("it hangs up").to_string();
    assert!(refused.contains("fatal alert"), "{refused}");
    assert!(
        machine.boot_file().contains(&token),
        "a token that nobody of ours has answered is kept"
    );
    machine.stop().await;
    ours.stop().await;
    theirs.stop().await;
}

#[tokio::test]
async fn agent_renews_at_half_certificate_life_and_keeps_its_link() {
    // The clock of the central node stands still, so that the link itself is not over for it.
    // A certificate lives so long that a busy machine renews it before its end.
    let fake = Fake::start_with(Duration::from_secs(60), Duration::from_secs(16)).await;
    let mut machine = Machine::new(&fake, &fake.ca_pem, Some(fake.mint(Duration::from_secs(900))));
    machine.start();
    fake.wait(|seen| seen.iter().any(is_up)).await;
    let first = fs::read_to_string(machine.path("run/meshd/certificate.json")).expect("there");
    for renewals in 1..=2 {
        let kept = |seen: &[Seen]| {
            seen.iter().filter(|seen| **seen == Seen::Message(FromAgent::Renewed)).count()
        };
        fake.wait(|seen| kept(seen) >= renewals).await;
    }
    assert_ne!(
        fs::read_to_string(machine.path("run/meshd/certificate.json")).expect("there"),
        first
    );
    let seen = fake.seen();
    assert_eq!(seen.iter().filter(|seen| is_up(seen)).count(), 1, "one link all the while");
    assert!(!seen.contains(&Seen::Down));
    machine.stop().await;
    fake.stop().await;
}

#[tokio::test]
async fn warm_reboot_without_a_plan_goes_through_the_firmware() {
    let fake = Fake::start().await;
    let mut machine = Machine::new(&fake, &fake.ca_pem, Some(fake.mint(Duration::from_secs(900))));
    machine.start();
    fake.wait(|seen| seen.iter().any(is_up)).await;
    let expires_at = fake.now().after(Duration::from_secs(60));
    let action = NodeAction::WarmReboot;
    let order = ActionOrder { id: ActionId(7), node: fake.node(), expires_at, action };
    fake.command(LinkCommand::Send(FromCentral::Action(order))).await;
    fake.wait(|seen| outcome(seen, 7) == Some(ActionOutcome::Done)).await;
    // This central node gives no plan to anybody.
    machine.has("rebooted").await;
    machine.stop().await;
    fake.stop().await;
}

#[tokio::test]
async fn restarted_agent_repeats_action_outcome_and_not_the_action() {
    let fake = Fake::start().await;
    let mut machine = Machine::new(&fake, &fake.ca_pem, Some(fake.mint(Duration::from_secs(900))));
    machine.start();
    fake.wait(|seen| seen.iter().any(is_up)).await;
    send(&fake, 7, fake.node(), Duration::from_secs(60)).await;
    fake.wait(|seen| outcome(seen, 7) == Some(ActionOutcome::Done)).await;
    machine.has("rebooted").await;
    machine.stop().await;
    fs::remove_file(machine.path("rebooted")).expect("there");
    fake.wait(|seen| seen.contains(&Seen::Down)).await;
    fake.forget_seen();
    machine.start();
    fake.wait(|seen| seen.iter().any(is_up)).await;
    send(&fake, 7, fake.node(), Duration::from_secs(60)).await;
    // Told after the welcome, and once more because it was sent again; two heartbeats later it
    // would have been done.
    fake.wait(|seen| outcome(seen, 7) == Some(ActionOutcome::Done) && heartbeats(seen) >= 2).await;
    assert!(!machine.path("rebooted").exists());
    machine.stop().await;
    fake.stop().await;
}
