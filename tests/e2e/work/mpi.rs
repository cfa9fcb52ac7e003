//! MPI on the metal: an allreduce over two netbooted nodes, without ssh, its result checked by
//! every rank; then one of them loses power in the middle of another one. Containers run on both
//! nodes before: that saves boots of their own.

use super::containers;
use crate::{
    overlays::copy,
    racks::{BOOT, OrEnd, SOON, repository, until_phase, up_alone},
};
use meshd_lab::{Identity, LabError, Power, Rack, Wait};
use serde_json::Value;
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Command};

const HEAD: u8 = 1;
const OTHER: u8 = 2;
/// Where the nodes have it.
const PROGRAM: &str = "/opt/trial/program";

/// The overlays of the site, and one with a program that was built against Debian's MPICH.
fn with_program(dir: &Path) -> std::path::PathBuf {
    let overlays = dir.join("overlays");
    copy(&repository().join("overlays"), &overlays);
    let own = overlays.join("program");
    let folder = own.join("rootfs/opt/trial");
    fs::create_dir_all(&folder).expect("made");
    let source = repository().join("tests/it/work/tasks/program.c");
    let compiled =
        Command::new("mpicc").arg("-O1").arg("-o").arg(folder.join("program")).arg(source).output();
    let compiled = compiled.expect("mpicc, from `.ci/setup test`");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    fs::set_permissions(folder.join("program"), fs::Permissions::from_mode(0o755))
        .expect("its own");
    let manifest =
        format!("description = \"a program of MPI\"\n\n[files.\"{PROGRAM}\"]\nmode = \"0755\"\n");
    fs::write(own.join("overlay.toml"), manifest).expect("written");
    overlays
}

fn task(rack: &Rack, id: &str) -> Value {
    rack.query(&["task", "show", id]).or_end()
}

#[test]
fn allreduce_runs_on_netbooted_nodes_and_power_loss_fails_the_task() {
    let mut test = up_alone(|mut options, dir| {
        options.nodes = 2;
        let overlays = with_program(dir);
        let pair = [HEAD, OTHER].map(|place| Identity::at(place).node_id().to_string());
        options
            .set("enroll.policy", "auto")
            .set("agent.heartbeat", "5s")
            .set("agent.offline_after", "30s")
            .set("site.overlays_dir", &overlays.display().to_string())
            .set("profiles.discovery.overlays", r#"["base", "agent", "program"]"#)
            .set("profiles.discovery.bundles", r#"["mpi", "crun"]"#)
            .set("groups.pair.nodes", &format!("{pair:?}"))
    });
    let rack = &mut test.rack;
    let nodes = [HEAD, OTHER].map(|place| until_phase(rack, place, "online", BOOT));
    containers::serve_on_nodes_and_leave_nothing(rack, &nodes);
    let run = ["task", "run", "--group", "pair"];
    let ranks = ["--ranks-per-node", "2", "--timeout", "2m", "--", "mpi-run", PROGRAM];
    // MPICH may hang at its end, as tests/it/work/tasks/rig.rs tells: such a run is made again.
    let hung = |ran: &Result<String, LabError>| {
        ran.as_ref().is_err_and(|error| error.to_string().contains("time_limit"))
    };
    let mut runs = (0..3).map(|_| rack.run_cli(&[&run[..], &ranks[..]].concat()));
    let out = runs.find(|ran| !hung(ran)).expect("one run comes to its end").or_end();
    for rank in 0..4 {
        assert!(out.contains(&format!("rank {rank} of 4: sum 30 uid ")), "{out}");
    }
    // Nothing that lets anybody in was made for it, and nothing of it is left (BM-4).
    let look = "ls -A /root/.ssh 2>/dev/null; ls /run/meshd-tasks | grep -v $MESHD_TASK; ls /dev/shm; pgrep -f '[t]rial/program'; true";
    let left = rack.run_cli(
        &[&run[..], &["--launcher", "none", "--user", "root", "--", "/bin/sh", "-c", look]]
            .concat(),
    );
    let left = left.or_end();
    assert!(left.lines().all(|line| line == "authorized_keys"), "{left}");

    let id = rack
        .run_cli(&[&run[..], &["--detach", "--", "mpi-run", PROGRAM, "stay"]].concat())
        .or_end();
    let id = id.trim().to_owned();
    rack.wait(SOON, "both ranks", |rack| {
        let logs = rack.run_cli(&["task", "logs", &id])?;
        Ok(Wait::some((logs.matches("stays").count() == 2).then_some(()), &logs))
    })
    .or_end();
    rack.power(OTHER, Power::Off).or_end();
    let failed = rack.wait(SOON * 3, "the task to fail", |rack| {
        let task = task(rack, &id);
        Ok(Wait::some((task["state"] == "failed").then(|| task.clone()), task.to_string()))
    });
    let failed = failed.or_end();
    assert_eq!(
        (&failed["cause"], &failed["node"]),
        (&"node_lost".into(), &rack.id(OTHER).to_string().into()),
        "{failed}"
    );
    let claimed = |place: u8| {
        let id = rack.id(place).to_string();
        let mut nodes = failed["nodes"].as_array().into_iter().flatten();
        nodes.find(|node| node["node"] == id.as_str()).map(|node| node["claimed"] == true)
    };
    assert_eq!((claimed(HEAD), claimed(OTHER)), (Some(false), Some(true)), "{failed}");
    let left = rack.run_cli(
        &[
            &run[..],
            &["--nodes", "1", "--", "/bin/sh", "-c", "pgrep -f '[t]rial/program' || echo free"],
        ]
        .concat(),
    );
    assert_eq!(left.or_end(), "free\n", "the ranks of the other node are gone too");
}
