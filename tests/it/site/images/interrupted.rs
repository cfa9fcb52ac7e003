//! Ctrl-C ends a build with its programs and removes its folder. After `kill -9`, the next build
//! works while programs of the killed one still run.

use crate::world::{eventually, write_program};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};
use tempfile::TempDir;

/// Writes its own ID and that of its child, as mmdebstrap has children, and runs for ever.
const MMDEBSTRAP: &str = r#"#!/bin/sh
sleep 1000 &
echo "$$ $!" >"$PIDS.new"
mv "$PIDS.new" "$PIDS"
wait
"#;
const RECIPE: &str = "kind = \"root\"\narch = \"x86_64\"\ndescription = \"x\"\n\
    [source.debian]\nsuite = \"bookworm\"\npackages = [\"udev\"]\n\
    [modules]\nkeep = [\"drivers/virtio\"]\n";

/// A site whose only image is built by a program that runs for ever.
struct Site(TempDir);

impl Site {
    fn new() -> Self {
        let site = Site(tempfile::tempdir().unwrap());
        let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
        for folder in ["images/trial", "bin"] {
            fs::create_dir_all(site.path(folder)).unwrap();
        }
        write_program(&site.path("bin/mmdebstrap"), MMDEBSTRAP);
        fs::write(site.path("images/trial/image.toml"), RECIPE).unwrap();
        std::os::unix::fs::symlink(repository.join("overlays"), site.path("overlays")).unwrap();
        let blobs = format!("images_dir = \"images\"\nblobs_dir = {:?}", site.path("blobs"));
        let text = fs::read_to_string(repository.join("site.toml")).unwrap();
        let text = text
            .replace("images_dir = \"images\"", &blobs)
            .replace("image = \"alpine-lab\"", "image = \"trial\"");
        fs::write(site.path("site.toml"), text).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Starts a command that builds the image, and waits for the program of the build.
    fn build(&self, command: &[&str]) -> (Child, Vec<i32>) {
        let _ = fs::remove_file(self.path("pids"));
        let path = std::env::var("PATH").unwrap_or_default();
        let mut meshd = Command::new(env!("CARGO_BIN_EXE_meshd"));
        meshd
            .arg("--site")
            .arg(self.path("site.toml"))
            .args(command)
            .env("PIDS", self.path("pids"));
        meshd.env("PATH", format!("{}:{path}", self.path("bin").display()));
        let mut meshd = meshd
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let pids = eventually("the program of the build", || {
            assert!(meshd.try_wait().unwrap().is_none(), "{}", said(&mut meshd));
            fs::read_to_string(self.path("pids")).map_err(|error| error.to_string())
        });
        (meshd, pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect())
    }

    /// Work folders of builds.
    fn work_folders(&self) -> Vec<PathBuf> {
        let entries =
            fs::read_dir(self.path("blobs/work")).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_dir()).collect()
    }

    fn is_interrupted(&self, command: &[&str]) {
        let (mut meshd, pids) = self.build(command);
        kill_process(Pid::from_child(&meshd), Signal::INT).unwrap();
        let status = eventually("the end of meshd", || {
            meshd.try_wait().unwrap().ok_or_else(|| "it runs".to_owned())
        });
        let message = said(&mut meshd);
        assert_eq!(status.code(), Some(1), "{message}");
        assert!(message.ends_with("error: interrupted\n"), "{message}");
        assert_eq!(living(&pids), Vec::<i32>::new(), "{message}");
        assert_eq!(self.work_folders(), Vec::<PathBuf>::new());
    }
}

fn said(meshd: &mut Child) -> String {
    let mut text = String::new();
    std::io::Read::read_to_string(&mut meshd.stderr.take().unwrap(), &mut text).unwrap();
    text
}

/// Those of the processes that run. A zombie does not.
fn living(pids: &[i32]) -> Vec<i32> {
    let state = |pid: &i32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let lives = |pid: &i32| !state(pid).is_empty() && !state(pid).contains(") Z ");
    pids.iter().copied().filter(lives).collect()
}

#[test]
fn interrupted_build_leaves_no_program_and_no_folder() {
    let site = Site::new();
    site.is_interrupted(&["image", "build", "trial"]);
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/agent/x86_64/mesh-agent");
    let agent = format!("agent.binary={}", agent.display());
    let dir = site.path("lab");
    let dir = dir.display().to_string();
    let blobs = site.path("blobs").display().to_string();
    // Only the parent of the build receives the signal.
    site.is_interrupted(&["lab", "image", "--dir", &dir, "--blobs", &blobs, "--set", &agent]);
}

#[test]
fn build_works_while_programs_of_a_killed_one_run() {
    let site = Site::new();
    let (mut killed, left) = site.build(&["image", "build", "trial"]);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!((living(&left).len(), site.work_folders().len()), (2, 1));
    site.is_interrupted(&["image", "build", "trial"]);
    assert_eq!(living(&left), left, "the next build has nothing to do with them");
    for pid in left {
        kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    }
}
