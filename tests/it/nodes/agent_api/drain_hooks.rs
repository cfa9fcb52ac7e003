//! Drain hooks, run by the agent itself: a scheduler of the node leaves and enters service with it.

use super::{
    agent::Machine,
    fake::{Fake, Seen},
};
use crate::world::write_program;
use meshd_central::LinkCommand;
use meshd_proto::{
    DrainEntry, DrainOrder, DrainReport, FromAgent, FromCentral, HookState, NodeReport, NodeSpec,
    SectionReport, SpecEntry,
};
use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

/// A scheduler: the folder `state` is closed by a file with the reason, and a file `job` is its work.
/// A drain that somebody else ordered is not resumed.
const HOOK: &str = r#"#!/bin/sh
cd STATE || exit 1
echo "$1" >>log
case $1 in
drain)
	[ -e closed ] || echo "$MESHD_REASON" >closed
	[ "$MESHD_WORKLOADS" = stop ] && rm -f job
	[ -e hangs ] && { rm hangs; sleep 1000; }
	[ -e job ] && { echo job 7; exit 75; }
	;;
resume) grep -qs "^meshd: " closed && rm closed ;;
esac
exit 0
"#;

struct Node {
    fake: Fake,
    machine: Machine,
    generation: u64,
}

impl Node {
    async fn start() -> Self {
        let fake = Fake::start().await;
        let token = fake.mint(Duration::from_secs(900));
        let machine = Machine::new(&fake, &fake.ca_pem, Some(token));
        let hooks = machine.path("etc/meshd/drain.d");
        fs::create_dir_all(machine.path("state")).expect("made");
        fs::create_dir_all(&hooks).expect("made");
        let state = machine.path("state").display().to_string();
        write_program(&hooks.join("batch"), &HOOK.replace("STATE", &state));
        fs::set_permissions(&hooks, fs::Permissions::from_mode(0o755)).expect("set");
        let mut node = Node { fake, machine, generation: 0 };
        node.link().await;
        node
    }

    /// Starts the agent, and waits for its link.
    async fn link(&mut self) {
        self.fake.forget_seen();
        self.machine.start();
        self.fake.wait(|seen| seen.iter().any(|seen| matches!(seen, Seen::Up(_)))).await;
        self.generation = 0;
    }

    async fn order(&mut self, drain: Option<DrainOrder>) {
        self.generation += 1;
        let entry = SpecEntry::Drain(DrainEntry { drain });
        let spec = NodeSpec { generation: self.generation, entry };
        self.fake.command(LinkCommand::Send(FromCentral::Spec(spec))).await;
    }

    /// Waits until the last report is about the last order, with this state and detail.
    async fn reports(&self, drains: bool, state: HookState, detail: &str) {
        let is_so = |observed: u64, report: &DrainReport| {
            let hooks: Vec<_> =
                report.hooks.iter().map(|hook| (hook.name.as_str(), hook.state)).collect();
            (observed, report.drains) == (self.generation, drains)
                && hooks == [("batch", state)]
                && report.hooks.iter().all(|hook| hook.detail == detail)
        };
        self.fake
            .wait(|seen| {
                last_report(seen).is_some_and(|(observed, report)| is_so(observed, report))
            })
            .await;
    }

    fn state(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.machine.path("state").join(file)).ok()
    }

    fn write(&self, file: &str) {
        fs::write(self.machine.path("state").join(file), "").expect("written");
    }

    async fn end(mut self) {
        self.machine.stop().await;
        self.fake.stop().await;
    }
}

fn last_report(seen: &[Seen]) -> Option<(u64, &DrainReport)> {
    seen.iter().rev().find_map(|seen| match seen {
        Seen::Message(FromAgent::Report(NodeReport {
            observed,
            state: SectionReport::Drain(report),
        })) => Some((*observed, report)),
        _ => None,
    })
}

fn drain(stop_work: bool) -> Option<DrainOrder> {
    Some(DrainOrder { reason: "meshd: uid:0: disks".to_owned(), stop_work, grace_s: None })
}

#[tokio::test]
async fn agent_runs_drain_hooks_until_their_work_ends_and_resumes() {
    let mut node = Node::start().await;
    let named = |seen: &Seen| matches!(seen, Seen::Up(hello) if hello.facts.drain_hooks.iter().map(|name| name.as_str()).eq(["batch"]));
    assert!(node.fake.seen().iter().any(named), "the hello names the hook");
    assert_eq!(node.state("log"), None, "nothing runs before an order");
    node.write("job");
    node.order(drain(false)).await;
    node.reports(true, HookState::Waiting, "job 7").await;
    assert_eq!(node.state("closed").as_deref(), Some("meshd: uid:0: disks\n"));
    fs::remove_file(node.machine.path("state/job")).expect("there");
    node.reports(true, HookState::Done, "").await;
    node.order(None).await;
    node.reports(false, HookState::Done, "").await;
    assert_eq!(node.state("closed"), None);

    // Its work is stopped at once if the order says so.
    node.write("job");
    node.order(drain(true)).await;
    node.reports(true, HookState::Done, "").await;
    assert_eq!(node.state("job"), None);
    node.end().await;
}

#[tokio::test]
async fn restarted_agent_runs_its_hooks_again_and_resumes_nothing_foreign() {
    let mut node = Node::start().await;
    node.write("job");
    node.order(drain(false)).await;
    node.reports(true, HookState::Waiting, "job 7").await;
    node.machine.stop().await;
    node.link().await;
    fs::remove_file(node.machine.path("state/job")).expect("there");
    node.order(drain(false)).await;
    node.reports(true, HookState::Done, "").await;

    // The node returned to service while its agent was away.
    node.machine.stop().await;
    node.link().await;
    node.order(None).await;
    node.reports(false, HookState::Done, "").await;
    assert_eq!(node.state("closed"), None);

    fs::write(node.machine.path("state/closed"), "an administrator\n").expect("written");
    node.order(drain(false)).await;
    node.reports(true, HookState::Done, "").await;
    node.order(None).await;
    node.reports(false, HookState::Done, "").await;
    assert_eq!(node.state("closed").as_deref(), Some("an administrator\n"));
    node.end().await;
}

#[tokio::test]
async fn hanging_hook_is_ended_when_the_agent_stops_and_runs_again() {
    let mut node = Node::start().await;
    node.write("hangs");
    node.order(drain(false)).await;
    node.reports(true, HookState::Pending, "").await;
    // It heartbeats meanwhile.
    let beats = |seen: &[Seen]| {
        seen.iter().filter(|seen| matches!(seen, Seen::Message(FromAgent::Heartbeat(_)))).count()
    };
    let before = beats(&node.fake.seen());
    node.fake.wait(|seen| beats(seen) >= before + 2).await;
    node.machine.stop().await;
    node.link().await;
    node.order(drain(false)).await;
    node.reports(true, HookState::Done, "").await;
    assert_eq!(node.state("log").as_deref(), Some("drain\ndrain\n"));
    node.end().await;
}
