//! Is a node ready? Its checks of this boot say so, when it tells them and when an operator asks; those of an earlier boot do not.

use super::rig::{Machine, Rig, ordered};
use crate::world::World;
use meshd::{
    fleet::{Exchange, Phase, Stage, Verb},
    id::BootSessionId,
    serve::central::OperateError,
    wire::{Check, CheckReport, CheckStatus, FromAgent},
};

fn report(session: Option<BootSessionId>, status: CheckStatus) -> CheckReport {
    let text = String::new;
    let check = Check { name: "kvm".into(), status, detail: text(), remediation: text(), unproven: false };
    CheckReport { checks: vec![check], session, ..CheckReport::default() }
}

fn told(session: Option<BootSessionId>, status: CheckStatus) -> FromAgent {
    FromAgent::Checks(Box::new(report(session, status)))
}

#[tokio::test]
async fn checks_of_an_earlier_boot_make_no_node_ready_and_are_void_when_it_boots_again() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Link).await;
    let (id, first) = (machine.id(), machine.session());
    assert_eq!(rig.node(id).unproven().as_deref().map(|why| why.contains("have not run")), Some(true));
    assert!(machine.say(told(Some(BootSessionId([9; 12])), CheckStatus::Pass)).await);
    assert_eq!(rig.node(id).phase, Phase::Degraded, "checks of a boot that nobody knows");
    assert!(machine.say(told(Some(first), CheckStatus::Pass)).await);
    assert_eq!((rig.node(id).phase, rig.node(id).unproven()), (Phase::Online, None));

    // It is switched off and on; what its old agent said last arrives late.
    let old = machine.link;
    machine.link = None;
    machine.boot(Stage::Dhcp).await;
    rig.clock.turn(meshd::fleet::SESSION_WINDOW);
    machine.dhcp(Exchange::Firmware).await;
    machine.ask_script().await;
    let second = machine.session();
    assert_ne!(first, second);
    assert!(rig.node(id).valid_checks().is_none(), "{:?}", rig.node(id).evidence);
    machine.link = old;
    machine.say(told(Some(first), CheckStatus::Pass)).await;
    machine.say(told(None, CheckStatus::Pass)).await;
    let reached =
        rig.central.store().read(|model| model.newest_session(machine.mac).expect("it boots").reached(Stage::Online));
    assert_eq!(reached, None, "the new boot is not online by the old one's word");
    assert!(rig.node(id).unproven().is_some());
}

#[tokio::test]
async fn an_operator_asks_and_gets_what_ran_after_the_question() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let (id, by) = (machine.id(), ordered(Verb::Doctor));
    let mut asked = machine.asked.take().expect("a link");
    let link = machine.link.expect("a link");
    let (said, answer) = tokio::join!(rig.central.node_doctor(id, &by), async {
        let asked = asked.recv().await.expect("a request");
        // What ran before the question is no answer to it.
        rig.central.link_message(link, told(None, CheckStatus::Pass)).await.expect("taken");
        let fresh = CheckReport { asked: Some(asked), ..report(None, CheckStatus::Fail) };
        rig.central.link_message(link, FromAgent::Checks(Box::new(fresh))).await
    });
    answer.expect("taken");
    let said = said.expect("an answer");
    assert_eq!((said.failures, said.checks.len(), said.session), (1, 1, Some(machine.session())));
    assert_eq!(rig.node(id).phase, Phase::Degraded);
    machine.power_off().await;
    let refused = rig.central.node_doctor(id, &by).await;
    assert!(matches!(refused, Err(OperateError::NotLinked { .. })), "{refused:?}");
}
