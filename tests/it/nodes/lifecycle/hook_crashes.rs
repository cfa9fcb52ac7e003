//! Drain hooks when meshd and the agent are killed: the scheduler of the node ends where the node
//! does.

use crate::world::{
    World, eventually,
    node::{Agent, PxeNode},
    stderr, write_program,
};
use std::fs;

/// A scheduler: the folder `state` is closed by a file with the reason, and a file `job` is its work.
/// A `drain` that finds the file `slow` closes it only when there is a file `go`.
const HOOK: &str = r#"#!/bin/sh
cd STATE || exit 1
echo "$1" >>log
case $1 in
drain)
	if [ -e slow ]; then
		rm slow
		echo $$ >pid.new && mv pid.new pid
		until [ -e go ]; do sleep 0.1; done
	fi
	[ -e closed ] || echo "$MESHD_REASON" >closed
	[ -e job ] && { echo job 7; exit 75; }
	;;
resume) grep -qs "^meshd: " closed && rm closed ;;
esac
exit 0
"#;

struct Node {
    agent: Agent,
    id: String,
}

impl Node {
    fn start(world: &World) -> Self {
        let machine = PxeNode::new(world, 1);
        let overlay = machine.boot();
        let agent = machine.start_agent_with(&overlay, |root| {
            let state = root.join("state");
            let hooks = root.join("etc/meshd/drain.d");
            fs::create_dir_all(&state).unwrap();
            fs::create_dir_all(&hooks).unwrap();
            let text = HOOK.replace("STATE", &state.display().to_string());
            write_program(&hooks.join("batch"), &text);
        });
        let id = world.wait_for_phase("online")["id"].as_str().unwrap().to_owned();
        Node { agent, id }
    }

    fn read(&self, file: &str) -> Option<String> {
        fs::read_to_string(self.agent.file("root/state").join(file)).ok()
    }

    fn write(&self, file: &str, text: &str) {
        fs::write(self.agent.file("root/state").join(file), text).unwrap();
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.agent.file("root/state").join(file)).unwrap();
    }

    fn until_closed(&self, reason: Option<&str>) {
        eventually("the scheduler follows", || {
            let closed = self.read("closed");
            if closed.as_deref() == reason { Ok(()) } else { Err(format!("{closed:?}")) }
        });
    }

    /// Kills the agent, and perhaps starts its successor.
    fn kill_agent(&mut self, restart: bool) {
        self.agent.cut_power();
        if restart {
            self.agent.restart();
        }
    }

    fn verb(&self, world: &World, verb: &str, more: &[&str]) {
        let output = world.meshd(&[&["node", verb, &self.id], more].concat());
        assert!(output.status.success(), "{verb}: {}", stderr(&output));
    }
}

fn restart_meshd(world: &mut World) {
    world.kill();
    world.start();
}

const REASON: &str = "meshd: uid:0: disks\n";

#[test]
fn drain_and_resume_outlive_kills_of_meshd_and_agent() {
    let mut world = World::new("auto");
    let mut node = Node::start(&world);
    node.write("job", "");
    node.verb(&world, "drain", &["--reason", "disks"]);
    restart_meshd(&mut world);
    node.until_closed(Some(REASON));
    node.kill_agent(true);
    world.wait_for_phase("draining");
    // The work ends while nobody looks.
    node.kill_agent(false);
    world.kill();
    node.remove("job");
    world.start();
    node.agent.restart();
    world.wait_for_phase("maintenance");
    assert_eq!(node.read("closed").as_deref(), Some(REASON));

    node.verb(&world, "resume", &[]);
    world.kill();
    node.kill_agent(true);
    world.start();
    node.until_closed(None);
    world.wait_for_phase("online");

    // A drain of somebody else outlives the same.
    node.write("closed", "new fan\n");
    node.verb(&world, "drain", &[]);
    node.kill_agent(true);
    world.wait_for_phase("maintenance");
    node.verb(&world, "resume", &[]);
    let resumes = |node: &Node| node.read("log").unwrap_or_default().matches("resume").count();
    let before = resumes(&node);
    node.kill_agent(true);
    restart_meshd(&mut world);
    world.wait_for_phase("online");
    eventually("it has resumed", || {
        if resumes(&node) > before { Ok(()) } else { Err(format!("{:?}", node.read("log"))) }
    });
    assert_eq!(node.read("closed").as_deref(), Some("new fan\n"));
}

#[test]
fn request_of_a_killed_agent_does_not_close_a_node_in_service() {
    let world = World::new("auto");
    let mut node = Node::start(&world);
    node.write("slow", "");
    node.verb(&world, "drain", &[]);
    let pid = eventually("the hook runs", || node.read("pid").ok_or("no process".to_owned()));
    node.kill_agent(false);
    node.verb(&world, "resume", &[]);
    node.agent.restart();
    eventually("the next agent resumes", || match node.read("log") {
        Some(log) if log.ends_with("resume\n") => Ok(()),
        log => Err(format!("{log:?}")),
    });
    node.write("go", "");
    let process = format!("/proc/{}/stat", pid.trim());
    eventually("the first hook ends", || match fs::read_to_string(&process) {
        Ok(stat) if !stat.contains(") Z ") => Err(stat),
        _ => Ok(()),
    });
    assert_eq!(node.read("closed"), None, "the request arrived after the resume");
    world.wait_for_phase("online");
}
