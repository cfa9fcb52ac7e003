//! What is short: room on the node, the rights of another node, the patience of a terminal.

use super::{
    central::{Machine, add, create, done, prepared, reaches, world},
    guest::{COUNTED, Guest, Node},
};
use crate::{
    attack::client::{Attacker, ticket},
    world::{eventually, node::PxeNode},
};
use meshd_agent::vm::CONSOLE_SCROLLBACK;
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    io::{Read, Write as _},
    os::unix::fs::symlink,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    thread,
};

/// Ended with the test, however it ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn volume_without_space_leaves_no_file_and_is_denied_to_other_nodes() {
    let world = world();
    let guests = Node::new();
    let digest = add(&world, &guests, Guest::Deaf, "deaf");
    let mut machine = Machine::new(&world, &PxeNode::new(&world, 1).boot());
    // Files lie in memory, of which less is left than the node keeps for itself.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    machine.vms = memory.path().join("vms");
    let proc = machine.path("root/proc");
    fs::remove_file(&proc).unwrap();
    fs::create_dir(&proc).unwrap();
    for entry in
        fs::read_dir("/proc").unwrap().flatten().filter(|entry| entry.file_name() != "meminfo")
    {
        symlink(entry.path(), proc.join(entry.file_name())).unwrap();
    }
    fs::write(proc.join("meminfo"), "MemTotal: 4194304 kB\nMemAvailable: 262144 kB\n").unwrap();
    machine.start();
    world.wait_for_phase("online");
    let uuid = create(&world, "one", &digest);
    let failed = reaches(&machine, "one", "unplaced");
    let detail = failed["obstacle"].as_str().unwrap();
    assert!(detail.contains("store_full") && detail.contains("root"), "{failed}");
    assert_eq!(machine.volumes(), 0, "nothing half is left");

    // Another node has a certificate, and no machine that names it. It is told no more than that,
    // also of a digest that nobody has.
    let attacker = Attacker::new(&world);
    let stranger = attacker.enrol(&ticket(&world, 2));
    for wanted in [&digest, &"f".repeat(64)] {
        let (status, said) = attacker
            .run(attacker.get(&stranger, &format!("/v1/volumes/{wanted}")))
            .expect("an answer");
        assert!(status == 403 && said.contains("no VM of this node names it"), "{status} {said}");
    }

    // There is room again.
    fs::remove_file(proc.join("meminfo")).unwrap();
    symlink("/proc/meminfo", proc.join("meminfo")).unwrap();
    done(&world, &["vm", "start", "one"]);
    reaches(&machine, "one", "running");
    assert!(machine.vms.join(&uuid).join("volume0.qcow2").exists() && machine.volumes() == 1);
    done(&world, &["vm", "delete", "one", "--yes"]);
    eventually("nothing of it is left", || {
        if machine.volumes() == 0 { Ok(()) } else { Err(machine.log()) }
    });
    drop(machine);
}

#[test]
fn stopped_terminal_blocks_neither_guest_nor_agent_and_reports_loss() {
    // The central node gives up a terminal that is silent for longer than 90 seconds, which a busy
    // machine takes for what the guest writes.
    let mut world = prepared("auto");
    world.start_with(&[("MESHD_CONSOLE_SILENCE", "3600".to_owned())]);
    let guests = Node::new();
    let digest = add(&world, &guests, Guest::Counts, "counts");
    let mut machine = Machine::new(&world, &PxeNode::new(&world, 1).boot());
    machine.start();
    world.wait_for_phase("online");
    let uuid = create(&world, "one", &digest);
    reaches(&machine, "one", "running");
    let sits = |input: Stdio| {
        let mut console = Command::new(env!("CARGO_BIN_EXE_meshd"));
        console.arg("--site").arg(&world.site).args(["vm", "console", "one"]).stdin(input);
        Ended(console.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    };
    let last = |key: usize| format!("{:08}\n", key * COUNTED - 1);
    eventually("it has written", || {
        let said = done(&world, &["vm", "logs", "one"]);
        if said.ends_with(&last(1)) {
            Ok(())
        } else {
            Err(said[said.len().saturating_sub(100)..].to_owned())
        }
    });
    // It stops: what is between it and the node is full after a while. That is little here, so that
    // the while is short. These files are those of the network of who opens them.
    let node = PxeNode::new(&world, 1).host();
    for (network, bound) in [(&node, "tcp_wmem"), (&world.central, "tcp_rmem")] {
        let narrow = || fs::write(format!("/proc/sys/net/ipv4/{bound}"), "4096 16384 32768");
        network.inside(narrow).unwrap().unwrap();
    }
    let mut sleeper = sits(Stdio::null());
    eventually("somebody sits there", || match world.events("vm_console").len() {
        1 => Ok(()),
        count => Err(count.to_string()),
    });
    kill_process(Pid::from_child(&sleeper.0), Signal::STOP).unwrap();
    let mut typist = sits(Stdio::piped());
    let mut keys = typist.0.stdin.take().unwrap();
    let shown = hears(typist.0.stdout.take().unwrap());
    let reads = |end: &str| {
        eventually(end, || {
            let shown = shown.lock().unwrap();
            if shown.ends_with(end) {
                Ok(())
            } else {
                Err(shown[shown.len().saturating_sub(100)..].to_owned())
            }
        });
    };
    reads(&last(1));
    // More than is kept, and all that lies between here and there.
    let all = 18;
    for key in 2..=all {
        keys.write_all(b"x").unwrap();
        reads(&last(key));
    }
    keys.write_all(b"\x1d").unwrap();
    eventually("the console is left", || typist.0.try_wait().unwrap().ok_or("it runs".to_owned()));
    let file = fs::metadata(machine.vms.join(&uuid).join("console.log")).unwrap();
    assert!(file.len() > 5 * CONSOLE_SCROLLBACK);

    kill_process(Pid::from_child(&sleeper.0), Signal::CONT).unwrap();
    let told = hears(sleeper.0.stderr.take().unwrap());
    let heard = hears(sleeper.0.stdout.take().unwrap());
    eventually("it goes on and is told", || {
        let told = told.lock().unwrap();
        let heard = heard.lock().unwrap();
        let is_reported = told.contains("bytes of output are missing");
        if is_reported && heard.ends_with(&last(all)) {
            Ok(())
        } else {
            Err(format!("{told}: {} bytes", heard.len()))
        }
    });
    done(&world, &["vm", "delete", "one", "--yes"]);
    eventually("the console is over", || sleeper.0.try_wait().unwrap().ok_or("it runs".to_owned()));
}

/// Everything that comes, as it comes.
fn hears(mut from: impl Read + Send + 'static) -> Arc<Mutex<String>> {
    let heard = Arc::<Mutex<String>>::default();
    let hears = heard.clone();
    thread::spawn(move || {
        let mut bytes = [0; 65536];
        while let Ok(length @ 1..) = from.read(&mut bytes) {
            hears.lock().unwrap().push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
    });
    heard
}
