//! The central node in this process, with a clock that is turned by hand, and machines without a
//! network.

use crate::world::{World, single_orders::SingleOrders as _, unpack};
use meshd::daemon;
use meshd_central::{
    Clock, DhcpChange, DhcpExchange, Fetched, Lan, LanClient, LinkCommand, LinkId, Neighbour,
    Shared, vm_entries,
};
use meshd_config::Delivery;
use meshd_model::{
    boot::{Endpoint, ScriptRequest},
    fleet::{
        AuditContext, ConditionKind, DhcpClient, Event, Lease, Node, Principal, RelayPort, Stage,
        Verb,
    },
};
use meshd_proto::{
    EnrolRequest, Facts, FromAgent, FromCentral, Heartbeat, Hello, VERSION, vm::VmEntry,
};
use meshd_store::EventFilter;
use meshd_trust::Peer;
use meshd_types::{BootSessionId, CorrelationId, MacAddr, NodeId, Secret, SystemUuid, Timestamp};
use rcgen::{CertificateParams, KeyPair};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, SystemTime},
};
use tokio::sync::mpsc;

/// A certificate request with a new key.
pub fn certificate_request() -> String {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).unwrap();
    CertificateParams::default().serialize_request(&key).unwrap().pem().unwrap()
}

pub const ENDPOINT: Endpoint = Endpoint { address: Ipv4Addr::new(10, 77, 0, 1), http_port: 8080 };
/// What an operator orders.
pub fn ordered(verb: Verb) -> AuditContext {
    AuditContext::new(Principal::Operator(0), verb, CorrelationId([0; 8]))
}

/// Longer than any stage may take.
pub const LONG: Duration = Duration::from_secs(25 * 60);

/// A clock that is turned by hand, in milliseconds; by how much the wall clock jumped beside it;
/// and what happens when somebody looks at it next.
#[derive(Clone)]
pub struct HandClock(Arc<AtomicI64>, Arc<AtomicI64>, Arc<Mutex<Option<Deed>>>);

type Deed = Box<dyn FnOnce() + Send>;

impl HandClock {
    /// It begins three hours ago, so that what happens by it is past for the real daemon.
    pub fn new() -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        HandClock(
            Arc::new(AtomicI64::new(i64::try_from(now).unwrap() - 3 * 3_600_000)),
            Arc::default(),
            Arc::default(),
        )
    }

    pub fn turn(&self, by: Duration) {
        self.0.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }

    /// Somebody sets the wall clock, by so many milliseconds; no time passes.
    pub fn jump(&self, by: i64) {
        self.1.fetch_add(by, Ordering::SeqCst);
    }
}

impl HandClock {
    /// Done when somebody asks for the time next, before it is told.
    pub fn at_next_look(&self, deed: impl FnOnce() + Send + 'static) {
        *self.2.lock().unwrap() = Some(Box::new(deed));
    }
}

impl Clock for HandClock {
    fn now(&self) -> Timestamp {
        let deed = self.2.lock().unwrap().take();
        if let Some(deed) = deed {
            deed();
        }
        Timestamp::from_millis(self.0.load(Ordering::SeqCst) + self.1.load(Ordering::SeqCst))
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.load(Ordering::SeqCst)).unwrap())
    }
}

/// Who has which address on the wire, as the test says; all others are behind a router.
#[derive(Clone, Default)]
pub struct Wire(Arc<Mutex<BTreeMap<Ipv4Addr, MacAddr>>>);

impl Wire {
    pub fn put(&self, address: Ipv4Addr, mac: MacAddr) {
        self.0.lock().unwrap().insert(address, mac);
    }
}

impl Lan for Wire {
    fn neighbour(&self, address: Ipv4Addr) -> Neighbour {
        self.0
            .lock()
            .unwrap()
            .get(&address)
            .map_or(Neighbour::Routed, |mac| Neighbour::Machine(*mac))
    }

    fn router_to(&self, _: Ipv4Addr) -> Option<MacAddr> {
        None
    }

    fn holders(
        &self,
        address: Ipv4Addr,
    ) -> Pin<Box<dyn Future<Output = BTreeSet<MacAddr>> + Send + '_>> {
        let found = self.0.lock().unwrap().get(&address).copied();
        Box::pin(async move { found.into_iter().collect() })
    }

    fn pinned(&self, address: Ipv4Addr) -> Option<(MacAddr, bool)> {
        self.0.lock().unwrap().get(&address).map(|mac| (*mac, true))
    }
}

/// The central node of a world's site, in this process.
pub struct Rig {
    pub central: Shared,
    pub clock: HandClock,
    pub wire: Wire,
}

impl Rig {
    pub fn new(world: &World) -> Self {
        Self::with(world, HandClock::new(), Wire::default())
    }

    fn with(world: &World, clock: HandClock, wire: Wire) -> Self {
        let site = meshd_config::load(&world.path("site.toml")).unwrap();
        let central =
            daemon::build_with(site, Box::new(clock.clone()), Box::new(wire.clone())).unwrap();
        Rig { central, clock, wire }
    }

    /// The central node crashes and starts again, with the same store, clock and wire.
    pub fn restarted(self, world: &World) -> Self {
        let Rig { central, clock, wire } = self;
        drop(central);
        Self::with(world, clock, wire)
    }

    /// Time passes, and the watch looks as often as it does.
    pub async fn pass(&self, time: Duration) {
        self.clock.turn(time);
        self.central.watch().await;
    }

    pub fn events(&self, kind: &str) -> Vec<Event> {
        let all = self
            .central
            .store()
            .events(EventFilter { limit: 10_000, ..EventFilter::default() })
            .unwrap();
        all.into_iter().map(|(_, event)| event).filter(|event| event.kind.word() == kind).collect()
    }

    pub fn node(&self, id: NodeId) -> Node {
        self.central.store().read(|model| model.node(id).cloned()).expect("the node is known")
    }

    /// What the central node orders about the VMs of a node.
    pub fn vm_entries(&self, node: NodeId, vm: Option<SystemUuid>) -> Vec<VmEntry> {
        self.central.store().read(|model| vm_entries(model, node, vm))
    }

    pub fn condition(&self, id: NodeId, kind: ConditionKind) -> Option<String> {
        self.node(id)
            .conditions
            .into_iter()
            .find(|condition| condition.kind == kind)
            .map(|condition| condition.detail)
    }
}

/// A machine that takes each step of the chain when it is told to, without a network.
pub struct Machine<'a> {
    pub rig: &'a Rig,
    pub mac: MacAddr,
    pub uuid: SystemUuid,
    pub serial: String,
    /// Serial number of its board, as iPXE tells it.
    pub board: String,
    pub address: Ipv4Addr,
    /// Its switch port, by the relay of its segment.
    pub relay_port: Option<RelayPort>,
    /// What the last script said.
    pub script: String,
    pub token: Option<String>,
    pub link: Option<LinkId>,
    /// The version of the wire that its agent speaks.
    pub version: u16,
    /// Its link answers probes.
    pub answers: bool,
    /// What its agent tells of it.
    pub facts: Facts,
    /// Requests for its checks that came by its link.
    pub check_requests: Option<mpsc::UnboundedReceiver<u64>>,
    /// Tokens by which it is to enrol again, as they came by its link.
    pub tokens: Option<mpsc::UnboundedReceiver<Secret<String>>>,
}

impl<'a> Machine<'a> {
    /// The same machine as [`PxeNode`] makes of this number.
    pub fn new(rig: &'a Rig, number: u8) -> Self {
        Machine {
            rig,
            mac: MacAddr([0x52, 0x54, 0, 0, 0, number]),
            uuid: SystemUuid([0x4c, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, number]),
            serial: format!("SN-{number}"),
            board: String::new(),
            address: Ipv4Addr::new(10, 77, 0, 99 + number),
            relay_port: None,
            script: String::new(),
            token: None,
            link: None,
            version: VERSION,
            answers: false,
            facts: Facts::default(),
            check_requests: None,
            tokens: None,
        }
    }

    pub async fn dhcp(&self, client: DhcpClient) {
        let expires_at = self.rig.central.now().after(Duration::from_secs(86_400));
        let lease = Lease { mac: self.mac, address: self.address, expires_at, vm: None };
        let seen = DhcpExchange {
            mac: self.mac,
            client,
            uuid: None,
            arch: None,
            is_discover: false,
            secs: 0,
            address: Some(self.address),
            lease: Some(lease),
            discovered: true,
            relay_port: self.relay_port.clone(),
            is_relayed: self.relay_port.is_some(),
            bmc: None,
        };
        self.rig.central.boot.apply_dhcp_changes(&[DhcpChange::Exchange(seen)]).await.unwrap();
    }

    pub async fn ask_script(&mut self) {
        self.script = self.script_for(self.address).await;
    }

    /// What a client is answered who asks for the script of this machine.
    pub async fn script_for(&self, client: impl Into<LanClient>) -> String {
        let mac = self.mac;
        let uuid = self.uuid;
        let serial = &self.serial;
        let board = &self.board;
        let query = format!(
            "mac={mac}&uuid={uuid}&serial={serial}&board_serial={board}&manufacturer=QEMU&product=world&arch=x86_64"
        );
        self.rig.central.boot.script(ScriptRequest::parse(&query), client, ENDPOINT).await
    }

    pub fn session(&self) -> BootSessionId {
        self.rig
            .central
            .store()
            .read(|model| model.newest_session(self.mac).map(|boot| boot.id))
            .expect("it boots")
    }

    pub fn id(&self) -> NodeId {
        self.rig
            .central
            .store()
            .read(|model| model.node_of_mac(self.mac).map(|node| node.id))
            .expect("it asked its script")
    }

    pub fn capability(&self) -> &str {
        let (_, rest) = self
            .script
            .split_once("/overlay/")
            .unwrap_or_else(|| panic!("a refusal: {}", self.script));
        rest.split_once('/').unwrap().0
    }

    /// Fetches the part of the image that a stage stands for, if its kind has one.
    pub async fn fetch(&self, stage: Stage) {
        let catalog = self.rig.central.catalog();
        let parts = catalog.images().next().expect("an image").manifest.parts.parts();
        if let Some(part) = parts.iter().find(|part| part.stage == stage) {
            let fetched = Fetched::Blob(part.blob.digest);
            self.rig.central.boot.record_fetch(self.address, fetched).await;
        }
    }

    pub async fn overlay(&mut self) {
        let opened = self
            .rig
            .central
            .boot
            .open_overlay(self.capability(), Delivery::Initrd, self.address)
            .await;
        let transfer = opened.unwrap();
        let files = unpack::overlay(&transfer.pieces.concat());
        let boot: Value = serde_json::from_slice(&files["etc/meshd/boot.json"].1).unwrap();
        self.token = boot["token"].as_str().map(str::to_owned);
        transfer.finish().await;
    }

    pub async fn enrol(&self) {
        let token = Secret::new(self.token.clone().expect("policy auto gives a token"));
        self.enrol_with(self.session(), token).await;
    }

    pub async fn enrol_with(&self, session: BootSessionId, token: Secret<String>) {
        let csr_pem = certificate_request();
        let request =
            EnrolRequest { version: self.version, node: self.id(), session, token, csr_pem };
        self.rig.central.enrolment.enrol(request, self.address.into()).await.unwrap();
    }

    pub async fn link_up(&mut self) {
        let node = self.id();
        let newest = self.rig.node(node).certificates.last().cloned().expect("a certificate");
        let serial = newest.serial;
        let key = newest.key;
        let peer = Peer { node, serial, key, expired: false };
        // A boot that waits for its script is not that of the running agent.
        let session = self.rig.node(node).boot.expect("a boot");
        let hello = Hello { version: self.version, node, session, facts: self.facts.clone() };
        let (commands, mut inbox) = mpsc::channel(8);
        let answers = self.answers;
        let (check_sender, check_requests) = mpsc::unbounded_channel();
        let (ordering, tokens) = mpsc::unbounded_channel();
        (self.check_requests, self.tokens) = (Some(check_requests), Some(tokens));
        // The link is there as long as somebody reads it; a machine that lost power reads nothing
        // and answers nothing.
        tokio::spawn(async move {
            while let Some(command) = inbox.recv().await {
                match command {
                    LinkCommand::Probe(answer) if answers => drop(answer.send(())),
                    LinkCommand::Send(FromCentral::Check { request_id }) => {
                        let _ = check_sender.send(request_id);
                    }
                    LinkCommand::Send(FromCentral::EnrolAgain { token, .. }) => {
                        let _ = ordering.send(token);
                    }
                    _ => {}
                }
            }
        });
        self.link = Some(
            self.rig
                .central
                .agents
                .link_up(&peer, hello, self.address.into(), commands)
                .await
                .unwrap()
                .0,
        );
    }

    pub async fn step(&mut self, stage: Stage) {
        match stage {
            Stage::Dhcp => self.dhcp(DhcpClient::Firmware).await,
            Stage::Loader => {
                self.rig.central.boot.record_fetch(self.address, Fetched::Loader).await
            }
            Stage::IpxeDhcp => self.dhcp(DhcpClient::Ipxe).await,
            Stage::Script => self.ask_script().await,
            Stage::Kernel | Stage::Initramfs | Stage::Packages | Stage::Modloop | Stage::Root => {
                self.fetch(stage).await
            }
            Stage::Overlay => self.overlay().await,
            Stage::OsDhcp => self.dhcp(DhcpClient::Os).await,
            Stage::Enrolled => self.enrol().await,
            Stage::Link => self.link_up().await,
            Stage::Online => {
                let checks = FromAgent::Checks(Box::default());
                self.rig
                    .central
                    .agents
                    .link_message(self.link.expect("a link"), checks)
                    .await
                    .unwrap();
            }
        }
    }

    /// Powers on and goes on to a stage, a second for each. A node that runs reboots in order: its
    /// agent says goodbye.
    pub async fn boot(&mut self, furthest: Stage) {
        self.say_goodbye().await;
        self.reset(furthest).await;
    }

    async fn say_goodbye(&self) {
        if let Some(link) = self.link {
            // The central node may have ended the link.
            let _ = self.rig.central.agents.link_message(link, FromAgent::Goodbye).await;
        }
    }

    /// The same as [`Machine::boot`], but nobody announces it: somebody presses the reset button,
    /// or it is another machine.
    pub async fn reset(&mut self, furthest: Stage) {
        for stage in Stage::ALL.into_iter().filter(|stage| *stage <= furthest) {
            self.rig.clock.turn(Duration::from_secs(1));
            self.step(stage).await;
        }
    }

    /// Powers on, is let in by an operator at its script, and goes on to a stage.
    pub async fn boot_approved(&mut self, furthest: Stage) {
        self.boot(Stage::Script).await;
        self.rig.central.nodes.approve(self.id(), &ordered(Verb::Approve)).await.unwrap();
        for stage in
            Stage::ALL.into_iter().filter(|stage| *stage > Stage::Script && *stage <= furthest)
        {
            self.rig.clock.turn(Duration::from_secs(1));
            self.step(stage).await;
        }
    }

    /// Its agent says something on its link.
    pub async fn say(&self, message: FromAgent) -> bool {
        self.rig.central.agents.link_message(self.link.expect("a link"), message).await.is_ok()
    }

    pub async fn heartbeat(&self, workloads: u32) -> bool {
        self.say(FromAgent::Heartbeat(Heartbeat { workloads, ..Heartbeat::default() })).await
    }

    /// Shuts down in order: its agent says goodbye.
    pub async fn power_off(&mut self) {
        self.say_goodbye().await;
        self.lose_power().await;
    }

    /// Loses power, and its link with it: nobody says goodbye.
    pub async fn lose_power(&mut self) {
        if let Some(link) = self.link.take() {
            self.rig.central.links.link_down(link).await;
        }
    }
}
