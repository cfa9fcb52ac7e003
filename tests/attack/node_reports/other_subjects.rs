//! A compromised node names what belongs to another node: an order, a VM, a console. It also names
//! orders that nobody gave.

use super::{Compromised, at_terminal, create_vm, phase_of, until_online};
use crate::{
    attack::client::Link,
    work::workloads::{containers::add_image, facts, vms_report},
    world::{World, eventually, stderr},
};
use meshd_proto::{
    ActionId, ActionOutcome, CONSOLE_PATH, FromAgent, FromCentral, Heartbeat, NodeReport,
    SectionReport, SpecEntry,
    container::ContainerUpdate,
    vm::{ConsoleId, ReportedVmState, VmReport, VmUpdate},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// An order that nobody gave.
const NO_ACTION: ActionId = ActionId(u64::MAX);

async fn online(world: &World, node: &Compromised<'_>) -> Link {
    let mut link = node.link(facts("ready")).await;
    node.report_check(&mut link, "kvm", None).await;
    until_online(world, node);
    link
}

/// Waits until meshd has handled what a link said before.
async fn handled(link: &mut Link) {
    link.say(&FromAgent::ActionDone { id: NO_ACTION, outcome: ActionOutcome::Done }).await;
    acknowledged(link, NO_ACTION).await;
}

async fn acknowledged(link: &mut Link, wanted: ActionId) {
    loop {
        match link.hear().await {
            Some(FromCentral::Acknowledged { id }) if id == wanted => return,
            message => assert!(message.is_some(), "the link ended"),
        }
    }
}

/// The generation of the next entry about a VM.
async fn next_vm_entry(link: &mut Link) -> u64 {
    loop {
        match link.hear().await {
            Some(FromCentral::Spec(spec)) if matches!(spec.entry, SpecEntry::Vms(_)) => {
                return spec.generation;
            }
            message => assert!(message.is_some(), "the link ended"),
        }
    }
}

#[test]
fn action_outcome_of_another_node_is_ignored() {
    let world = World::new("approve");
    let owner = Compromised::new(&world, 1);
    let liar = Compromised::new(&world, 2);
    owner.attacker.run(async {
        let mut own = online(&world, &owner).await;
        let mut lying = online(&world, &liar).await;
        let id = owner.own.boot.node.to_string();
        let mut reboot = at_terminal(&world, &["node", "reboot", &id, "--yes"]);
        let order = loop {
            match own.hear().await {
                Some(FromCentral::Action(order)) => break order.id,
                message => assert!(message.is_some(), "the link ended"),
            }
        };
        let outcome = ActionOutcome::Failed { reason: "forged".to_owned() };
        lying.say(&FromAgent::ActionDone { id: order, outcome }).await;
        acknowledged(&mut lying, order).await;
        let events = format!("{:?}", world.events("node_action"));
        assert!(!events.contains("forged"), "{events}");
        own.say(&FromAgent::ActionDone { id: order, outcome: ActionOutcome::Done }).await;
        acknowledged(&mut own, order).await;
        let events = format!("{:?}", world.events("node_action"));
        assert!(events.contains(&format!("action {}: Done", order.0)), "{events}");
        let _ = reboot.kill();
        reboot.wait().unwrap();
    });
}

#[test]
fn vm_of_another_node_is_not_released_by_a_report() {
    let world = World::new("approve");
    let owner = Compromised::new(&world, 1);
    let liar = Compromised::new(&world, 2);
    owner.attacker.run(async {
        let mut own = online(&world, &owner).await;
        let mut lying = online(&world, &liar).await;
        let id = owner.own.boot.node.to_string();
        let vm = create_vm(&world, "victim", "", &["--node", &id]).unwrap();
        let uuid = vm["uuid"].as_str().unwrap().parse().unwrap();
        let running = VmReport::new(uuid, "victim".parse().unwrap(), ReportedVmState::Running);
        own.say(&vms_report(VmUpdate::All { vms: vec![running] })).await;
        eventually("the VM runs", || match phase_of(&world, "victim").as_str() {
            "running" => Ok(()),
            other => Err(other.to_owned()),
        });
        let removed = world.meshd(&["vm", "delete", "victim", "--yes"]);
        assert!(removed.status.success(), "{}", stderr(&removed));
        lying.say(&vms_report(VmUpdate::Released { uuid })).await;
        handled(&mut lying).await;
        let vms = || world.json(&["vm", "list", "-o", "json"]).as_array().unwrap().len();
        assert_eq!(vms(), 1, "its node has not released it");
        own.say(&vms_report(VmUpdate::Released { uuid })).await;
        handled(&mut own).await;
        assert_eq!(vms(), 0);
    });
}

#[test]
fn console_is_taken_only_by_the_node_of_its_vm() {
    let world = World::new("approve");
    let owner = Compromised::new(&world, 1);
    let thief = Compromised::new(&world, 2);
    owner.attacker.run(async {
        let mut own = online(&world, &owner).await;
        let _thief_link = online(&world, &thief).await;
        let id = owner.own.boot.node.to_string();
        create_vm(&world, "victim", "", &["--node", &id]).unwrap();
        let mut console = at_terminal(&world, &["vm", "console", "victim"]);
        let order = loop {
            match own.hear().await {
                Some(FromCentral::Console(order)) => break order,
                message => assert!(message.is_some(), "the link ended"),
            }
        };
        assert_eq!(connect(&thief, order.console).await, "HTTP/1.1 404");
        assert_eq!(connect(&owner, order.console).await, "HTTP/1.1 101");
        let _ = console.kill();
        console.wait().unwrap();
    });
}

/// Connects a console from a node. Returns the beginning of the answer.
async fn connect(node: &Compromised<'_>, console: ConsoleId) -> String {
    let mut stream = node.attacker.dial(&node.identity).await.unwrap();
    let request = format!(
        "GET {CONSOLE_PATH}/{} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        console.0
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
    let mut head = [0; 12];
    stream.read_exact(&mut head).await.unwrap();
    String::from_utf8_lossy(&head).into_owned()
}

#[test]
fn program_of_an_admin_is_connected_only_by_the_node_of_its_replica() {
    let world = World::new("approve");
    add_image(&world.path("state/blobs/volumes"));
    let owner = Compromised::new(&world, 1);
    let thief = Compromised::new(&world, 2);
    owner.attacker.run(async {
        let mut facts = facts("ready");
        facts.container_runtime = Some("crun 1.14".to_owned());
        let mut own = owner.link(facts).await;
        owner.report_check(&mut own, "kvm", None).await;
        until_online(&world, &owner);
        let _thief_link = online(&world, &thief).await;
        own.say(&FromAgent::Report(NodeReport {
            observed: 0,
            state: SectionReport::Containers(ContainerUpdate::All { replicas: Vec::new() }),
        }))
        .await;
        handled(&mut own).await;
        let ran = world.meshd(&["container", "run", "victim", "server"]);
        assert!(ran.status.success(), "{}", stderr(&ran));
        for verb in [&["exec", "victim", "--", "/bin/sh"][..], &["logs", "victim", "--follow"]] {
            let mut command = at_terminal(&world, &[&["container"], verb].concat());
            let console = loop {
                match own.hear().await {
                    Some(FromCentral::ContainerExec(order)) => break order.shell.console,
                    Some(FromCentral::ContainerLogs(order)) => break order.console,
                    message => assert!(message.is_some(), "the link ended"),
                }
            };
            assert_eq!(connect(&thief, console).await, "HTTP/1.1 404", "{verb:?}");
            assert_eq!(connect(&owner, console).await, "HTTP/1.1 101", "{verb:?}");
            let _ = command.kill();
            command.wait().unwrap();
        }
    });
}

#[test]
fn generation_that_was_not_sent_counts_as_the_last_one() {
    let world = World::new("approve");
    let node = Compromised::new(&world, 1);
    node.attacker.run(async {
        let mut link = online(&world, &node).await;
        let report = |observed| {
            let state = SectionReport::Vms(VmUpdate::All { vms: Vec::new() });
            FromAgent::Report(NodeReport { observed, state })
        };
        link.say(&report(u64::MAX)).await;
        handled(&mut link).await;
        create_vm(&world, "one", "", &["--node", &node.own.boot.node.to_string()]).unwrap();
        let sent = next_vm_entry(&mut link).await;
        // It has taken the order and does not follow it: the order is repeated.
        link.say(&report(sent)).await;
        link.say(&FromAgent::Heartbeat(Heartbeat::default())).await;
        assert!(next_vm_entry(&mut link).await > sent);
    });
}
