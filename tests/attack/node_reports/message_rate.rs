//! A compromised node sends messages without a pause. Each could cost a write of the store.

use super::Compromised;
use crate::{
    attack::evidence::size,
    boot::sessions::rig::{Machine, Rig, ordered},
    world::{World, single_orders::SingleOrders as _},
};
use meshd_model::fleet::{Stage, Verb};
use meshd_proto::{
    ActionId, ActionOutcome, Check, CheckReport, CheckStatus, Facts, FromAgent, FromCentral,
};
use std::time::{Duration, Instant};

fn outcome(id: u64) -> FromAgent {
    FromAgent::ActionDone { id: ActionId(id), outcome: ActionOutcome::Done }
}

#[test]
fn messages_above_the_rate_of_a_node_wait_and_others_do_not() {
    /// Those at once, and 6 more.
    const SENT: u64 = 70;
    let world = World::new("approve");
    let greedy = Compromised::new(&world, 1);
    let other = Compromised::new(&world, 2);
    greedy.attacker.run(async {
        let mut own = other.link(Facts::default()).await;
        let mut flood = greedy.link(Facts::default()).await;
        let begun = Instant::now();
        for id in 0..SENT {
            flood.say(&outcome(id)).await;
        }
        own.say(&outcome(0)).await;
        while !matches!(own.hear().await, Some(FromCentral::Acknowledged { .. })) {}
        let served = begun.elapsed();
        let mut last = None;
        while last != Some(ActionId(SENT - 1)) {
            match flood.hear().await {
                Some(FromCentral::Acknowledged { id }) => last = Some(id),
                message => assert!(message.is_some(), "the link ended: a message waits only"),
            }
        }
        // Bounds from below: a busy machine only takes longer.
        let all = begun.elapsed();
        assert!(all >= Duration::from_secs(5), "{SENT} messages in {all:?}");
        assert!(served < all, "the other node waited {served:?}");
        // Another link does not start with new limits.
        drop(flood);
        let mut flood = greedy.link(Facts::default()).await;
        for id in 0..3 {
            flood.say(&outcome(id)).await;
        }
        let mut last = None;
        while last != Some(ActionId(2)) {
            if let Some(FromCentral::Acknowledged { id }) = flood.hear().await {
                last = Some(id);
            }
        }
        let all = begun.elapsed();
        assert!(all >= Duration::from_secs(9), "{SENT} messages, a hello and 3 more in {all:?}");
    });
}

#[tokio::test]
async fn repeated_checks_cost_no_write() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let report = |detail: &str| {
        let check = Check {
            name: "kvm".to_owned(),
            status: CheckStatus::Fail,
            detail: detail.to_owned(),
            remediation: "enable it".to_owned(),
            unproven: false,
        };
        let checks = vec![check];
        FromAgent::Checks(Box::new(CheckReport { checks, ..CheckReport::default() }))
    };
    assert!(machine.say(report("first")).await);
    let store = world.path("state/store");
    let before = size(&store);
    for _ in 0..20 {
        rig.clock.turn(Duration::from_millis(100));
        assert!(machine.say(report("first")).await);
    }
    assert_eq!(size(&store), before, "nothing was written");
    assert!(machine.say(report("second")).await);
    assert!(size(&store) > before, "another result is");
}

#[tokio::test]
async fn repeated_outcome_of_an_action_costs_no_write() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    machine.boot(Stage::Online).await;
    let id = machine.id();
    let nodes = rig.central.nodes.clone();
    let reboot = tokio::spawn(async move { nodes.reboot(id, &ordered(Verb::Reboot)).await });
    let action = loop {
        let sent = rig.central.store().read(|model| {
            let mut open = model.open_operations_of(id).map(|(_, record)| record);
            open.find(|record| record.is_unanswered()).and_then(|record| record.action)
        });
        match sent {
            Some(action) => break action,
            None => tokio::task::yield_now().await,
        }
    };
    // The first one may be there before its order is.
    for _ in 0..2 {
        assert!(machine.say(outcome(action)).await);
    }
    reboot.await.unwrap().unwrap();
    // The order may be added after two outcomes that were too early.
    assert!(machine.say(outcome(action)).await);
    let store = world.path("state/store");
    let before = size(&store);
    let events = rig.events("node_action").len();
    for _ in 0..20 {
        assert!(machine.say(outcome(action)).await);
    }
    assert_eq!((size(&store), rig.events("node_action").len()), (before, events));
}
