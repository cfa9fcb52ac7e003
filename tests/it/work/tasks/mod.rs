//! Tasks on two machines: the real daemon, two real agents in namespaces of their own, and the real
//! MPICH.

mod attached;
mod input;
mod isolated;
pub mod rig;
pub mod shell;

use crate::world::{World, eventually, stderr};
use rig::{LEFT, Rig};
use serde_json::Value;
use std::{fs, process::Command};

/// How long a process sleeps that leaves its task: known by it.
const ESCAPED: &str = "271828";

/// Nothing is claimed any more.
fn all_free(task: &Value) -> bool {
    task["nodes"].as_array().unwrap().iter().all(|node| node["claimed"] == false)
}

#[test]
fn allreduce_over_two_nodes_succeeds_and_leaves_nothing() {
    let rig = Rig::new();
    let program = rig.program();
    let (code, out, stderr_text) = rig.run(&["--ranks-per-node", "2", "--", &program]);
    assert_eq!(code, 0, "{out}\n{stderr_text}");
    for rank in 0..4 {
        assert!(out.contains(&format!("rank {rank} of 4: sum 30 uid ")), "{out}");
    }
    let tasks = rig.world.json(&["task", "list", "-o", "json"]);
    let task = tasks.as_array().unwrap().last().expect("it ran").clone();
    assert_eq!(
        (&task["state"], &task["launcher"], &task["code"]),
        (&"succeeded".into(), &"mpich".into(), &0.into())
    );
    assert!(all_free(&task) && task["nodes"][0]["address"] == "10.77.0.51", "{task}");
    let mut kept: Vec<String> =
        rig.logs(task["id"].as_str().unwrap()).lines().map(str::to_owned).collect();
    let mut seen: Vec<String> = out.lines().map(str::to_owned).collect();
    kept.sort();
    seen.sort();
    assert_eq!(kept, seen, "what was shown is kept");
    rig.is_clean();

    // Its exit code is the command's; what it says on standard error stays there; no shell reads
    // its arguments.
    let (code, _, stderr_text) = rig.run(&["--", &program, "exit", "7"]);
    assert_eq!(code, 7, "{stderr_text}");
    let (code, out, stderr_text) = rig.run(&["--", &program, "say", "$(id); a  b"]);
    assert_eq!(code, 0, "{stderr_text}");
    assert!(
        stderr_text.contains("rank 1: [$(id); a  b]\n") && !out.contains("a  b"),
        "{stderr_text}"
    );

    // Without a launcher each node runs it, with what it needs to know.
    let script = "echo rank $MESHD_RANK of $MESHD_RANKS on $MESHD_NODE; pwd; touch here";
    let (code, out, stderr_text) =
        rig.run(&["--launcher", "none", "--ranks-per-node", "2", "--", "/bin/sh", "-c", script]);
    assert_eq!(code, 0, "{stderr_text}");
    for line in ["rank 0 of 4 on 0", "rank 1 of 4 on 0", "rank 2 of 4 on 1", "rank 3 of 4 on 1"] {
        assert!(out.lines().any(|written| written == line), "{out}");
    }
    let (code, _, stderr_text) = rig.run(&["--nodes", "1", "--", "/no/such/program"]);
    assert!(
        code == 127 && stderr_text.contains("cannot run /no/such/program"),
        "{code} {stderr_text}"
    );
    let (code, out, _) = rig.run(&[
        "--nodes",
        "1",
        "--",
        "/bin/sh",
        "-c",
        "ulimit -c; cat /proc/self/status; exit 3",
    ]);
    assert!(code == 3 && out.starts_with("0\n") && out.contains("NoNewPrivs:\t1"), "{code} {out}");
    let (code, out, _) = rig.run(&[
        "--nodes",
        "1",
        "--",
        "/bin/sh",
        "-c",
        "head -c 3000000 /dev/zero | tr '\\0' x; echo; echo end",
    ]);
    assert_eq!((code, out.len()), (0, 3_000_005), "more than any buffer");
    for wrong in [
        &["--nodes", "3", "--", "true"][..],
        &["--", &program, ":", "x"],
        &["--user", "5", "--", "true"],
    ] {
        let (code, _, stderr_text) = rig.run(wrong);
        assert!(
            code == 1 && stderr_text.starts_with("error: ") && stderr_text.contains("hint: "),
            "{wrong:?}: {stderr_text}"
        );
    }
    rig.is_clean();
    let audit = rig.world.json(&["audit", "-o", "json"]);
    assert!(audit.as_array().unwrap().iter().any(|line| line["verb"] == "task-run"), "{audit}");
}

#[test]
fn task_holds_its_nodes_exclusively_and_cancel_or_timeout_ends_it() {
    let rig = Rig::new();
    let program = rig.program();
    let id = rig.begin(&["--ranks-per-node", "2", "--", &program, "stay"]);
    rig.until_written(&id, "stays", 4);
    // The child of each rank ends once it has made the one that left it.
    eventually("each rank has a child that left it", || match rig.ranks() {
        8 => Ok(()),
        count => Err(count.to_string()),
    });
    let (code, _, stderr_text) = rig.run(&["--nodes", "1", "--", "true"]);
    assert!(code == 1 && stderr_text.contains(&format!("has task {id}")), "{stderr_text}");
    let node = rig.task(&id)["nodes"][0]["node"].as_str().expect("an ID").to_owned();
    for order in [&["node", "reboot", &node, "--yes"][..], &["node", "remove", &node, "--yes"]] {
        let refused = rig.world.meshd(order);
        let stderr_text = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && stderr_text.contains(&format!("runs task {id}")),
            "{order:?}: {stderr_text}"
        );
    }
    assert_eq!(rig.task(&id)["state"], "running");
    let cancelled = rig.world.meshd(&["task", "cancel", &id, "--reason", "enough"]);
    assert!(cancelled.status.success());
    let task = rig.until_state(&id, "cancelled");
    assert!(all_free(&task) && task["detail"] == "enough", "{task}");
    rig.is_clean();

    // The same by its limit; a shell that leaves something in the background leaves nothing.
    let id = rig.begin(&["--timeout", "6s", "--", &program, "stay"]);
    let task = rig.until_state(&id, "timed_out");
    assert!(all_free(&task) && task["cause"] == "time_limit", "{task}");
    rig.is_clean();
    let (code, out, stderr_text) =
        rig.run(&["--nodes", "1", "--", "/bin/sh", "-c", "setsid sleep 1000 & echo started"]);
    assert_eq!((code, out.as_str()), (0, "started\n"), "{stderr_text}");
    // Root may leave the control group, not by oversight; and whoever does it on purpose is found.
    let escape = format!(
        "groups=$(awk '$3 == \"cgroup2\" {{ print $2; exit }}' /proc/mounts); echo x >/dev/shm/{LEFT}; ipcmk -M 4096 >/dev/null; \
         setsid sleep {ESCAPED} & ( echo $! >$groups/cgroup.procs ) 2>/dev/null || echo held; \
         mount -o remount,rw $groups && echo $! >$groups/cgroup.procs && echo left"
    );
    let (code, out, stderr_text) =
        rig.run(&["--nodes", "1", "--user", "root", "--", "/bin/sh", "-c", &escape]);
    assert_eq!((code, out.as_str()), (0, "held\nleft\n"), "{stderr_text}");
    assert_eq!(rig.running(&["sleep", ESCAPED]), 0);
    // Ranks of one node share their memory, and it goes with the task.
    let share = format!(
        "touch /dev/shm/{LEFT}$MESHD_LOCAL_RANK; until [ -e /dev/shm/{LEFT}0 -a -e /dev/shm/{LEFT}1 ]; do sleep 0.1; done"
    );
    let (code, _, stderr_text) = rig.run(&[
        "--nodes",
        "1",
        "--launcher",
        "none",
        "--ranks-per-node",
        "2",
        "--",
        "/bin/sh",
        "-c",
        &share,
    ]);
    assert_eq!(code, 0, "{stderr_text}");
    rig.is_clean();
    // Cancelled before its nodes can have answered.
    let id = rig.begin(&["--", &program, "stay"]);
    assert!(rig.world.meshd(&["task", "cancel", &id]).status.success());
    assert!(all_free(&rig.until_state(&id, "cancelled")));
    rig.is_clean();
}

#[test]
fn ranks_still_starting_when_the_task_fails_end_with_it() {
    let rig = Rig::new();
    // The first one fails while the last ones are not in the control group yet.
    let script = "[ $MESHD_LOCAL_RANK = 0 ] && exit 3; exec sleep 1000";
    for _ in 0..3 {
        let id = rig.begin(&[
            "--launcher",
            "none",
            "--ranks-per-node",
            "64",
            "--",
            "/bin/sh",
            "-c",
            script,
        ]);
        let task = rig.until_state(&id, "failed");
        assert!(all_free(&task) && task["code"] == 3, "{task}");
        rig.is_clean();
    }
}

#[test]
fn unreachable_proxy_fails_the_task_and_names_its_node() {
    let rig = Rig::new();
    rig.hide(0, 1);
    // Hydra's head waits for all proxies, for ever.
    let (code, _, stderr_text) = rig.run(&["--timeout", "10m", "--", &rig.program()]);
    let task = rig.world.json(&["task", "list", "-o", "json"])[0].clone();
    assert_eq!(
        (code, &task["cause"], &task["node"]),
        (1, &"proxy_failed".into(), &rig.machines[1].id.as_str().into())
    );
    assert!(all_free(&task) && stderr_text.contains("proxy_failed"), "{task} {stderr_text}");
    rig.is_clean();
}

#[test]
fn task_continues_without_central_node_and_finishes_on_its_return() {
    let mut rig = Rig::new();
    let program = rig.program();
    let (id, task) = rig.unless_hung(|rig, attempt| {
        let go = rig.file(&format!("go{attempt}"));
        let id =
            rig.begin(&["--timeout", "60s", "--ranks-per-node", "2", "--", &program, "wait", &go]);
        rig.until_written(&id, "sum 30 uid", 4);
        let before = rig.ranks();
        rig.world.kill();
        assert_eq!((before, rig.ranks()), (4, 4));
        // It ends while nobody is there to hear it.
        fs::write(&go, "").unwrap();
        rig.world.start();
        let task = rig.until_ended(&id);
        (id, task)
    });
    assert_eq!(task["state"], "succeeded", "{task}");
    assert!(all_free(&task) && task["code"] == 0, "{task}");
    let logs = rig.logs(&id);
    assert_eq!(
        (logs.matches("late: sum 30").count(), logs.matches("uid").count()),
        (4, 4),
        "each line once: {logs}"
    );
    rig.is_clean();
}

#[test]
fn loss_of_agent_or_node_fails_task_and_frees_other_nodes() {
    let mut rig = Rig::new();
    let program = rig.program();
    let id = rig.begin(&["--ranks-per-node", "2", "--", &program, "stay"]);
    rig.until_written(&id, "stays", 4);
    rig.kill_agent(1);
    rig.start_agent(1);
    let task = rig.until_state(&id, "failed");
    let node = task["node"].as_str().unwrap();
    let cause = task["cause"].as_str().unwrap();
    // The head may see it first: its Hydra misses the proxy.
    assert!(
        cause == "exited" || cause == "agent_restarted" && node == rig.machines[1].id,
        "{task}"
    );
    assert!(all_free(&task), "{task}");
    rig.is_clean();
    rig.until_phase(1, "online");

    // A node that is silent for too long: the other one is free, it is not.
    let id = rig.begin(&["--launcher", "none", "--", &program, "stay"]);
    rig.until_written(&id, "stays", 2);
    rig.kill_agent(1);
    let task = rig.until_state(&id, "failed");
    assert_eq!(
        (&task["cause"], &task["node"]),
        (&"node_lost".into(), &rig.machines[1].id.as_str().into()),
        "{task}"
    );
    assert_eq!(
        (&task["nodes"][0]["claimed"], &task["nodes"][1]["claimed"]),
        (&false.into(), &true.into())
    );
    let (code, _, stderr_text) = rig.run(&["--nodes", "1", "--", "true"]);
    assert_eq!(code, 0, "the other one takes work: {stderr_text}");
    rig.start_agent(1);
    rig.until_phase(1, "online");
    eventually("the lost node is free", || {
        let task = rig.task(&id);
        if all_free(&task) { Ok(()) } else { Err(format!("{task}\n{}", rig.machines[1].log())) }
    });
    let (code, _, stderr_text) = rig.run(&["--", &program]);
    assert_eq!(code, 0, "{stderr_text}");
    rig.is_clean();
}

#[test]
fn task_has_temporary_files_of_its_own_and_leaves_none() {
    let rig = Rig::new();
    let left = format!("meshd-left-{}", std::process::id());
    let script = format!(
        "ls -A /tmp /var/tmp; touch /tmp/{left} /var/tmp/{left} && echo written; df -k . | tail -n 1"
    );
    let task = ["--nodes", "1", "--launcher", "none", "--", "/bin/sh", "-c", &script];
    for _ in 0..2 {
        let (code, out, stderr_text) = rig.run(&task);
        assert_eq!(code, 0, "{stderr_text}");
        assert!(out.starts_with("/tmp:\n\n/var/tmp:\nwritten\nmeshd-task "), "{out}");
    }
    let on_the_node = ["/tmp", "/var/tmp"].map(|folder| std::path::Path::new(folder).join(&left));
    let there = on_the_node.each_ref().map(|file| fs::remove_file(file).is_ok());
    assert_eq!(there, [false, false]);
    rig.is_clean();
}

#[test]
fn task_as_root_is_refused_where_the_site_forbids_it() {
    let mut world = World::prepared("approve");
    world.edit_site("[agent]\n", "[agent]\nroot_tasks = false\n");
    let site = fs::read_to_string(&world.site).unwrap();
    fs::write(&world.site, site + "[groups.pair]\nnodes = [\"00000000\"]\n").unwrap();
    world.start();
    let run = |user: &str| {
        let output = world.meshd(&[
            "task",
            "run",
            "--group",
            "pair",
            "--nodes",
            "1",
            "--user",
            user,
            "--",
            "/bin/true",
        ]);
        assert!(!output.status.success());
        stderr(&output)
    };
    let stderr_text = run("root");
    assert!(stderr_text.contains("[agent].root_tasks = false"), "{stderr_text}");
    // Neither does anybody get a shell as root.
    let mut shell = shell::Terminal::open(&mut world.cli(&["node", "shell", "00000000"]), None);
    shell.shows("[agent].root_tasks = false");
    assert_eq!(shell.exit_code(), 1);
    // Another user gets past that, as far as the missing node.
    let stderr_text = run("1000");
    assert!(
        stderr_text.contains("group pair has too few free nodes: 0 free, 1 requested"),
        "{stderr_text}"
    );
}

#[test]
fn node_exec_returns_exit_code_and_output_of_the_program() {
    let rig = Rig::new();
    let node =
        rig.world.json(&["node", "list", "-o", "json"])[1]["id"].as_str().unwrap().to_owned();
    let exec = |args: &[&str]| {
        let ran = rig.world.meshd(&[&["node", "exec", &node][..], args].concat());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    };
    let (code, out, stderr_text) =
        exec(&["--", "/bin/sh", "-c", "echo $MESHD_NODE $MESHD_RANKS; echo no >&2; exit 3"]);
    assert_eq!((code, out.as_str()), (Some(3), "0 1\n"), "{stderr_text}");
    assert!(
        stderr_text.contains("no\n") && stderr_text.contains(&format!(" ({node})\n")),
        "{stderr_text}"
    );
    let tasks = rig.world.json(&["task", "list", "-o", "json"]);
    let task = tasks.as_array().unwrap().last().unwrap().clone();
    assert_eq!(
        (&task["group"], &task["nodes"][0]["node"]),
        (&node.as_str().into(), &node.as_str().into()),
        "{task}"
    );
    let audit = rig.world.json(&["audit", "-o", "json"]);
    let line = audit
        .as_array()
        .unwrap()
        .iter()
        .rev()
        .find(|line| line["verb"] == "task-run")
        .cloned()
        .unwrap();
    assert!(line["detail"].as_str().unwrap().ends_with(": /bin/sh"), "no arguments: {line}");
    let mut curl = Command::new("curl");
    curl.arg("--silent")
        .arg("--unix-socket")
        .arg(rig.world.path("admin.sock"))
        .arg("http://meshd/metrics");
    let metrics = String::from_utf8(curl.output().unwrap().stdout).unwrap();
    for line in
        ["meshd_task_start_seconds_count 1\n", "meshd_task_seconds_count{state=\"failed\"} 1\n"]
    {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }

    let begun = rig.begin(&["--launcher", "none", "--", "/bin/sleep", "1000"]);
    let (code, _, stderr_text) = exec(&["--", "/bin/true"]);
    assert!(code == Some(1) && stderr_text.contains(&format!("has task {begun}")), "{stderr_text}");
    let unknown = rig.world.meshd(&["node", "exec", "nowhere", "--", "/bin/true"]);
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("nowhere"), "an unknown node");
}
