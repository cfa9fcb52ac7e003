//! Is a node ready? Its checks of this boot say so, when it tells them and when an operator asks;
//! those of an earlier boot do not.

use super::rig::{Machine, Rig, ordered};
use crate::world::World;
use meshd_central::LinkError;
use meshd_model::fleet::{ConditionKind, DhcpClient, Phase, Stage, Verb};
use meshd_proto::{Check, CheckReport, CheckStatus, FromAgent};
use meshd_types::BootSessionId;
use std::time::Duration;

fn report(session: Option<BootSessionId>, status: CheckStatus) -> CheckReport {
    let text = String::new;
    let check =
        Check { name: "kvm".into(), status, detail: text(), remediation: text(), unproven: false };
    CheckReport { checks: vec![check], session, ..CheckReport::default() }
}

fn checks_message(session: Option<BootSessionId>, status: CheckStatus) -> FromAgent {
    FromAgent::Checks(Box::new(report(session, status)))
}

#[tokio::test]
async fn checks_of_an_earlier_boot_do_not_make_a_node_ready() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Link).await;
    let id = machine.id();
    let first = machine.session();
    assert_eq!(
        rig.node(id).unproven().as_deref().map(|why| why.contains("have not run")),
        Some(true)
    );
    assert!(machine.say(checks_message(Some(BootSessionId([9; 12])), CheckStatus::Pass)).await);
    assert_eq!(rig.node(id).phase, Phase::Enrolling, "checks of a boot that nobody knows");
    assert!(machine.say(checks_message(Some(first), CheckStatus::Pass)).await);
    assert_eq!((rig.node(id).phase, rig.node(id).unproven()), (Phase::Online, None));

    // It is switched off and on; what its old agent said last arrives late.
    let old = machine.link;
    machine.link = None;
    machine.boot(Stage::Dhcp).await;
    rig.clock.turn(meshd_model::fleet::SESSION_WINDOW);
    machine.dhcp(DhcpClient::Firmware).await;
    machine.ask_script().await;
    let second = machine.session();
    assert_ne!(first, second);
    assert!(rig.node(id).valid_checks().is_none(), "{:?}", rig.node(id).evidence);
    machine.link = old;
    machine.say(checks_message(Some(first), CheckStatus::Pass)).await;
    machine.say(checks_message(None, CheckStatus::Pass)).await;
    let reached = rig
        .central
        .store()
        .read(|model| model.newest_session(machine.mac).expect("it boots").reached(Stage::Online));
    assert_eq!(reached, None, "the new boot is not online by the old one's word");
    assert!(rig.node(id).unproven().is_some());
}

#[tokio::test]
async fn node_doctor_returns_only_checks_run_after_the_request() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let by = ordered(Verb::Doctor);
    let mut check_requests = machine.check_requests.take().expect("a link");
    let link = machine.link.expect("a link");
    let (report_or_error, answer) = tokio::join!(rig.central.links.node_doctor(id, &by), async {
        let request_id = check_requests.recv().await.expect("a request");
        // What ran before the question is no answer to it.
        rig.central
            .agents
            .link_message(link, checks_message(None, CheckStatus::Pass))
            .await
            .expect("taken");
        let fresh = CheckReport { request_id: Some(request_id), ..report(None, CheckStatus::Fail) };
        rig.central.agents.link_message(link, FromAgent::Checks(Box::new(fresh))).await
    });
    answer.expect("taken");
    let report_or_error = report_or_error.expect("an answer");
    assert_eq!(
        (report_or_error.failures, report_or_error.checks.len(), report_or_error.session),
        (1, 1, Some(machine.session()))
    );
    assert_eq!(rig.node(id).phase, Phase::Degraded);
    machine.power_off().await;
    let refused = rig.central.links.node_doctor(id, &by).await;
    assert!(matches!(refused, Err(LinkError::NotLinked { .. })), "{refused:?}");
}

#[tokio::test]
async fn agent_of_the_previous_version_links_and_is_shown_as_outdated() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = Machine::new(&rig, 1);
    node.version = meshd_proto::OLDEST;
    node.boot(Stage::Online).await;
    let id = node.id();
    assert_eq!(rig.node(id).phase, Phase::Online);
    let shown = rig.condition(id, ConditionKind::AgentOutdated).expect("it says so");
    assert!(shown.contains("has protocol version 1, this meshd has 2"), "{shown}");
    node.power_off().await;
    node.version = meshd_proto::VERSION;
    node.link_up().await;
    assert_eq!(rig.condition(id, ConditionKind::AgentOutdated), None);
    assert!(
        !meshd_proto::is_supported_version(0)
            && !meshd_proto::is_supported_version(meshd_proto::VERSION + 1)
    );
}

#[tokio::test]
async fn node_without_recent_checks_is_degraded_while_linked() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = Machine::new(&rig, 1);
    node.boot(Stage::Online).await;
    let pass = async |node: &Machine<'_>, seconds: u64| {
        for _ in 0..seconds / 10 {
            rig.clock.turn(Duration::from_secs(10));
            assert!(node.heartbeat(0).await);
        }
        rig.central.watch().await;
    };
    pass(&node, 15 * 60).await;
    assert_eq!(rig.node(node.id()).phase, Phase::Online);
    pass(&node, 3 * 60).await;
    assert_eq!(rig.node(node.id()).phase, Phase::Degraded);
    assert!(
        rig.condition(node.id(), ConditionKind::CheckFailed)
            .is_some_and(|why| why.contains("16 minutes"))
    );
    node.step(Stage::Online).await;
    assert_eq!(rig.node(node.id()).phase, Phase::Online);
}
