//! A compromised node: root on its machine, with its certificate. It speaks the link by hand, and
//! reports what it likes.

mod message_rate;
mod other_subjects;

use super::client::{Attacker, Identity, Link, ticket};
use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    work::workloads::{facts, tasks_report, vms_report},
    world::{
        CENTRAL, World,
        dhcp::{self, As},
        eventually,
        node::PxeNode,
        program,
        single_orders::SingleOrders as _,
        stderr,
    },
};
use meshd_model::fleet::{Stage, Verb};
use meshd_proto::{
    Check, CheckReport, CheckStatus, Facts, FromAgent, FromCentral, NicFacts, NodeSpec, SpecEntry,
    Ticket, VOLUMES_PATH,
    task::{Output, Piece, Stream, TaskDesiredState, TaskNodeState, TaskReport, TaskUpdate},
    vm::{ReportedVmState, VmReport, VmUpdate},
};
use meshd_store::StoreError;
use meshd_types::{MacAddr, SystemUuid};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs,
    io::Read as _,
    process::{Child, Command, Stdio},
    time::Duration,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    time::timeout,
};

/// Sets the title, clears the screen, turns the text direction: by escape, by its 8-bit form, and
/// by Unicode.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\u{202e}\rover\nFORGED";

/// A node of the attacker.
pub(super) struct Compromised<'a> {
    pub(super) attacker: Attacker<'a>,
    own: Ticket,
    identity: Identity,
}

impl<'a> Compromised<'a> {
    fn new(world: &'a World, number: u8) -> Self {
        Self::of(Attacker::new(world), world, number)
    }

    pub(super) fn of(attacker: Attacker<'a>, world: &World, number: u8) -> Self {
        let own = ticket(world, number);
        let identity = attacker.enrol(&own);
        Compromised { attacker, own, identity }
    }

    pub(super) async fn link(&self, facts: Facts) -> Link {
        let mut link = self
            .attacker
            .hello_of(&self.identity, self.own.boot.node, self.own.boot.session, facts)
            .await;
        let first = link.hear().await;
        assert!(matches!(first, Some(FromCentral::Welcome(_))), "{first:?}");
        link
    }

    /// Reports one check that passed, so that the node is online.
    async fn report_check(&self, link: &mut Link, name: &str, request_id: Option<u64>) {
        let text = format!("{name} is there");
        let check = Check {
            name: name.to_owned(),
            status: CheckStatus::Pass,
            detail: text.clone(),
            remediation: text,
            unproven: false,
        };
        let session = Some(self.own.boot.session);
        let report =
            CheckReport { checks: vec![check], session, request_id, ..CheckReport::default() };
        link.say(&FromAgent::Checks(Box::new(report))).await;
    }
}

/// A command of an operator at a terminal.
fn at_terminal(world: &World, args: &[&str]) -> Child {
    let spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let mut command = Command::new("python3");
    command
        .args(["-c", spawn])
        .arg(program(env!("CARGO_BIN_EXE_meshd")))
        .arg("--site")
        .arg(&world.site)
        .args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Everything that the terminal received.
fn received(mut command: Child) -> String {
    let mut bytes = Vec::new();
    command.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn assert_harmless(what: &[&str], shown: &str) {
    let executed: Vec<char> =
        shown.chars().filter(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')).collect();
    let alone = shown.replace("\r\n", "\n").contains('\r');
    assert!(
        executed.is_empty() && !alone && !shown.contains('\u{202e}'),
        "{what:?} printed {executed:?}: {shown:?}"
    );
    // The output of a program has lines; a name has none.
    let is_forged = shown.lines().any(|line| line.starts_with("FORGED"));
    assert!(!is_forged || what.contains(&"exec"), "{what:?} printed a forged line: {shown:?}");
}

#[test]
fn escape_sequences_of_a_node_reach_no_terminal() {
    let world = World::new("approve");
    let node = Compromised::new(&world, 1);
    let id = node.own.boot.node.to_string();
    node.attacker.run(async {
        let mut facts = Facts::default();
        for text in [
            &mut facts.system.serial,
            &mut facts.cpu.model,
            &mut facts.versions.os,
            &mut facts.versions.kernel,
        ] {
            *text = HOSTILE.to_owned();
        }
        let mut link = node.link(facts).await;
        node.report_check(&mut link, HOSTILE, None).await;
        let mut commands = vec![
            vec!["node", "exec", &id, "--", "true"],
            vec!["node", "doctor", &id],
            vec!["node", "show", &id],
            vec!["node", "show", &id, "-o", "json"],
            vec!["node", "show", &id, "-o", "yaml"],
            vec!["events"],
        ];
        commands.reverse();
        let mut running: Option<(Vec<&str>, Child)> = None;
        loop {
            match running.as_mut().map(|(_, child)| child.try_wait().unwrap().is_some()) {
                Some(false) => {}
                _ => {
                    if let Some((args, child)) = running.take() {
                        let shown = received(child);
                        assert_harmless(&args, &shown);
                        let expected = if args.contains(&"exec") { "task output" } else { "" };
                        assert!(!shown.is_empty() && shown.contains(expected), "{args:?}: {shown}");
                    }
                    let Some(args) = commands.pop() else { break };
                    let child = at_terminal(&world, &args);
                    running = Some((args, child));
                }
            }
            match timeout(Duration::from_millis(50), link.hear()).await {
                Ok(Some(FromCentral::Check { request_id })) => {
                    node.report_check(&mut link, HOSTILE, Some(request_id)).await
                }
                Ok(Some(FromCentral::Spec(NodeSpec {
                    entry: SpecEntry::Tasks(order), ..
                }))) => answer_task(&mut link, order).await,
                Ok(message) => assert!(message.is_some(), "the link ended"),
                Err(_) => {}
            }
        }
    });
}

/// Runs a task: it writes and ends.
async fn answer_task(link: &mut Link, order: meshd_proto::task::TaskEntry) {
    let task = order.task;
    if order.desired_state == TaskDesiredState::Gone {
        return link.say(&tasks_report(TaskUpdate::Released { task })).await;
    }
    for stream in [Stream::Out, Stream::Err] {
        let data = Piece::from_bytes(format!("task output {HOSTILE}\n").into_bytes());
        link.say(&FromAgent::Output(Output { task, stream, at: 0, data })).await;
        while !matches!(link.hear().await, Some(FromCentral::OutputStored(_))) {}
    }
    let tasks = vec![TaskReport { task, state: TaskNodeState::Exited { code: 0 } }];
    link.say(&tasks_report(TaskUpdate::All { tasks })).await;
}

/// Waits until a node is online.
fn until_online(world: &World, node: &Compromised<'_>) {
    let id = node.own.boot.node.to_string();
    eventually("the node is online", || {
        let shown = world.json(&["node", "show", &id, "-o", "json"]);
        if shown["phase"] == "online" { Ok(()) } else { Err(shown["phase"].to_string()) }
    });
}

/// Creates a VM from a file with these lines besides its size, and returns what the command prints.
fn create_vm(world: &World, name: &str, lines: &str, more: &[&str]) -> Result<Value, String> {
    let file = world.path(&format!("{name}.toml"));
    fs::write(&file, format!("name = \"{name}\"\nvcpus = 1\nmemory = \"256M\"\n{lines}\n"))
        .unwrap();
    let file = file.to_str().unwrap();
    let made =
        world.meshd(&[&["vm", "create", "--file", file, "--start", "-o", "json"], more].concat());
    if made.status.success() {
        Ok(serde_json::from_slice(&made.stdout).unwrap())
    } else {
        Err(stderr(&made))
    }
}

fn phase_of(world: &World, vm: &str) -> String {
    let shown = world.json(&["vm", "show", vm, "-o", "json"]);
    shown["state"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn vm_of_another_node_is_not_blocked_by_a_claim() {
    let world = World::new("approve");
    let owner = Compromised::new(&world, 1);
    let liar = Compromised::new(&world, 2);
    owner.attacker.run(async {
        let mut own = owner.link(facts("ready")).await;
        let mut lying = liar.link(facts("ready")).await;
        owner.report_check(&mut own, "kvm", None).await;
        liar.report_check(&mut lying, "kvm", None).await;
        until_online(&world, &owner);
        until_online(&world, &liar);
        let id = owner.own.boot.node.to_string();
        let vm = create_vm(&world, "victim", "", &["--node", &id]).unwrap();
        let uuid: SystemUuid = vm["uuid"].as_str().unwrap().parse().unwrap();
        let report = |state| {
            let vms = vec![VmReport::new(uuid, "victim".parse().unwrap(), state)];
            vms_report(VmUpdate::All { vms })
        };
        own.say(&report(ReportedVmState::Running)).await;
        lying.say(&report(ReportedVmState::Running)).await;
        let until = |state: &str| {
            eventually(state, || {
                Some(phase_of(&world, "victim"))
                    .filter(|now| now == state)
                    .ok_or("not yet".to_owned())
            });
        };
        until("running");
        eventually("the claim is recorded", || {
            if world.events("vm_unknown").len() == 1 { Ok(()) } else { Err(world.log_text()) }
        });
        assert!(world.meshd(&["vm", "stop", "victim"]).status.success());
        own.say(&report(ReportedVmState::Stopped)).await;
        until("stopped");
        let started = world.meshd(&["vm", "start", "victim"]);
        assert!(started.status.success(), "{}", stderr(&started));
    });
}

#[test]
fn claims_of_a_quarantined_node_are_forgotten() {
    let world = World::new("approve");
    let owner = Compromised::new(&world, 1);
    let liar = Compromised::new(&world, 2);
    owner.attacker.run(async {
        let mut own = owner.link(facts("ready")).await;
        let mut lying = liar.link(facts("ready")).await;
        owner.report_check(&mut own, "kvm", None).await;
        until_online(&world, &owner);
        let uuid = "2f7c1d5e-8a34-4f0b-9c51-6d0f5be7a1c2";
        let claim = VmReport::new(
            uuid.parse().unwrap(),
            "planned".parse().unwrap(),
            ReportedVmState::Running,
        );
        lying.say(&vms_report(VmUpdate::All { vms: vec![claim] })).await;
        eventually("the claim is recorded", || {
            if world.events("vm_unknown").len() == 1 { Ok(()) } else { Err(world.log_text()) }
        });
        let line = format!("uuid = \"{uuid}\"");
        let refused = create_vm(&world, "planned", &line, &[]).expect_err("it may run");
        let id = liar.own.boot.node.to_string();
        assert!(refused.contains(&format!("node quarantine {id}")), "{refused}");
        let quarantined = world.meshd(&["node", "quarantine", &id, "--yes"]);
        assert!(quarantined.status.success(), "{}", stderr(&quarantined));
        create_vm(&world, "planned", &line, &[]).unwrap();
        assert!(
            world.json(&["vm", "list", "-o", "json"]).as_array().unwrap().len() == 1,
            "the claim is gone"
        );
    });
}

/// The NIC of this number, which no machine has.
fn invented(number: u8) -> MacAddr {
    MacAddr([0x52, 0x54, 0, 0x99, 0, number])
}

#[test]
fn invented_nics_of_a_node_hold_no_addresses() {
    /// The pool of the site.
    const POOL: u8 = 11;
    let world = World::new("approve");
    let node = Compromised::new(&world, 1);
    let nic = |mac| NicFacts { mac: Some(mac), ..NicFacts::default() };
    let facts = Facts {
        nics: (0..=POOL).map(|number| nic(invented(number))).collect(),
        ..Facts::default()
    };
    node.attacker.run(async { drop(node.link(facts).await) });
    // The attacker takes every address in the name of one NIC each, and gives it back.
    let nobody = SystemUuid([9; 16]);
    let server = CENTRAL.parse::<std::net::Ipv4Addr>().unwrap().octets().to_vec();
    for number in 1..=POOL {
        let mac = invented(number);
        let leave = || {
            let granted = dhcp::obtain(mac, nobody, As::Os);
            let mut release = dhcp::packet(mac, nobody, As::Os, 7, &[(54, server.clone())]);
            release[12..16].copy_from_slice(&granted.address.octets());
            dhcp::client().send_to(&release, (std::net::Ipv4Addr::BROADCAST, 67)).unwrap();
        };
        world.host(mac).inside(leave).unwrap();
    }
    let machine = crate::world::node::PxeNode::new(&world, 77);
    let granted = machine.dhcp(As::Firmware(0));
    assert!(granted.address.octets()[..3] == [10, 77, 0], "{granted:?}");
}

#[test]
fn node_with_a_ticket_has_the_nic_that_the_wire_showed() {
    let world = World::new("approve");
    let node = Compromised::new(&world, 1);
    let facts = Facts {
        nics: vec![NicFacts { mac: Some(invented(1)), ..NicFacts::default() }],
        ..Facts::default()
    };
    node.attacker.run(async { drop(node.link(facts).await) });
    let show = || Command::new("ip").args(["-json", "link", "show", "eth0"]).output().unwrap();
    let links: Value = serde_json::from_slice(&world.nodes.inside(show).unwrap().stdout).unwrap();
    assert_eq!(world.node()["mac"], links[0]["address"], "and not the one that it reported");
}

#[tokio::test]
async fn nics_that_never_booted_are_forgotten_with_the_credentials() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let stored = rig.central.store().commit(|tx| {
        tx.edit_node(id, |node| node.fingerprint.macs.extend([invented(1), invented(2)]));
        tx.edit_node(id, |node| node.reported_nics.extend([invented(1), invented(2)]));
        Ok::<_, StoreError>(())
    });
    stored.await.unwrap();
    assert_eq!(rig.node(id).fingerprint.macs.len(), 3);
    rig.central.nodes.quarantine(id, &ordered(Verb::Quarantine)).await.unwrap();
    assert_eq!(rig.node(id).fingerprint.macs, BTreeSet::from([machine.mac]));
    assert_eq!(rig.central.boot.node_of_mac(invented(1)), None);
}

#[test]
fn volume_transfers_of_one_node_leave_room_for_others() {
    /// All places for transfers of the agent API.
    const ALL: usize = 64;
    let world = World::new("approve");
    let owner = Compromised::new(&world, 1);
    let greedy = Compromised::new(&world, 2);
    let content = world.path("large.iso");
    // The beginning of an ISO 9660 image (ECMA-119, 8.1).
    let mut image = vec![0; 64 << 20];
    image[16 * 2048..][..7].copy_from_slice(b"\x01CD001\x01");
    fs::write(&content, image).unwrap();
    let added = world.meshd(&["volume", "add", content.to_str().unwrap(), "--name", "large.iso"]);
    assert!(added.status.success(), "{}", stderr(&added));
    let digest = String::from_utf8(added.stdout).unwrap().trim().to_owned();
    let volume = format!("[[volume]]\nname = \"root\"\nformat = \"iso\"\ndigest = \"{digest}\"");
    owner.attacker.run(async {
        let mut links = Vec::new();
        for (name, node) in [("own", &owner), ("other", &greedy)] {
            let mut link = node.link(facts("ready")).await;
            node.report_check(&mut link, "kvm", None).await;
            until_online(&world, node);
            create_vm(&world, name, &volume, &["--node", &node.own.boot.node.to_string()]).unwrap();
            links.push(link);
        }
        let request = format!("GET {VOLUMES_PATH}/{digest} HTTP/1.1\r\nhost: x\r\n\r\n");
        let begin = async |node: &Compromised<'_>| {
            let mut stream = node.attacker.dial(&node.identity).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.flush().await.unwrap();
            let mut head = [0; 12];
            stream.read_exact(&mut head).await.unwrap();
            (String::from_utf8_lossy(&head).into_owned(), stream)
        };
        // None of these reads what it asked for.
        let mut held = Vec::new();
        let mut accepted = 0;
        for _ in 0..ALL {
            let (head, stream) = begin(&greedy).await;
            accepted += usize::from(head.ends_with("206"));
            held.push(stream);
        }
        assert!((1..=ALL).contains(&accepted), "{accepted}");
        let (head, _stream) = begin(&owner).await;
        assert_eq!(head, "HTTP/1.1 206", "{accepted} transfers of the other node");
    });
}

#[test]
fn link_from_leased_address_of_another_node_keeps_it_from_no_boot() {
    let mut world = World::new("auto");
    let victim = PxeNode::new(&world, 2);
    victim.power_on().unwrap();
    let address = victim.address.get().expect("an address");
    victim.host().ip(&["link", "set", "eth0", "down"]).unwrap();
    // After a restart, the address of the machine is not bound: it is off.
    world.kill();
    world.start();
    let node = Compromised::of(Attacker::at(&world, address), &world, 1);
    let link = node.attacker.run(node.link(Facts::default()));
    let victim = PxeNode::new(&world, 2);
    victim.host().ip(&["link", "set", "eth0", "up"]).unwrap();
    let script = victim.power_on().expect("loader and script reach the machine");
    assert!(script.overlay().is_some(), "{}", script.0);
    eventually("an alarm names both", || {
        let events = world.events("boot_impersonated");
        let names = |event: &Value| {
            event["detail"].as_str().unwrap().contains(&format!("{address}, which is leased to"))
        };
        if events.iter().any(names) { Ok(()) } else { Err(format!("{events:?}")) }
    });
    drop(link);
}

/// The begin of the line that the attacker wants the operator to read.
const FORGED_LINE: &str = "2026-01-01T00:00:00.000000Z  INFO forged: ordered actor=uid:0";

fn assert_not_forged(place: &str, text: &str) {
    assert!(text.contains("forged: ordered"), "{place} does not show the name: {text}");
    assert!(text.lines().all(|line| !line.starts_with(FORGED_LINE)), "{place}: {text}");
}

#[test]
fn foreign_text_adds_no_line_to_log_or_terminal() {
    let mut world = World::prepared("auto");
    let name = format!("x\n{FORGED_LINE}");
    let text = fs::read_to_string(&world.site).unwrap();
    let (before, rest) = text.split_once("overlays_dir = \"").unwrap();
    let (_, rest) = rest.split_once('"').unwrap();
    let folder = world.path("overlays/wrong/rootfs");
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("../overlay.toml"), "").unwrap();
    // The name has a control character: a fault that names the file.
    fs::write(folder.join(name.replace('/', "-")), "").unwrap();
    fs::write(&world.site, format!("{before}overlays_dir = \"overlays\"{rest}")).unwrap();
    let checked = world.meshd(&["check"]);
    assert_not_forged("a fault", &stderr(&checked));

    fs::write(&world.site, text).unwrap();
    world.start();
    let refused = world.meshd(&["node", "show", &format!("[{name}")]);
    assert_not_forged("an error of the command line", &stderr(&refused));
    let refused = world.meshd(&["vm", "show", &name]);
    assert_not_forged("a refusal", &stderr(&refused));
    assert_not_forged("the log", &world.log_text());
}
