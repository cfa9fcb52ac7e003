//! Containers on three machines: their kernel enforces limits. One machine loses its power, and a
//! replica moves when an operator says so. Nothing of it is left in the end.

use crate::{
    containers::{self, answers},
    online,
    racks::{OrEnd, SOON},
};
use meshd_lab::{Power, Rack, Wait};
use serde_json::Value;

const NODES: u8 = 3;
/// Lists what replicas leave on a node: files, images, control groups, processes and loop devices.
const LOOK: &str = r#"
folder=/run/meshd-containers images=/var/lib/machines/container-images
ls -A $folder $folder/runtime $images 2>/dev/null | grep -Ev '^(|/.*:|runtime)$'
for root in $(awk '$3 == "cgroup2" { print $2 }' /proc/mounts); do
    ls -d $root/meshd-containers-* 2>/dev/null
done
grep -l $folder/ /proc/[0-9]*/mounts 2>/dev/null
pgrep -fl '[c]ontainer-supervise'
cat /sys/block/loop*/loop/backing_file 2>/dev/null | grep $images
echo looked"#;

fn show(rack: &Rack, name: &str) -> Value {
    rack.query(&["container", "show", name]).or_end()
}

/// The place of the node of a replica.
fn place_of(rack: &Rack, index: usize) -> Option<u8> {
    let web = show(rack, "web");
    (1..=NODES).find(|place| web["replicas"][index]["node"] == rack.id(*place).to_string().as_str())
}

fn node(rack: &Rack, place: u8) -> Value {
    rack.node(place).or_end().expect("it is known")
}

/// Waits until a container of one replica is in a phase. Returns the replica.
fn reaches(rack: &Rack, name: &str, phase: &str) -> Value {
    let reached = rack.wait(SOON, &format!("{name} to be {phase}"), |rack| {
        let replica = rack.query(&["container", "show", name])?["replicas"][0].clone();
        let seen = replica.to_string();
        Ok(Wait::some((replica["phase"] == phase).then_some(replica), seen))
    });
    reached.or_end()
}

/// A program that exceeds its memory ends, and one that wants more processor time does not get it.
/// The web server beside them goes on.
fn limits_hold(rack: &Rack) {
    let run = |name: &str, options: &[&str], program: &[&str]| {
        let order = ["container", "run", name, "web", "--memory", "16M", "--scratch", "1M"];
        rack.run_cli(&[order.as_slice(), options, &["--"], program].concat()).or_end();
    };
    let fill = ["/bin/busybox", "dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=1"];
    run("greedy", &["--restart", "on-failure:1"], &fill);
    let spin = "/bin/busybox time -p /bin/busybox timeout 10 /bin/sh -c 'while :; do :; done'";
    run("busy", &["--cpus", "0.1", "--restart", "never"], &["/bin/sh", "-c", spin]);
    let greedy = reaches(rack, "greedy", "failed");
    assert_eq!(greedy["detail"], "out of memory (limit 16 MiB)", "{greedy}");
    assert_eq!(greedy["restarts"], 1, "{greedy}");
    let busy = reaches(rack, "busy", "exited");
    let output = rack.run_cli(&["container", "logs", "busy"]).or_end();
    let seconds = |name: &str| -> f32 {
        let value = output.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{busy}: {output}"))
    };
    // A tenth of 10 s, and what a period of 100 ms rounds.
    assert!(seconds("real") >= 10.0 && seconds("user") + seconds("sys") < 2.0, "{output}");
    for replica in show(rack, "web")["replicas"].as_array().expect("replicas") {
        assert_eq!((&replica["phase"], &replica["restarts"]), (&"healthy".into(), &0.into()));
    }
    for name in ["greedy", "busy"] {
        rack.run_cli(&["container", "delete", name, "--yes"]).or_end();
    }
}

#[test]
fn replica_of_a_powerless_node_is_served_by_the_third_node() {
    let mut test = online(NODES, |options, _| {
        options
            .set("agent.heartbeat", "5s")
            .set("agent.offline_after", "30s")
            .set("profiles.lab.bundles", r#"["crun"]"#)
    });
    let rack = &mut test.rack;
    containers::import(rack);
    containers::run(rack, 2);
    let places = [0, 1].map(|index| place_of(rack, index).expect("a node"));
    places.iter().for_each(|place| answers(rack, &node(rack, *place)));
    limits_hold(rack);

    let [lost, other] = places;
    rack.power(lost, Power::Off).or_end();
    rack.wait(SOON, "the replica to be unreachable", |rack| {
        let replica = show(rack, "web")["replicas"][0].clone();
        let is_lost = replica["phase"] == "unreachable";
        Ok(Wait::some(is_lost.then_some(()), replica.to_string()))
    })
    .or_end();
    assert_eq!(place_of(rack, 0), Some(lost), "nobody has said that the machine is off");
    answers(rack, &node(rack, other));

    let id = rack.id(lost).to_string();
    let name = node(rack, lost)["name"].as_str().expect("a name").to_owned();
    rack.wait(SOON, "the node to be fenced", |rack| {
        Ok(match rack.run_cli(&["node", "fence", &id, "--confirm", &name]) {
            Ok(_) => Wait::Done(()),
            Err(error) => Wait::NotYet(error.to_string()),
        })
    })
    .or_end();
    let third = (1..=NODES).find(|place| !places.contains(place)).expect("a third node");
    rack.wait(SOON, "the third node to serve", |rack| {
        let web = show(rack, "web");
        let mut replicas = web["replicas"].as_array().into_iter().flatten();
        let is_moved = place_of(rack, 0) == Some(third)
            && replicas.all(|replica| replica["phase"] == "healthy");
        Ok(Wait::some(is_moved.then_some(()), web.to_string()))
    })
    .or_end();
    [other, third].iter().for_each(|place| answers(rack, &node(rack, *place)));

    containers::delete(rack);
    for place in [other, third] {
        let id = rack.id(place).to_string();
        let look = ["node", "exec", "--user", "root", &id, "--", "/bin/sh", "-c", LOOK];
        let left = rack.run_cli(&look).or_end();
        assert_eq!(left, "looked\n", "node{place}");
    }
}
