//! Boots that stand still and boots that go round in circles. Time is an argument: the central node runs in this process with a
//! clock that is turned by hand, and then as the real daemon on the same store.

use crate::world::{World, dhcp::As, eventually, node::PxeNode, unpack};
use meshd::{
    boot::{Endpoint, ScriptRequest},
    config::{self, Delivery},
    daemon,
    fleet::{ConditionKind, Event, Exchange, Lease, Node, Phase, Stage},
    id::{BootSessionId, Digest, MacAddr, NodeId, Secret, SystemUuid, Timestamp},
    serve::central::{Clock, DhcpSeen, Fetched, LinkId, Shared},
    store::EventFilter,
    trust::Peer,
    wire::{EnrolRequest, Facts, FromAgent, Hello, VERSION},
};
use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use std::{
    net::Ipv4Addr,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::sync::mpsc;

const ENDPOINT: Endpoint = Endpoint { address: Ipv4Addr::new(10, 77, 0, 1), http_port: 8080 };
/// Longer than any stage may take.
const LONG: Duration = Duration::from_secs(25 * 60);

/// A clock that is turned by hand, in milliseconds.
#[derive(Clone)]
struct HandClock(Arc<AtomicI64>);

impl HandClock {
    /// It begins three hours ago, so that what happens by it is past for the real daemon.
    fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        HandClock(Arc::new(AtomicI64::new(i64::try_from(now).unwrap() - 3 * 3_600_000)))
    }

    fn turn(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.0.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.load(Ordering::SeqCst)).unwrap())
    }
}

/// The central node of a world's site, in this process.
struct Rig {
    central: Shared,
    clock: HandClock,
}

impl Rig {
    fn new(world: &World) -> Self {
        let site = config::load(&world.path("site.toml")).unwrap();
        let clock = HandClock::new();
        let central = daemon::build_with(site, Box::new(clock.clone())).unwrap();
        Rig { central, clock }
    }

    /// Time passes, and the watch looks as often as it does.
    async fn pass(&self, time: Duration) {
        self.clock.turn(time);
        self.central.watch().await;
    }

    fn events(&self, kind: &str) -> Vec<Event> {
        let all = self.central.store().events(EventFilter { limit: 10_000, ..EventFilter::default() }).unwrap();
        all.into_iter().map(|(_, event)| event).filter(|event| event.kind.word() == kind).collect()
    }

    fn node(&self, id: NodeId) -> Node {
        self.central.store().read(|model| model.node(id).cloned()).expect("the node is known")
    }

    fn condition(&self, id: NodeId, kind: ConditionKind) -> Option<String> {
        self.node(id).conditions.into_iter().find(|condition| condition.kind == kind).map(|condition| condition.detail)
    }
}

/// A machine that takes each step of the chain when it is told to, without a network.
struct Machine<'a> {
    rig: &'a Rig,
    mac: MacAddr,
    uuid: SystemUuid,
    serial: String,
    address: Ipv4Addr,
    /// What the last script said.
    script: String,
    token: Option<String>,
    link: Option<LinkId>,
}

impl<'a> Machine<'a> {
    /// The same machine as [`PxeNode`] makes of this number.
    fn new(rig: &'a Rig, number: u8) -> Self {
        Machine {
            rig,
            mac: MacAddr([0x52, 0x54, 0, 0, 0, number]),
            uuid: SystemUuid([0x4c, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, number]),
            serial: format!("SN-{number}"),
            address: Ipv4Addr::new(10, 77, 0, 99 + number),
            script: String::new(),
            token: None,
            link: None,
        }
    }

    async fn dhcp(&self, exchange: Exchange) {
        let expires_at = self.rig.central.now().after(Duration::from_secs(86_400));
        let lease = Lease { mac: self.mac, address: self.address, expires_at };
        let seen = DhcpSeen {
            mac: self.mac,
            exchange,
            uuid: None,
            arch: None,
            address: Some(self.address),
            lease: Some(lease),
        };
        self.rig.central.dhcp_seen(seen).await.unwrap();
    }

    async fn ask_script(&mut self) {
        let (mac, uuid, serial) = (self.mac, self.uuid, &self.serial);
        let query = format!("mac={mac}&uuid={uuid}&serial={serial}&manufacturer=QEMU&product=world&arch=x86_64");
        self.script = self.rig.central.script(ScriptRequest::parse(&query), self.address, ENDPOINT).await;
    }

    fn session(&self) -> BootSessionId {
        self.rig.central.store().read(|model| model.newest_session(self.mac).map(|boot| boot.id)).expect("it boots")
    }

    fn id(&self) -> NodeId {
        self.rig
            .central
            .store()
            .read(|model| model.node_of_mac(self.mac).map(|node| node.id))
            .expect("it asked its script")
    }

    fn capability(&self) -> &str {
        let (_, rest) = self.script.split_once("/overlay/").unwrap_or_else(|| panic!("a refusal: {}", self.script));
        rest.split_once('/').unwrap().0
    }

    async fn fetch(&self, part: impl FnOnce(&meshd::catalog::image::Parts) -> Digest) {
        let digest = part(&self.rig.central.catalog().images().next().expect("an image").manifest.parts);
        self.rig.central.fetched(self.address, Fetched::Blob(digest)).await;
    }

    async fn overlay(&mut self) {
        let opened = self.rig.central.open_overlay(self.capability(), Delivery::Initrd, self.address).await;
        let transfer = opened.unwrap();
        let files = unpack::overlay(&transfer.pieces.concat());
        let boot: Value = serde_json::from_slice(&files["etc/meshd/boot.json"].1).unwrap();
        self.token = boot["token"].as_str().map(str::to_owned);
        transfer.finished().await;
    }

    async fn enrol(&self) {
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
        let csr_pem = CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap();
        let token = Secret::new(self.token.clone().expect("policy auto gives a token"));
        let request = EnrolRequest { version: VERSION, node: self.id(), session: self.session(), token, csr_pem };
        self.rig.central.enrol(request, self.address.into()).await.unwrap();
    }

    async fn link_up(&mut self) {
        let node = self.id();
        let serial = self.rig.node(node).certificates.last().cloned().expect("a certificate");
        let peer = Peer { node, serial, expired: false };
        let hello = Hello { version: VERSION, node, session: self.session(), facts: Facts::default() };
        let (commands, mut inbox) = mpsc::channel(8);
        // The link is there as long as somebody reads it.
        tokio::spawn(async move { while inbox.recv().await.is_some() {} });
        self.link = Some(self.rig.central.link_up(&peer, hello, self.address.into(), commands).await.unwrap().0);
    }

    async fn step(&mut self, stage: Stage) {
        match stage {
            Stage::Dhcp => self.dhcp(Exchange::Firmware).await,
            Stage::Loader => self.rig.central.fetched(self.address, Fetched::Loader).await,
            Stage::IpxeDhcp => self.dhcp(Exchange::Ipxe).await,
            Stage::Script => self.ask_script().await,
            Stage::Kernel => self.fetch(|parts| parts.kernel.digest).await,
            Stage::Initramfs => self.fetch(|parts| parts.initramfs.digest).await,
            Stage::Packages => self.fetch(|parts| parts.packages.digest).await,
            Stage::Overlay => self.overlay().await,
            Stage::OsDhcp => self.dhcp(Exchange::Os).await,
            Stage::Modloop => self.fetch(|parts| parts.modloop.digest).await,
            Stage::Enrolled => self.enrol().await,
            Stage::Link => self.link_up().await,
            Stage::Online => {
                let checks = FromAgent::Checks { checks: Vec::new() };
                self.rig.central.link_message(self.link.expect("a link"), checks).await.unwrap();
            }
        }
    }

    /// Powers on and goes on to a stage, a second for each.
    async fn boot(&mut self, furthest: Stage) {
        for stage in Stage::ALL.into_iter().filter(|stage| *stage <= furthest) {
            self.rig.clock.turn(Duration::from_secs(1));
            self.step(stage).await;
        }
    }

    /// Loses power; its link with it.
    async fn power_off(&mut self) {
        if let Some(link) = self.link.take() {
            self.rig.central.link_down(link).await;
        }
    }
}

#[tokio::test]
async fn a_boot_that_stops_after_any_stage_is_stalled_by_name_and_goes_on_as_if_nothing_was() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    for pair in Stage::ALL.windows(2) {
        let mut machine = Machine::new(&rig, pair[0] as u8 + 1);
        machine.boot(pair[0]).await;
        rig.pass(Duration::from_secs(60)).await;
        assert_eq!(rig.events("boot_stalled").len(), pair[0] as usize, "a minute is no stall");
        rig.pass(LONG).await;
        rig.pass(LONG).await;
        let stalls = rig.events("boot_stalled");
        assert_eq!(stalls.len(), pair[0] as usize + 1, "one event for one stall: {stalls:?}");
        let stall = stalls.last().unwrap();
        let said = format!("stopped after {}, {} is missing", pair[0], pair[1]);
        assert!(stall.detail.contains(&said), "{said} in {}", stall.detail);
        assert_eq!(stall.session, Some(machine.session()));
        if pair[0] < Stage::Script {
            assert!(stall.node.is_none() && stall.detail.contains(&machine.mac.to_string()), "{stall:?}");
            // Its session is stale; it would begin anew.
            continue;
        }
        let id = machine.id();
        assert_eq!(rig.condition(id, ConditionKind::BootStalled).as_ref(), Some(&stall.detail));
        match pair[1] {
            // Its capability or its token is over by then: it begins anew.
            Stage::Overlay | Stage::Enrolled => machine.boot(Stage::Online).await,
            next => machine.step(next).await,
        }
        rig.pass(Duration::from_secs(6)).await;
        assert_eq!(rig.condition(id, ConditionKind::BootStalled), None, "{} came", pair[1]);
        assert_eq!(rig.events("cleared").iter().filter(|event| event.node == Some(id)).count(), 1);
        // It may not stand still again while the others are looked at.
        machine.power_off().await;
        machine.boot(Stage::Online).await;
        machine.power_off().await;
    }
}

#[tokio::test]
async fn a_stall_survives_kill_9_and_ends_when_the_machine_goes_on() {
    let mut world = World::prepared("auto");
    {
        let rig = Rig::new(&world);
        Machine::new(&rig, 1).boot(Stage::Overlay).await;
        rig.pass(LONG).await;
        assert_eq!(rig.events("boot_stalled").len(), 1);
    }
    for _ in 0..2 {
        world.start();
        assert!(conditions(&world).contains(&"boot_stalled".to_owned()));
        world.kill();
    }
    world.start();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    let timeline = world.json(&["node", "timeline", &id, "-o", "json"]);
    assert_eq!(
        (&timeline["result"], &timeline["stalls"][0]["missing"]),
        (&"stalled".into(), &"os_dhcp".into()),
        "{timeline}"
    );
    let findings = doctor(&world);
    assert_eq!(finding(&findings, "stalled boots")["status"], "warn", "{findings}");
    PxeNode::new(&world, 1).dhcp(As::Os);
    eventually("the stall is over", || {
        let left = conditions(&world);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    assert_eq!(world.events("boot_stalled").len(), 1, "it was told once, whatever was killed");
}

fn conditions(world: &World) -> Vec<String> {
    let conditions = world.node()["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().filter_map(|condition| condition["kind"].as_str().map(str::to_owned)).collect()
}

fn doctor(world: &World) -> Value {
    let output = world.meshd(&["doctor", "-o", "json"]);
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

fn finding<'a>(findings: &'a Value, check: &str) -> &'a Value {
    let found = findings.as_array().into_iter().flatten().find(|finding| finding["check"] == check);
    found.unwrap_or_else(|| panic!("{check} in {findings}"))
}

#[tokio::test]
async fn a_loop_is_held_in_ipxe_asks_again_for_hours_and_is_let_go_by_a_word() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    for boot in 0..3 {
        machine.boot(Stage::Overlay).await;
        rig.pass(Duration::from_secs(120)).await;
        assert_ne!(rig.node(machine.id()).phase, Phase::Quarantined, "boot {boot}");
    }
    for stage in [Stage::Dhcp, Stage::Loader, Stage::IpxeDhcp, Stage::Script] {
        machine.step(stage).await;
    }
    let id = machine.id();
    let held = rig.node(id);
    assert_eq!(held.phase, Phase::Quarantined, "{held:?}");
    assert!(machine.script.contains("quarantined") && machine.script.contains("boot_loop"), "{}", machine.script);
    assert!(machine.script.contains("meshd node release"), "{}", machine.script);
    let session = machine.session();
    for _ in 0..3 * 60 {
        rig.pass(Duration::from_secs(20)).await;
        for again in ["sleep ", "ifconf ", "chain "] {
            assert!(machine.script.lines().any(|line| line.starts_with(again)), "{again} in {}", machine.script);
        }
        assert!(!machine.script.contains("reboot") && !machine.script.contains("exit"), "no way through the self test");
        machine.step(Stage::IpxeDhcp).await;
        machine.step(Stage::Script).await;
        assert!(!machine.script.contains("/overlay/"), "no capability while it is held");
    }
    assert_eq!(machine.session(), session, "one power-on, however long it waits");
    assert_eq!((rig.events("boot_loop").len(), rig.events("boot_stalled").len()), (1, 0));
    assert_eq!(rig.events("boot_refused").len(), 1, "one event for one reason");
    rig.central.release(id).await.unwrap();
    assert_eq!(rig.condition(id, ConditionKind::BootLoop), None);
    machine.step(Stage::IpxeDhcp).await;
    for stage in Stage::ALL.into_iter().filter(|stage| *stage >= Stage::Script) {
        machine.step(stage).await;
    }
    let node = rig.node(id);
    assert_eq!((node.phase, node.conditions.is_empty()), (Phase::Online, true), "{node:?}");
    machine.power_off().await;
    // Counted anew: two failures are none, the third is the next loop.
    for _ in 0..3 {
        machine.boot(Stage::Overlay).await;
        rig.pass(Duration::from_secs(120)).await;
        assert_eq!(rig.node(id).phase, Phase::Booting);
    }
    machine.boot(Stage::Script).await;
    assert_eq!(rig.node(id).phase, Phase::Quarantined);
}

#[tokio::test]
async fn who_is_released_without_having_been_let_in_is_unknown_as_before() {
    let world = World::prepared("approve");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    for _ in 0..3 {
        machine.boot(Stage::Overlay).await;
        rig.pass(Duration::from_secs(120)).await;
    }
    machine.boot(Stage::Script).await;
    assert_eq!(rig.node(machine.id()).phase, Phase::Quarantined);
    rig.central.release(machine.id()).await.unwrap();
    assert_eq!(rig.node(machine.id()).phase, Phase::Discovered);
    machine.step(Stage::IpxeDhcp).await;
    for stage in [Stage::Script, Stage::Overlay] {
        machine.step(stage).await;
    }
    assert_eq!(machine.token, None, "a release is no approval");
}

#[tokio::test]
async fn a_node_that_is_reprovisioned_again_and_again_or_is_slow_is_no_loop() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    for _ in 0..8 {
        machine.boot(Stage::Online).await;
        rig.pass(Duration::from_secs(5)).await;
        machine.power_off().await;
    }
    let mut slow = Machine::new(&rig, 2);
    for stage in Stage::ALL {
        slow.step(stage).await;
        rig.pass(Duration::from_secs(110)).await;
    }
    for kind in ["boot_loop", "boot_stalled"] {
        assert!(rig.events(kind).is_empty(), "{:?}", rig.events(kind));
    }
}

#[tokio::test]
async fn a_machine_that_never_asks_for_its_script_is_named_by_its_mac_and_shown_by_the_doctor() {
    let mut world = World::prepared("auto");
    let mac = {
        let rig = Rig::new(&world);
        let mut machine = Machine::new(&rig, 1);
        for _ in 0..4 {
            machine.boot(Stage::Loader).await;
            rig.pass(Duration::from_secs(60)).await;
        }
        rig.pass(Duration::from_secs(60)).await;
        let loops = rig.events("boot_loop");
        assert_eq!(loops.len(), 1, "{loops:?}");
        assert!(loops[0].node.is_none() && loops[0].detail.contains(&machine.mac.to_string()), "{loops:?}");
        machine.mac.to_string()
    };
    world.start();
    let findings = doctor(&world);
    let found = finding(&findings, "boot loops");
    assert!(found["status"] == "warn" && found["found"].as_str().unwrap().contains(&mac), "{found}");
}

#[tokio::test]
async fn a_capability_in_foreign_hands_is_an_alarm_by_head_too() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Script).await;
    let own = rig.central.probe_overlay(machine.capability(), machine.address).await;
    assert!(own.is_ok() && rig.events("capability_replayed").is_empty());
    let foreign = rig.central.probe_overlay(machine.capability(), Ipv4Addr::new(10, 77, 0, 66)).await;
    assert!(foreign.is_err());
    assert_eq!(rig.events("capability_replayed").len(), 1);
    machine.overlay().await;
}

#[test]
fn a_quarantined_machine_waits_in_ipxe_and_boots_once_the_command_line_releases_it() {
    let mut world = World::prepared("auto");
    {
        let rig = Rig::new(&world);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            for _ in 0..3 {
                Machine::new(&rig, 1).boot(Stage::Kernel).await;
                rig.pass(Duration::from_secs(120)).await;
            }
        });
    }
    world.start();
    let machine = PxeNode::new(&world, 1);
    let refused = machine.power_on().unwrap();
    assert!(refused.overlay().is_none() && refused.0.contains("# refusal quarantined"), "{}", refused.0);
    let node = world.wait_for_phase("quarantined");
    let id = node["id"].as_str().unwrap();
    assert!(conditions(&world).contains(&"boot_loop".to_owned()), "{node}");
    assert_eq!(finding(&doctor(&world), "quarantine")["status"], "warn");
    let timeline = world.json(&["node", "timeline", id, "-o", "json"]);
    assert_eq!(timeline["boots"].as_array().map(Vec::len), Some(4), "{timeline}");
    assert_eq!((&timeline["result"], &timeline["waits"][0]["code"]), (&"waiting".into(), &"quarantined".into()));
    let older = timeline["boots"][1]["session"].as_str().unwrap();
    let before = world.json(&["node", "timeline", id, "--session", older, "-o", "json"]);
    assert_eq!((&before["session"], &before["result"]), (&older.into(), &"stopped".into()));
    let shown = world.meshd(&["node", "timeline", id]);
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    assert!(shown.contains("quarantined") && shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    let released = world.meshd(&["node", "release", id]);
    assert!(released.status.success(), "{released:?}");
    assert!(!world.meshd(&["node", "release", id]).status.success(), "it is not held any more");
    let overlay = machine.retry_from_ipxe();
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    assert!(conditions(&world).is_empty());
}

#[test]
fn metrics_have_a_listener_of_their_own_and_none_on_the_boot_plane() {
    let mut world = World::prepared("auto");
    let site = std::fs::read_to_string(world.path("site.toml")).unwrap();
    let site = site.replace("[enroll]", "[metrics]\naddress = \"10.77.0.1\"\n[enroll]");
    std::fs::write(world.path("site.toml"), site).unwrap();
    world.start();
    let machine = PxeNode::new(&world, 1);
    let overlay = machine.boot();
    let _agent = machine.start_agent(&overlay);
    world.wait_for_phase("online");
    let page = eventually("the boot is counted", || {
        let page = machine.get("http://10.77.0.1:9109/metrics").map_err(|error| error.to_string())?.text();
        let online = "meshd_boots_total{result=\"online\",stage=\"online\"} 1";
        if page.contains(online) { Ok(page) } else { Err(page) }
    });
    for word in
        ["meshd_nodes{phase=\"online\"} 1", "meshd_agent_links 1", "meshd_boot_stage_seconds_bucket{stage=\"overlay\""]
    {
        assert!(page.contains(word), "{word} in {page}");
    }
    for hidden in [machine.mac.to_string(), machine.uuid.to_string()] {
        assert!(!page.contains(&hidden), "{hidden} in {page}");
    }
    assert_eq!(machine.get("http://10.77.0.1:9109/").unwrap().status, 404);
    assert_eq!(machine.get("http://10.77.0.1:8080/metrics").unwrap().status, 404, "not on the boot plane");
}

#[test]
fn the_doctor_finds_no_fault_in_a_sound_site_and_says_how_to_start_one_that_is_down() {
    let mut world = World::prepared("auto");
    let down = world.meshd(&["doctor"]);
    let text = String::from_utf8_lossy(&down.stdout).into_owned();
    assert_eq!(down.status.code(), Some(1), "{text}");
    assert!(text.contains("FAIL  meshd") && text.contains("meshd serve --site"), "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 100 || line.contains('/')), "{text}");
    world.start();
    let findings = doctor(&world);
    for check in ["site", "meshd", "interface br0", "loaders", "agent", "overlays", "image small", "disk", "quarantine"]
    {
        assert_eq!(finding(&findings, check)["status"], "ok", "{findings}");
    }
    assert!(world.meshd(&["doctor"]).status.success());
    std::fs::remove_dir_all(world.path("state/blobs")).unwrap();
    let missing = world.meshd(&["doctor", "-o", "json"]);
    assert_eq!(missing.status.code(), Some(1));
    let findings: Value = serde_json::from_slice(&missing.stdout).unwrap();
    assert_eq!(finding(&findings, "image small")["next"], "meshd image build small");
}

/// What udhcpc does on a node at each change of its lease, with a `/run` and programs of its own; gives the programs' log.
fn lease_script(changes: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let bin = dir.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    for program in ["ntpd", "killall", "ip"] {
        let path = bin.join(program);
        std::fs::write(&path, "#!/bin/sh\necho \"${0##*/} $*\" >>\"$LOG\"\n").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/overlays/base/rootfs/usr/share/meshd/udhcpc");
    // Alpine's own script, which comes last, is not here.
    let work = format!("mount -t tmpfs none /run\nchange() {{ sh {script} \"$@\" 2>/dev/null; }}\n{changes}\ntrue");
    let mut command = std::process::Command::new("unshare");
    command.args(["--mount", "sh", "-c", &work]).env("LOG", dir.path().join("log")).env("interface", "eth0");
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    assert!(command.status().unwrap().success());
    std::fs::read_to_string(dir.path().join("log")).unwrap_or_default()
}

#[test]
fn a_node_follows_the_time_servers_of_its_lease_and_no_others() {
    assert_eq!(lease_script("change deconfig; change bound; change renew"), "ip link set dev eth0 up\n");
    let log =
        lease_script("export ntpsrv='10.77.0.1 10.77.0.2'\nchange bound; change renew\nntpsrv=10.77.0.3 change renew");
    assert_eq!(log, "ntpd -p 10.77.0.1 -p 10.77.0.2\nkillall ntpd\nntpd -p 10.77.0.3\n");
}
