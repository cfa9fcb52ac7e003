//! Warm reboot, from the order to the node that is online again, without firmware and loader.

use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    world::{DEADLINE, World, unpack},
};
use meshd_api::BulkTarget;
use meshd_central::{AgentApiError, OverlayTransfer, TaskError, TaskRequest, TaskTarget};
use meshd_model::{
    fleet::{ColdBoot, DhcpClient, Outcome, Phase, Stage, Verb, WarmRebootResult},
    operations::{NodeOperation, NodeOperationState, NodeOrder},
    work::task::Launcher,
};
use meshd_proto::{
    ActionId, ActionOutcome, FromAgent, VERSION,
    task::TaskUser,
    warm_boot::{
        ColdBootCause, WarmBootAnswer, WarmBootPlan, WarmBootReport, WarmBootRequest, WarmBootStep,
    },
};
use meshd_trust::{Peer, Role};
use meshd_types::{BootSessionId, OperationId};
use std::time::Duration;

/// Lets the nodes of a world boot warm.
pub fn allow_warm_boots(world: &World) {
    world.edit_site("[profiles.discovery]\n", "[profiles.discovery]\nwarm = \"allow\"\n");
}

/// A node that runs, and what its agent does for a warm boot.
pub struct WarmNode<'a> {
    pub machine: Machine<'a>,
    peer: Peer,
}

impl<'a> WarmNode<'a> {
    pub async fn online(rig: &'a Rig, number: u8) -> Self {
        let mut machine = Machine::new(rig, number);
        machine.boot(Stage::Online).await;
        let peer = Self::peer(&machine);
        WarmNode { machine, peer }
    }

    /// The certificate of the agent.
    fn peer(machine: &Machine<'_>) -> Peer {
        let node = machine.rig.node(machine.id());
        let newest = node.certificates.last().cloned().expect("a certificate");
        Peer { node: node.id, serial: newest.serial, key: newest.key, expired: false }
    }

    /// An operator orders a warm reboot, and the agent accepts it.
    pub async fn order(&self) -> NodeOperation {
        let rig = self.machine.rig;
        let id = self.machine.id();
        let nodes = rig.central.nodes.clone();
        let ordering = tokio::spawn(async move {
            let target = BulkTarget { id, revision: None };
            let audit = ordered(Verb::Reboot);
            nodes.order(&[target], NodeOrder::WarmReboot, Role::Admin, &audit).await
        });
        let sent = async {
            loop {
                let found = rig.central.store().read(|model| {
                    let mut open = model.open_operations_of(id).map(|(_, record)| record.clone());
                    open.find(NodeOperation::is_unanswered)
                });
                if let Some(found) = found {
                    rig.central.store().read_acknowledged(|_| ()).await.expect("written");
                    return found;
                }
                tokio::task::yield_now().await;
            }
        };
        let sent = tokio::time::timeout(DEADLINE, sent).await.expect("it is sent");
        let action = ActionId(sent.action.expect("an action"));
        let outcome = ActionOutcome::Done;
        assert!(self.machine.say(FromAgent::ActionDone { id: action, outcome }).await);
        ordering.await.expect("no panic").unwrap_or_else(|_| panic!("the order is refused"));
        sent
    }

    pub async fn plan(&self) -> Result<WarmBootAnswer, AgentApiError> {
        let request = WarmBootRequest { version: VERSION };
        let client = std::net::IpAddr::from(self.machine.address).into();
        self.machine.rig.central.boot.plan_warm_boot(&self.peer, &request, &client).await
    }

    async fn expect_plan(&self) -> WarmBootPlan {
        match self.plan().await {
            Ok(WarmBootAnswer::Plan(plan)) => plan,
            other => panic!("no plan: {other:?}"),
        }
    }

    pub async fn planned_session(&self) -> BootSessionId {
        self.expect_plan().await.session
    }

    /// Opens the overlay, and reads nothing of it yet.
    pub async fn open_overlay(
        &self,
        session: BootSessionId,
    ) -> Result<OverlayTransfer, AgentApiError> {
        let step = WarmBootStep { version: VERSION, session };
        let client = std::net::IpAddr::from(self.machine.address).into();
        let boot = &self.machine.rig.central.boot;
        boot.open_warm_overlay(&self.peer, &step, &client).await
    }

    /// Fetches the overlay, and returns its token.
    pub async fn overlay(&self, session: BootSessionId) -> Result<String, AgentApiError> {
        let transfer = self.open_overlay(session).await?;
        let files = unpack::overlay(&transfer.pieces.concat());
        let part: serde_json::Value =
            serde_json::from_slice(&files["etc/meshd/boot.json"].1).expect("JSON");
        transfer.finish().await;
        assert_eq!(part["session"], session.to_string());
        Ok(part["token"].as_str().expect("a token").to_owned())
    }

    /// Is ordered to reboot warm, and starts its next boot.
    async fn start(&mut self) -> BootSessionId {
        self.order().await;
        let session = self.planned_session().await;
        self.machine.token = Some(self.overlay(session).await.expect("its overlay"));
        self.report(session, None).await.expect("it starts");
        session
    }

    pub async fn report(
        &self,
        session: BootSessionId,
        failure: Option<&str>,
    ) -> Result<(), AgentApiError> {
        self.report_as(Some(session), failure).await
    }

    /// Reports with or without a session.
    pub async fn report_as(
        &self,
        session: Option<BootSessionId>,
        failure: Option<&str>,
    ) -> Result<(), AgentApiError> {
        let failure = failure.map(str::to_owned);
        let cause =
            if failure.is_some() { ColdBootCause::KernelLoad } else { ColdBootCause::default() };
        let report = WarmBootReport { version: VERSION, session, failure, cause };
        let client = std::net::IpAddr::from(self.machine.address).into();
        self.machine.rig.central.boot.report_warm_boot(&self.peer, report, &client).await
    }
}

fn state(rig: &Rig, operation: OperationId, node: &WarmNode<'_>) -> NodeOperationState {
    let id = node.machine.id();
    rig.central
        .store()
        .read(|model| model.node_operation(operation, id).map(|record| record.state))
        .expect("a record")
}

/// Why the node booted cold after its last warm order.
fn cold_boot(rig: &Rig, node: &WarmNode<'_>) -> ColdBoot {
    match rig.node(node.machine.id()).warm_reboot.expect("a result").result {
        WarmRebootResult::Cold(cold) => cold,
        warm @ WarmRebootResult::Warm { .. } => panic!("{warm:?}"),
    }
}

#[tokio::test]
async fn warm_boot_comes_online_without_firmware_and_loader() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let mut node = WarmNode::online(&rig, 1).await;
    let former = rig.node(node.machine.id()).boot.expect("a boot");
    let sent = node.order().await;
    let plan = node.expect_plan().await;
    assert_eq!(plan.initrds.len(), 2, "initramfs and packages: {plan:?}");
    let words: Vec<&str> = plan.command_line.split(' ').collect();
    assert!(words.contains(&"apkovl=/apkovl.tar.gz") && words.contains(&"panic=10"), "{words:?}");
    assert!(words.iter().any(|word| word.starts_with("BOOTIF=01-")), "{words:?}");
    assert!(!plan.command_line.contains("overlay/"), "no URL of the overlay: {words:?}");

    // The node still runs its former boot: the order is not done, and its link may come again.
    rig.central.nodes.drive_operations().await;
    assert_eq!(state(&rig, sent.operation, &node), NodeOperationState::Running);
    assert_eq!(rig.node(node.machine.id()).boot, Some(former));
    node.machine.link_up().await;
    assert!(node.report(plan.session, None).await.is_err(), "its overlay is missing");

    node.machine.token = Some(node.overlay(plan.session).await.expect("its overlay"));
    node.report(plan.session, None).await.expect("it starts");
    let known = rig.node(node.machine.id());
    assert_eq!((known.boot, known.phase), (Some(plan.session), Phase::Booting));
    node.machine.lose_power().await;
    for stage in [Stage::OsDhcp, Stage::Modloop, Stage::Enrolled, Stage::Link, Stage::Online] {
        node.machine.step(stage).await;
    }
    rig.central.nodes.drive_operations().await;
    assert_eq!(state(&rig, sent.operation, &node), NodeOperationState::Done);
    let known = rig.node(node.machine.id());
    assert_eq!((known.phase, known.conditions.len()), (Phase::Online, 0), "{known:?}");
    let result = known.warm_reboot.expect("a result").result;
    assert_eq!(result, WarmRebootResult::Warm { session: plan.session });
    let boot = rig.central.store().read(|model| model.session(plan.session).cloned());
    let boot = boot.expect("a boot");
    assert_eq!(boot.outcome(), Outcome::Online);
    let firmware = [Stage::Dhcp, Stage::Loader, Stage::IpxeDhcp];
    assert!(firmware.iter().all(|stage| boot.reached(*stage).is_none()), "{:?}", boot.stages);
}

#[tokio::test]
async fn failed_warm_boot_is_followed_by_cold_ones_until_one_is_online() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let mut node = WarmNode::online(&rig, 1).await;
    node.order().await;
    let session = node.planned_session().await;
    node.report(session, Some("cannot load the kernel: kernel lockdown")).await.expect("recorded");
    let failed = rig.central.store().read(|model| model.session(session).cloned());
    let failed = failed.expect("a boot");
    assert!(failed.failure.is_some_and(|why| why.contains("lockdown")));
    let cold = |answer| match answer {
        Ok(WarmBootAnswer::Cold { reason }) => reason,
        other => panic!("not cold: {other:?}"),
    };
    let reason = cold(node.plan().await);
    assert!(reason.contains("did not come online"), "{reason}");
    let told = rig.events("node_action");
    assert!(told.iter().any(|event| event.detail.contains("lockdown")), "{told:?}");
    let result = cold_boot(&rig, &node);
    assert_eq!(result.cause, ColdBootCause::KernelLoad, "the first reason of an order counts");
    assert!(result.reason.contains("lockdown"), "{result:?}");

    // The firmware of the cold boot opens its own session.
    node.machine.boot(Stage::Online).await;
    assert_ne!(node.machine.session(), session);
    node.peer = WarmNode::peer(&node.machine);
    node.order().await;
    assert_ne!(node.planned_session().await, session);
}

#[tokio::test]
async fn failure_of_a_warm_boot_is_recorded_once_in_one_line() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let node = WarmNode::online(&rig, 1).await;
    node.order().await;
    for _ in 0..2 {
        node.report_as(None, Some("device in use\nby a guest")).await.expect("recorded");
    }
    let told = rig.events("node_action");
    let cold: Vec<_> = told.iter().filter(|event| event.detail.contains("in use")).collect();
    assert_eq!(cold.len(), 1, "{cold:?}");
    assert!(cold[0].detail.ends_with(r"device in use\nby a guest"), "{cold:?}");
    node.planned_session().await;
    assert!(node.report_as(None, Some("x")).await.is_err(), "it has a plan");
}

#[tokio::test]
async fn node_that_loads_a_warm_boot_gets_no_task() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let node = WarmNode::online(&rig, 1).await;
    node.order().await;
    node.planned_session().await;
    let request = TaskRequest {
        target: TaskTarget::Node(node.machine.id()),
        nodes: None,
        ranks_per_node: 1,
        launcher: Some(Launcher::None),
        user: TaskUser::Default,
        timeout_s: None,
        input_owner: None,
        argv: vec!["true".to_owned()],
    };
    match rig.central.tasks.run_task(request, &ordered(Verb::TaskRun)).await {
        Err(TaskError::NotFree { why, .. }) => assert!(why.contains("reboot"), "{why}"),
        other => panic!("it is not refused: {other:?}"),
    }
}

#[tokio::test]
async fn offline_node_starts_no_warm_boot_and_its_session_ends() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let mut node = WarmNode::online(&rig, 1).await;
    let former = node.machine.session();
    node.order().await;
    let session = node.planned_session().await;
    // The running system renews its lease, which is no step of the other boot.
    node.machine.dhcp(DhcpClient::Os).await;
    let boot = |id| rig.central.store().read(|model| model.session(id).cloned()).expect("a boot");
    assert!(boot(session).reached(Stage::OsDhcp).is_none());
    node.overlay(session).await.expect("its overlay");
    node.machine.lose_power().await;
    rig.pass(Duration::from_secs(60)).await;
    assert_eq!(rig.node(node.machine.id()).phase, Phase::Offline);
    assert!(node.report(session, None).await.is_err(), "its work may have been moved");
    assert_eq!(rig.node(node.machine.id()).boot, Some(former));

    assert!(!boot(session).ended, "the order is open");
    rig.clock.turn(Duration::from_secs(31 * 60));
    rig.central.nodes.drive_operations().await;
    rig.pass(Duration::from_secs(60)).await;
    assert!(boot(session).ended);
}

#[tokio::test]
async fn node_whose_profile_does_not_allow_it_boots_cold() {
    let world = World::prepared("auto");
    let rig = Rig::new(&world);
    let node = WarmNode::online(&rig, 1).await;
    node.order().await;
    let answer = node.plan().await.expect("an answer");
    let WarmBootAnswer::Cold { reason } = answer else { panic!("{answer:?}") };
    assert_eq!(reason, "profile discovery has no warm = \"allow\"");
    assert_eq!(cold_boot(&rig, &node), ColdBoot { cause: ColdBootCause::NotAllowed, reason });
}

#[tokio::test]
async fn agent_that_restarts_before_its_warm_boot_leaves_a_cold_result() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let mut node = WarmNode::online(&rig, 1).await;
    let sent = node.order().await;
    // It reboots through the firmware without a report.
    node.machine.boot(Stage::Online).await;
    rig.central.nodes.drive_operations().await;
    assert_eq!(state(&rig, sent.operation, &node), NodeOperationState::Done);
    assert_eq!(cold_boot(&rig, &node).cause, ColdBootCause::NoReport);
}

#[tokio::test]
async fn warm_boot_that_failed_stays_cold_after_its_session_is_removed() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let mut node = WarmNode::online(&rig, 1).await;
    let session = node.start().await;
    rig.central.nodes.drive_operations().await;
    let result = rig.node(node.machine.id()).warm_reboot.expect("a result").result;
    assert_eq!(result, WarmRebootResult::Warm { session });
    node.machine.lose_power().await;
    for _ in 0..9 {
        node.machine.boot(Stage::Online).await;
    }
    assert!(rig.central.store().read(|model| model.session(session).is_none()));
    assert_eq!(cold_boot(&rig, &node).cause, ColdBootCause::NotOnline);
}

/// A machine that boots from its disk opens no session, but its agent names another kernel.
#[tokio::test]
async fn older_warm_boot_is_no_result_of_a_later_order() {
    let world = World::prepared("auto");
    allow_warm_boots(&world);
    let rig = Rig::new(&world);
    let mut node = WarmNode::online(&rig, 1).await;
    node.start().await;
    node.machine.lose_power().await;
    node.machine.facts.system.kernel_boot_id = "warm".to_owned();
    for stage in [Stage::OsDhcp, Stage::Modloop, Stage::Enrolled, Stage::Link, Stage::Online] {
        node.machine.step(stage).await;
    }
    rig.central.nodes.drive_operations().await;
    node.peer = WarmNode::peer(&node.machine);
    let sent = node.order().await;
    node.machine.facts.system.kernel_boot_id = "another".to_owned();
    node.machine.link_up().await;
    rig.central.nodes.drive_operations().await;
    assert_eq!(state(&rig, sent.operation, &node), NodeOperationState::Done);
    assert_eq!(cold_boot(&rig, &node).cause, ColdBootCause::NoReport);
}
