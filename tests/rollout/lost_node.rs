//! A container on three machines, of which one loses its power: a replica moves when an operator
//! says so, and nothing of it is left in the end.

use crate::{
    containers::{self, answers, show},
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

/// The place of the node of a replica.
fn place_of(rack: &Rack, index: usize) -> Option<u8> {
    let web = show(rack, "web");
    (1..=NODES).find(|place| web["replicas"][index]["node"] == rack.id(*place).to_string().as_str())
}

fn node(rack: &Rack, place: u8) -> Value {
    rack.node(place).or_end().expect("it is known")
}

#[test]
fn replica_of_a_powered_off_node_is_served_by_the_third_and_leaves_nothing() {
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
    containers::limits_hold(rack);

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
