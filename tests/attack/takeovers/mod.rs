//! Somebody boots or enrols as a node that was online a moment ago, while its link is interrupted:
//! with its MAC address, its UUID and its address. meshd cannot distinguish them from the node
//! after a power cycle.

mod invented_uuid;
mod warm_boots;

use crate::{
    boot::sessions::rig::{ENDPOINT, Machine, Rig, ordered},
    world::World,
};
use meshd_model::fleet::{BootStatus, ConditionKind, Phase, Stage, Verb};
use meshd_store::StoreError;
use meshd_trust::{TokenRecord, enrol_token};
use meshd_types::NodeId;
use std::time::Duration;

/// `[agent].offline_after` of the site, and a second more.
const SILENT: Duration = Duration::from_secs(21);
const WAIT: &str = "# refusal recently_online";

/// The newest boot of a node whose reboot is ordered.
async fn order_reboot(rig: &Rig, id: NodeId) {
    let running = rig.node(id).boot.expect("a boot session");
    let order = rig.central.store().commit(|tx| {
        tx.edit_session(running, |session| session.reboot_ordered = true);
        Ok::<_, StoreError>(())
    });
    order.await.unwrap();
}

fn is_alarm_raised(machine: &Machine<'_>) -> bool {
    machine.rig.condition(machine.id(), ConditionKind::CertificateReplaced).is_some()
}

/// iPXE repeats DHCP and asks again, as its script says.
async fn ask_again(machine: &mut Machine<'_>) {
    machine.step(Stage::IpxeDhcp).await;
    machine.step(Stage::Script).await;
}

/// Continues after the script.
async fn go_on(machine: &mut Machine<'_>, furthest: Stage) {
    for stage in Stage::ALL.into_iter().filter(|stage| *stage > Stage::Script && *stage <= furthest)
    {
        machine.rig.clock.turn(Duration::from_secs(1));
        machine.step(stage).await;
    }
}

/// Seconds that the script sleeps.
fn sleeps(machine: &Machine<'_>) -> u64 {
    let line = machine.script.lines().find_map(|line| line.strip_prefix("sleep "));
    line.expect("the script waits").parse().unwrap()
}

#[tokio::test]
async fn unannounced_boot_of_online_node_waits_until_it_is_silent() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    machine.lose_power().await;
    machine.reset(Stage::Script).await;
    let id = machine.id();
    assert!(
        machine.script.contains(WAIT) && !machine.script.contains("/overlay/"),
        "{}",
        machine.script
    );
    assert_eq!(rig.node(id).phase, Phase::Online, "nothing of the node has changed");
    assert!(sleeps(&machine) < SILENT.as_secs(), "the remaining time: {}", machine.script);
    let boot = rig.central.store().read(|model| model.session(machine.session()).cloned()).unwrap();
    assert_eq!(
        (boot.standing(false), boot.waits[0].code.as_str()),
        (BootStatus::Waiting, "recently_online")
    );
    assert!(rig.events("boot_refused").is_empty(), "a wait is no fault");
    rig.pass(Duration::from_secs(sleeps(&machine))).await;
    ask_again(&mut machine).await;
    assert!(
        machine.script.contains("/overlay/"),
        "it continues without an operator: {}",
        machine.script
    );
    assert_eq!(machine.session(), boot.id, "in the same boot session");
    go_on(&mut machine, Stage::Online).await;
    assert_eq!(rig.node(id).phase, Phase::Online);
}

#[tokio::test]
async fn boot_is_refused_when_the_link_of_the_node_returns() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut node = Machine { answers: true, ..Machine::new(&rig, 1) };
    node.boot(Stage::Online).await;
    let running = rig.node(node.id());
    node.lose_power().await;
    // With the same NIC, UUID and address.
    let mut thief = Machine::new(&rig, 1);
    thief.reset(Stage::Script).await;
    assert!(thief.script.contains(WAIT), "{}", thief.script);
    // The agent reconnects in its own boot session.
    node.link_up().await;
    rig.clock.turn(Duration::from_secs(10));
    assert!(node.heartbeat(0).await);
    rig.pass(SILENT - Duration::from_secs(10)).await;
    ask_again(&mut thief).await;
    assert!(thief.script.contains("# refusal no_session"), "{}", thief.script);
    assert!(rig.condition(node.id(), ConditionKind::BootImpersonated).is_some(), "an alarm");
    assert_eq!(rig.node(node.id()).certificates, running.certificates, "the node goes on");
}

#[tokio::test]
async fn node_online_at_stop_waits_after_restart_and_offline_node_does_not() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut online = Machine::new(&rig, 1);
    let mut offline = Machine::new(&rig, 2);
    offline.boot(Stage::Online).await;
    offline.lose_power().await;
    rig.pass(SILENT).await;
    online.boot(Stage::Online).await;
    assert_eq!(rig.node(offline.id()).phase, Phase::Offline);
    drop((online, offline));
    let rig = rig.restarted(&world);
    let mut online = Machine::new(&rig, 1);
    let mut offline = Machine::new(&rig, 2);
    offline.reset(Stage::Script).await;
    assert!(offline.script.contains("/overlay/"), "it was off: {}", offline.script);
    online.reset(Stage::Script).await;
    assert!(online.script.contains(WAIT), "its agent may be about to reconnect: {}", online.script);
    rig.pass(SILENT).await;
    ask_again(&mut online).await;
    assert!(online.script.contains("/overlay/"), "no longer than offline_after: {}", online.script);
}

#[tokio::test]
async fn announced_boot_of_online_node_does_not_wait() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut first = Machine::new(&rig, 1);
    let mut second = Machine::new(&rig, 2);
    first.boot(Stage::Online).await;
    first.power_off().await;
    first.reset(Stage::Script).await;
    assert!(first.script.contains("/overlay/"), "its agent said goodbye: {}", first.script);
    second.boot(Stage::Online).await;
    order_reboot(&rig, second.id()).await;
    second.reset(Stage::Script).await;
    assert!(second.script.contains("/overlay/"), "an operator ordered it: {}", second.script);
}

#[tokio::test]
async fn goodbye_is_void_when_the_agent_links_again() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    machine.power_off().await;
    machine.link_up().await;
    machine.lose_power().await;
    machine.reset(Stage::Script).await;
    assert!(machine.script.contains(WAIT), "only its agent was restarted: {}", machine.script);
}

#[tokio::test]
async fn certificate_replaced_shortly_after_online_raises_an_alarm() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    assert!(!is_alarm_raised(&machine), "the first one replaces none");
    rig.pass(Duration::from_secs(600)).await;
    machine.reset(Stage::Online).await;
    assert!(!is_alarm_raised(&machine), "it was off for ten minutes");
    rig.pass(Duration::from_secs(5)).await;
    machine.reset(Stage::Script).await;
    // Longer than `offline_after`: the enrolment alone shows nothing.
    rig.pass(SILENT).await;
    ask_again(&mut machine).await;
    go_on(&mut machine, Stage::Enrolled).await;
    assert!(is_alarm_raised(&machine), "nobody ordered this reboot");
}

#[tokio::test]
async fn takeover_raises_the_alarm_after_a_restart_of_meshd() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    machine.reset(Stage::Script).await;
    assert!(machine.script.contains(WAIT), "{}", machine.script);
    let rig = rig.restarted(&world);
    let mut machine = Machine::new(&rig, 1);
    rig.pass(SILENT).await;
    ask_again(&mut machine).await;
    go_on(&mut machine, Stage::Enrolled).await;
    assert!(is_alarm_raised(&machine), "its first request was before the restart");
}

#[tokio::test]
async fn second_certificate_in_a_boot_session_raises_the_alarm() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let (text, hash) = enrol_token::mint([7; 32]);
    let id = machine.id();
    let session = machine.session();
    let expires_at = rig.central.now().after(Duration::from_secs(900));
    let stored = rig.central.store().commit(|tx| {
        tx.put_token(TokenRecord::new(hash, id, session, expires_at));
        Ok::<_, StoreError>(())
    });
    stored.await.unwrap();
    machine.token = Some(text.expose().clone());
    machine.lose_power().await;
    machine.enrol().await;
    assert!(is_alarm_raised(&machine), "only this boot has a link");
}

#[tokio::test]
async fn token_made_before_the_last_enrolment_raises_the_alarm() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let basis = rig.node(machine.id()).basis;
    machine.lose_power().await;
    let mut tokens = Vec::new();
    for _ in 0..2 {
        let life = Duration::from_secs(600);
        let by = ordered(Verb::TokenCreate);
        let made =
            rig.central.enrolment.create_token(basis.clone(), life, ENDPOINT.address, &by).await;
        tokens.push(made.unwrap().0.boot);
        rig.clock.turn(Duration::from_secs(1));
    }
    for (boot, is_raised) in tokens.into_iter().zip([false, true]) {
        machine.enrol_with(boot.session, boot.token.expect("a token")).await;
        assert_eq!(
            is_alarm_raised(&machine),
            is_raised,
            "the first one is an order to enrol again"
        );
        rig.clock.turn(Duration::from_secs(1));
    }
}

#[tokio::test]
async fn ordered_reboot_that_takes_two_boot_sessions_raises_no_alarm() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    order_reboot(&rig, machine.id()).await;
    machine.reset(Stage::Script).await;
    rig.pass(Duration::from_secs(5)).await;
    machine.reset(Stage::Enrolled).await;
    assert!(!is_alarm_raised(&machine));
}
