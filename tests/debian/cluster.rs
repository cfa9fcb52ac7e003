//! Two Debian nodes are a Slurm cluster: `srun` runs an MPI allreduce on both, and so do
//! `mpiexec.hydra`, by ssh, and `meshd task run`, by the agents. A drain of meshd drains the node
//! in Slurm and waits for its jobs. While the nodes boot, they lose the server that sends their
//! root.

use crate::{
    damaged::manifest_of,
    racks::{BOOT, OrEnd, repository, until_phase, up_alone},
    resumed, tethered,
};
use meshd_lab::{Identity, LabError, Power, Rack, Shape, Wait};
use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

const IMAGE: &str = "debian-12-hpc";
const NODES: [u8; 2] = [1, 2];
/// What Slurm needs for anything: a command of Slurm takes seconds on an emulated node.
const SLURM: Duration = Duration::from_secs(4 * 60);
const CONTROLLER: &str = "10.77.0.20";
/// Where the nodes have the program.
const PROGRAM: &str = "/opt/trial/program";
/// Any bytes, as base64.
const KEY: &str = "bXVuZ2Uga2V5IG9mIHRoZSB0ZXN0LCBsb25nIGVub3VnaCBmb3IgbXVuZ2Vk";

/// Root logs in, and starts the program in a folder that both nodes have.
const BY_SSH: [&str; 7] = [
    "env",
    "-i",
    "HOME=/root",
    "/bin/sh",
    "-l",
    "-c",
    "cd / && mpiexec.hydra -n 2 /opt/trial/program",
];

#[test]
fn slurm_runs_an_allreduce_on_two_netbooted_nodes_and_drains_with_meshd() {
    let mut blobs = PathBuf::new();
    let mut test = up_alone(|mut options, dir| {
        (options.nodes, options.powered) = (2, false);
        blobs = options.blobs.clone().expect("named");
        options.shape = Shape { cpus: 1, memory_mib: 1536, ..options.shape };
        let key = dir.join("munge.key");
        fs::write(&key, KEY).expect("written");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("private");
        let ids = NODES.map(|place| Identity::at(place).node_id().to_string());
        let overlays = r#"["base", "agent", "ssh", "mpi", "munge", "slurm-node", "program"]"#;
        let (mpi_key, public_key) = ssh_key(dir);
        let vars = format!(
            r#"{{ slurm_group = "cluster", slurm_controller = "{CONTROLLER}", mpi_group = "cluster", mpi_slots = 1, mpi_public_key = "{public_key}" }}"#
        );
        let reservations = format!(
            r#"[{{ node = "{}", address = "{CONTROLLER}" }}, {{ node = "{}", address = "10.77.0.21" }}]"#,
            ids[0], ids[1]
        );
        options
            .set("enroll.policy", "auto")
            .set("reservation", &reservations)
            .set("secrets.munge_key", &format!("{{ file = {:?} }}", key.display().to_string()))
            .set("secrets.mpi_key", &format!("{{ file = {:?} }}", mpi_key.display().to_string()))
            .set("boot.root_servers", &format!("[\"{}:8080\"]", tethered::MIRROR))
            .set("site.overlays_dir", &with_program(dir).display().to_string())
            .set("profiles.hpc.image", IMAGE)
            .set("profiles.hpc.overlays", overlays)
            .set("profiles.hpc.writable", "256M")
            .set("defaults.profile", "hpc")
            .set("groups.cluster.nodes", &format!("{ids:?}"))
            .set("groups.cluster.vars", &vars)
            .set("groups.controller.nodes", &format!("{:?}", &ids[..1]))
            .set("groups.controller.overlays", r#"["slurm-controller"]"#)
    });
    let rack = &mut test.rack;
    let root = tethered::root(&manifest_of(&blobs, IMAGE), &blobs);
    let folder = rack.dir().to_owned();
    let roots = [root];
    let mirror = tethered::server(rack, "mirror", tethered::MIRROR, &folder, &roots, resumed::RATE);
    for place in NODES {
        rack.power(place, Power::On).or_end();
    }
    resumed::loses_its_server(rack, &NODES, mirror);
    for place in NODES {
        until_phase(rack, place, "online", BOOT);
    }
    until_printed(
        rack,
        &["sinfo", "--noheader", "--Node", "--format=%t"],
        "both nodes in Slurm",
        |states| states == "idle\nidle\n",
    );
    let names = on_controller(rack, &["srun", "--nodes=2", "hostname"]).or_end();
    let mut names: Vec<&str> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["node1", "node2"]);
    let out = on_controller(rack, &["srun", "--nodes=2", "--ntasks=2", PROGRAM]).or_end();
    is_sum_of_two_ranks(&out);
    let out = on_controller(rack, &BY_SSH).or_end();
    is_sum_of_two_ranks(&out);
    let out =
        rack.run_cli(&["task", "run", "--group", "cluster", "--timeout", "4m", "--", PROGRAM]);
    is_sum_of_two_ranks(&out.or_end());
    drains_and_resumes(rack);
}

fn is_sum_of_two_ranks(out: &str) {
    for rank in 0..2 {
        assert!(out.contains(&format!("rank {rank} of 2: sum 5 uid ")), "{out}");
    }
}

/// A drain of meshd waits for a job of Slurm. Its resume leaves the drain of an administrator.
fn drains_and_resumes(rack: &Rack) {
    let submit = "sbatch --parsable --nodelist=node2 --chdir=/ --output=/dev/null";
    let mut submit: Vec<&str> = submit.split(' ').collect();
    submit.push("--wrap=sleep 1000");
    let job = on_controller(rack, &submit).or_end();
    let job = job.trim();
    until_slurm(rack, &["State=ALLOCATED"]);
    rack.run_cli(&["node", "drain", "node2", "--reason", "disks"]).or_end();
    let waits = format!("slurm: jobs run: {job}");
    rack.wait(SLURM, &waits, |rack| {
        let node = rack.query(&["node", "show", "node2"])?;
        let work = node["work"][0].as_str().unwrap_or_default().trim() == waits;
        let is_waiting = work && node["phase"] == "draining";
        Ok(Wait::some(is_waiting.then_some(()), node["work"].to_string()))
    })
    .or_end();
    until_slurm(rack, &["+DRAIN", "Reason=meshd: uid:0: disks "]);
    on_controller(rack, &["scancel", job]).or_end();
    until_phase(rack, 2, "maintenance", SLURM);
    resume(rack);
    let name = on_controller(rack, &["srun", "--nodelist=node2", "hostname"]).or_end();
    assert_eq!(name, "node2\n", "the node takes jobs again");

    let drain = ["scontrol", "update", "NodeName=node2", "State=DRAIN", "Reason=new fan"];
    on_controller(rack, &drain).or_end();
    rack.run_cli(&["node", "drain", "node2"]).or_end();
    until_phase(rack, 2, "maintenance", SLURM);
    resume(rack);
    until_slurm(rack, &["+DRAIN", "Reason=new fan "]);
}

/// Returns the node to service, and waits until its hook has run.
fn resume(rack: &Rack) {
    let resumed = |rack: &Rack| {
        let log = rack.run_cli(&["node", "logs", "node2"])?;
        let is_resumed = |line: &&str| line.contains("drains=false") && line.contains("\"done\"");
        Ok(log.lines().filter(is_resumed).count())
    };
    let before = resumed(rack).or_end();
    rack.run_cli(&["node", "resume", "node2"]).or_end();
    rack.wait(SLURM, "the drain hook has resumed", |rack| {
        let count = resumed(rack)?;
        Ok(Wait::some((count > before).then_some(()), format!("{count} runs in the log")))
    })
    .or_end();
}

/// Waits until Slurm describes the second node by these words.
fn until_slurm(rack: &Rack, words: &[&str]) {
    let show = ["scontrol", "--oneliner", "show", "node", "node2"];
    until_printed(rack, &show, &format!("{words:?} in Slurm"), |text| {
        words.iter().all(|word| text.contains(word))
    });
}

/// Waits until a program on the controller prints what is awaited. slurmctld answers some time
/// after its start, and the program fails until then.
fn until_printed(rack: &Rack, argv: &[&str], awaited: &str, is: impl Fn(&str) -> bool) {
    rack.wait(SLURM, awaited, |rack| {
        Ok(match on_controller(rack, argv) {
            Ok(text) => Wait::on(is(&text), text),
            Err(error) => Wait::NotYet(error.to_string()),
        })
    })
    .or_end();
}

/// Runs a program as root on the node with slurmctld.
fn on_controller(rack: &Rack, argv: &[&str]) -> Result<String, LabError> {
    let run = ["task", "run", "--group", "controller", "--launcher", "none", "--user", "root"];
    rack.run_cli(&[&run[..], &["--timeout", "4m", "--"], argv].concat())
}

/// Makes a key by which the nodes log in to each other. Returns its file and its public part.
fn ssh_key(dir: &Path) -> (PathBuf, String) {
    let key = dir.join("id_mpi");
    let mut keygen = Command::new("ssh-keygen");
    keygen.args(["-q", "-t", "ed25519", "-N", "", "-C", "mpi", "-f"]).arg(&key);
    assert!(keygen.status().expect("ssh-keygen").success());
    let public = fs::read_to_string(key.with_extension("pub")).expect("made");
    (key, public.trim().to_owned())
}

/// The overlays of the site, and one with a program that was built against Debian's MPICH.
fn with_program(dir: &Path) -> PathBuf {
    let overlays = dir.join("overlays");
    crate::overlays::copy(&repository().join("overlays"), &overlays);
    let own = overlays.join("program");
    let folder = own.join("rootfs/opt/trial");
    fs::create_dir_all(&folder).expect("made");
    let source = repository().join("tests/it/work/tasks/program.c");
    let compiled =
        Command::new("mpicc").arg("-O1").arg("-o").arg(folder.join("program")).arg(source).output();
    let compiled = compiled.expect("mpicc, from `.ci/setup test`");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let manifest = format!(
        "description = \"a program of MPI\"\nsystems = [\"systemd\"]\n\n[files.\"{PROGRAM}\"]\nmode = \"0755\"\n"
    );
    fs::write(own.join("overlay.toml"), manifest).expect("written");
    overlays
}
