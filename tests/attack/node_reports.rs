//! A compromised node: root on its machine, with its certificate. It speaks the link by hand, and reports what it likes.

use super::client::{Attacker, Identity, Link, ticket};
use crate::world::{World, program};
use meshd_proto::{
    Check, CheckReport, CheckStatus, Facts, FromAgent, FromCentral, Ticket,
    task::{Output, Piece, Stream, TaskDesiredState, TaskNodeState, TaskReport, TaskUpdate},
};
use std::{
    io::Read as _,
    process::{Child, Command, Stdio},
    time::Duration,
};
use tokio::time::timeout;

/// Sets the title, clears the screen, turns the text direction: by escape, by its 8-bit form, and by Unicode.
const HOSTILE: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}2J\u{202e}\rover";

/// A node of the attacker.
struct Compromised<'a> {
    attacker: Attacker<'a>,
    own: Ticket,
    identity: Identity,
}

impl<'a> Compromised<'a> {
    fn new(world: &'a World, number: u8) -> Self {
        let (attacker, own) = (Attacker::new(world), ticket(world, number));
        let identity = attacker.enrol(&own);
        Compromised { attacker, own, identity }
    }

    async fn link(&self, facts: Facts) -> Link {
        let mut link = self.attacker.hello_of(&self.identity, self.own.boot.node, self.own.boot.session, facts).await;
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
        let report = CheckReport { checks: vec![check], session, request_id, ..CheckReport::default() };
        link.say(&FromAgent::Checks(Box::new(report))).await;
    }
}

/// A command of an operator at a terminal.
fn at_terminal(world: &World, args: &[&str]) -> Child {
    let spawn = "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)";
    let mut command = Command::new("python3");
    command.args(["-c", spawn]).arg(program(env!("CARGO_BIN_EXE_meshd"))).arg("--site").arg(&world.site).args(args);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Everything that the terminal received.
fn received(mut command: Child) -> String {
    let mut bytes = Vec::new();
    command.stdout.take().unwrap().read_to_end(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn assert_harmless(what: &[&str], shown: &str) {
    let executed: Vec<char> = shown.chars().filter(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')).collect();
    let alone = shown.replace("\r\n", "\n").contains('\r');
    assert!(executed.is_empty() && !alone && !shown.contains('\u{202e}'), "{what:?} printed {executed:?}: {shown:?}");
}

#[test]
fn escape_sequences_of_a_node_reach_no_terminal() {
    let world = World::new("approve");
    let node = Compromised::new(&world, 1);
    let id = node.own.boot.node.to_string();
    node.attacker.run(async {
        let mut facts = Facts::default();
        for text in [&mut facts.system.serial, &mut facts.cpu.model, &mut facts.versions.os, &mut facts.versions.kernel]
        {
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
                Ok(Some(FromCentral::Task(order))) => answer_task(&mut link, order).await,
                Ok(message) => assert!(message.is_some(), "the link ended"),
                Err(_) => {}
            }
        }
    });
}

/// Runs a task: it writes and ends.
async fn answer_task(link: &mut Link, order: meshd_proto::task::TaskOrder) {
    let task = order.task;
    if order.want == TaskDesiredState::Gone {
        return link.say(&FromAgent::Task(TaskUpdate::Released { task })).await;
    }
    for stream in [Stream::Out, Stream::Err] {
        let data = Piece::from_bytes(format!("task output {HOSTILE}\n").into_bytes());
        link.say(&FromAgent::Task(TaskUpdate::Output(Output { task, stream, at: 0, data }))).await;
        while !matches!(link.hear().await, Some(FromCentral::OutputStored(_))) {}
    }
    let tasks = vec![TaskReport { task, state: TaskNodeState::Exited { code: 0 } }];
    link.say(&FromAgent::Task(TaskUpdate::All { tasks })).await;
}
