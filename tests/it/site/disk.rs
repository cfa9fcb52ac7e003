//! Disks as they are: full, read-only, damaged. Each is one sentence, and nothing that was
//! acknowledged is lost.

use crate::{
    boot::sessions::rig::{Machine, Rig, ordered},
    work::workloads::read_orders,
    world::{DEADLINE, World, eventually, node::PxeNode, single_orders::SingleOrders as _, stderr},
};
use meshd_central::{LinkCommand, OperateError, SpecPart};
use meshd_model::fleet::{Audit, Phase, Stage, Verb};
use meshd_proto::{ActionId, ActionOutcome, FromAgent, PciFacts};
use meshd_store::StoreError;
use std::{
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

/// A file system of 4 MiB in memory; gone when dropped.
struct Small(PathBuf);

impl Small {
    fn mount(path: PathBuf) -> Self {
        fs::create_dir_all(&path).unwrap();
        run("mount", &["-t", "tmpfs", "-o", "size=4m,mode=0700", "tmpfs", path.to_str().unwrap()]);
        Small(path)
    }

    fn remount(&self, how: &str) {
        run("mount", &["-o", &format!("remount,{how}"), self.0.to_str().unwrap()]);
    }

    fn fill(&self) {
        let mut file = fs::File::create(self.0.join("fill")).unwrap();
        while file.write_all(&[1; 512]).is_ok() {}
    }

    fn make_room(&self) {
        fs::remove_file(self.0.join("fill")).unwrap();
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        run("umount", &["-l", self.0.to_str().unwrap()]);
    }
}

fn run(program: &str, args: &[&str]) {
    let output = Command::new(program).args(args).output().unwrap();
    assert!(
        output.status.success(),
        "{program} {args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// A site whose state is on a small disk, with one machine.
fn world() -> (World, Small, String) {
    let mut world = World::prepared("auto");
    fs::remove_dir_all(world.path("state")).unwrap();
    let disk = Small::mount(world.path("state"));
    world.write_image();
    world.start();
    PxeNode::new(&world, 1).power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    (world, disk, id)
}

fn set(world: &World, id: &str, value: u32) -> Result<(), String> {
    let output = world.meshd(&["node", "set", id, &format!("mpi_slots={value}")]);
    if output.status.success() { Ok(()) } else { Err(stderr(&output)) }
}

fn value(world: &World, id: &str) -> u64 {
    world.json(&["node", "show", id, "-o", "json"])["vars"]["mpi_slots"].as_u64().unwrap_or(0)
}

#[test]
fn full_disk_refuses_orders_until_space_is_freed() {
    let (mut world, disk, id) = world();
    disk.fill();
    // What still fits into the last page does.
    let mut acknowledged = 0;
    let refused = (1..500).find_map(|value| match set(&world, &id, value) {
        Ok(()) => {
            acknowledged = value;
            None
        }
        Err(message) => Some(message),
    });
    let refused = refused.expect("the disk is full");
    assert!(
        refused.contains("check the disk (full?") && refused.contains("No space left"),
        "{refused}"
    );
    assert!(set(&world, &id, 1000).is_err(), "and so is the next one");
    assert!(world.meshd(&["node", "list"]).status.success(), "it answers all the while");

    disk.make_room();
    eventually("orders are taken without a restart", || set(&world, &id, 2000));
    assert_eq!(value(&world, &id), 2000);

    // It starts on a full disk too, with everything that it ever acknowledged.
    disk.fill();
    let mut last = 2000;
    while set(&world, &id, last + 1).is_ok() {
        last += 1;
    }
    world.kill();
    world.start();
    let found = value(&world, &id);
    assert!(
        found == u64::from(last) || found == u64::from(last) + 1,
        "{found}, {last} was acknowledged"
    );
    disk.make_room();
    eventually("orders are taken", || set(&world, &id, 9000));
    assert!(acknowledged < 500 && !world.log_text().contains("panicked"), "{}", world.log_text());
}

#[test]
fn backup_to_a_full_disk_names_its_file_and_leaves_none() {
    let (world, _disk, _) = world();
    let target = Small::mount(world.path("target"));
    let file = world.path("target/rack.backup");
    let key = world.path("key");
    fs::write(&key, "correct horse battery staple").unwrap();
    target.fill();
    let file = file.to_str().unwrap();
    let key = key.to_str().unwrap();
    let refused = world.meshd(&["backup", "create", file, "--key-file", key]);
    let message = stderr(&refused);
    assert!(
        !refused.status.success()
            && message.contains(&format!("cannot write {file}"))
            && message.contains("No space left"),
        "{message}"
    );
    let left: Vec<_> = fs::read_dir(&target.0).unwrap().flatten().map(|e| e.file_name()).collect();
    assert_eq!(left, ["fill"]);
}

#[test]
fn full_disk_makes_status_and_healthz_report_not_ready() {
    let (world, disk, id) = world();
    let health = || {
        let url = "http://10.77.0.1:8080/healthz";
        let host = PxeNode::new(&world, 1).host();
        let answer =
            host.inside(|| crate::world::http::request("GET", url, None)).unwrap().unwrap();
        (answer.status, answer.text())
    };
    let status = || {
        let output = world.meshd(&["status"]);
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    assert_eq!(health(), (200, "ok\n".to_owned()));
    assert!(status().1.contains("ready       yes") || status().1.contains("yes"), "{}", status().1);
    disk.fill();
    let (code, message) = health();
    assert!(
        code == 503 && message.contains("cannot write the store"),
        "before anybody tried: {code} {message}"
    );
    assert!(!status().0 && status().1.contains("cannot write the store"), "{}", status().1);
    while set(&world, &id, 1).is_ok() {}
    assert_eq!(health().0, 503, "and after somebody did");
    assert!(!status().0);
    disk.make_room();
    eventually("it is ready without a restart", || {
        let (code, message) = health();
        if code == 200 { Ok(()) } else { Err(message) }
    });
    set(&world, &id, 2).unwrap();
}

/// The number of the one task that there is.
async fn task(rig: &Rig) -> ActionId {
    let task_order = async {
        loop {
            if let Some(event) = rig.events("node_action").first() {
                let number =
                    event.detail.split([' ', ':']).nth(1).expect("task <number>: <action>");
                return ActionId(number.parse().unwrap());
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, task_order).await.expect("a task is ordered")
}

#[tokio::test]
async fn full_disk_changes_no_node_and_acks_no_outcome() {
    let world = World::prepared("auto");
    fs::remove_dir_all(world.path("state")).unwrap();
    let disk = Small::mount(world.path("state"));
    world.write_image();
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    let mut other = Machine::new(&rig, 2);
    // Its record is longer than the rest of any page.
    let device = PciFacts { address: "0000:00:00.0".to_owned(), ..PciFacts::default() };
    machine.facts.pci = vec![device; 100];
    machine.boot(Stage::Online).await;
    other.boot(Stage::Online).await;
    let id = machine.id();
    let hold = || async { rig.central.nodes.quarantine(id, &ordered(Verb::Quarantine)).await };
    let by = ordered(Verb::Reboot);
    let node_side = async {
        let done = FromAgent::ActionDone { id: task(&rig).await, outcome: ActionOutcome::Done };
        disk.fill();
        // What still fits into the last page does.
        let line = || Audit::done(rig.central.now(), ordered(Verb::Reload));
        while rig.central.env.write_audit(vec![line()]).await.is_ok() {}
        let guard = hold().await;
        assert!(matches!(guard, Err(OperateError::Store(_))), "{guard:?}");
        assert_eq!(rig.node(id).phase, Phase::Online, "a refused order changes nothing");
        assert!(rig.central.links.link_state(id).since.is_some());
        for _ in 0..2 {
            assert!(
                !other.say(done.clone()).await,
                "it is not on the disk, so the node has to say it again"
            );
        }
        disk.make_room();
        assert!(other.say(done).await);
    };
    let (rebooted, ()) = tokio::join!(rig.central.nodes.reboot(other.id(), &by), node_side);
    rebooted.unwrap();
    assert_eq!(hold().await.unwrap().phase, Phase::Quarantined);
    assert!(!machine.heartbeat(0).await);
}

#[tokio::test]
async fn node_that_falls_silent_on_a_full_disk_is_offline_once_there_is_room() {
    let world = World::prepared("auto");
    fs::remove_dir_all(world.path("state")).unwrap();
    let disk = Small::mount(world.path("state"));
    world.write_image();
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    // Its record is longer than the rest of any page.
    let device = PciFacts { address: "0000:00:00.0".to_owned(), ..PciFacts::default() };
    machine.facts.pci = vec![device; 100];
    machine.boot(Stage::Online).await;
    rig.pass(Duration::from_secs(1)).await;
    disk.fill();
    let line = || Audit::done(rig.central.now(), ordered(Verb::Reload));
    while rig.central.env.write_audit(vec![line()]).await.is_ok() {}
    for _ in 0..60 {
        rig.pass(Duration::from_secs(1)).await;
    }
    assert_eq!(rig.node(machine.id()).phase, Phase::Online, "the disk is full");
    disk.make_room();
    rig.pass(Duration::from_secs(1)).await;
    assert_eq!(rig.node(machine.id()).phase, Phase::Offline);
}

#[tokio::test]
async fn orders_that_a_full_disk_refuses_are_repeated_with_the_next_heartbeat() {
    let world = World::prepared("auto");
    fs::remove_dir_all(world.path("state")).unwrap();
    let disk = Small::mount(world.path("state"));
    world.write_image();
    let rig = Rig::new(&world);
    let mut machine = Machine::new(&rig, 1);
    // Its record is longer than the rest of any page.
    let device = PciFacts { address: "0000:00:00.0".to_owned(), ..PciFacts::default() };
    machine.facts.pci = vec![device; 100];
    machine.boot(Stage::Online).await;
    let mut inbox = read_orders(&mut machine).await;
    disk.fill();
    let line = || Audit::done(rig.central.now(), ordered(Verb::Reload));
    while rig.central.env.write_audit(vec![line()]).await.is_ok() {}
    let id = machine.id();
    let link = machine.link.expect("a link");
    let mut repeats = async || {
        while inbox.try_recv().is_ok() {}
        assert!(machine.heartbeat(0).await);
        let is_all = |command| matches!(command, LinkCommand::Spec(SpecPart::All));
        std::iter::from_fn(|| inbox.try_recv().ok()).any(is_all)
    };
    assert!(!repeats().await, "nothing was refused");
    // The disk may refuse the change before it is read.
    let begun = Instant::now();
    loop {
        let change = rig.central.store().commit(|tx| {
            tx.edit_node(id, |node| node.name.push('x'));
            Ok::<_, StoreError>(())
        });
        let specs = rig.central.agents.specs(link, SpecPart::All);
        let (refused, sent) = tokio::join!(change, specs);
        assert!(refused.is_err() && sent.is_empty(), "{refused:?} {sent:?}");
        if repeats().await {
            break;
        }
        assert!(begun.elapsed() < DEADLINE, "the orders are lost");
    }
    assert!(!repeats().await, "once");
}

#[test]
fn read_only_disk_stops_startup_until_it_is_writable() {
    let (mut world, disk, id) = world();
    set(&world, &id, 7).unwrap();
    assert!(world.stop().success());
    disk.remount("ro");
    let message = world.serve_and_fail();
    assert!(
        message.contains("that meshd may write") && message.contains("Read-only file system"),
        "{message}"
    );
    assert!(!message.contains("panicked"), "{message}");
    disk.remount("rw");
    world.start();
    assert_eq!(value(&world, &id), 7);
}

fn journal(world: &World) -> PathBuf {
    let files =
        fs::read_dir(world.path("state/store")).unwrap().flatten().map(|entry| entry.path());
    let is_journal = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("journal-"))
    };
    files.into_iter().find(is_journal).expect("a journal")
}

fn flip(path: &Path, at: usize) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at] ^= 0x10;
    fs::write(path, bytes).unwrap();
}

#[test]
fn altered_store_byte_is_refused_and_accepted_once_restored() {
    let mut world = World::new("auto");
    PxeNode::new(&world, 1).power_on().unwrap();
    let id = world.node()["id"].as_str().unwrap().to_owned();
    set(&world, &id, 7).unwrap();
    world.kill();
    let path = journal(&world);
    let length = fs::read(&path).unwrap().len();
    for at in [2, 40, length / 2, length - 1] {
        flip(&path, at);
        let message = world.serve_and_fail();
        assert!(
            message.contains("the store is damaged") && message.contains("backup restore"),
            "at {at}: {message}"
        );
        assert!(
            message.contains("journal-") && !message.contains("panicked"),
            "at {at}: {message}"
        );
        flip(&path, at);
    }
    world.start();
    assert_eq!(value(&world, &id), 7, "to be refused changed nothing");
}
