//! Runs meshd inside the rack's namespace and calls its CLI.

use super::{Rack, shared_blobs};
use crate::{
    Interrupt, LabError, ProcessId, Wait,
    host::{command, process::wait_for_child, wait::until},
    qemu::serial,
};
use meshd_config::{Profile, Site};
use serde_json::Value;
use std::{
    collections::BTreeSet,
    fs::{self, OpenOptions},
    os::unix::{net::UnixStream, process::CommandExt},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

/// Longest time from the start of meshd to its first response.
const START_LIMIT: Duration = Duration::from_secs(60);
/// Longest time from meshd's first response to the ID of its site.
const ID_LIMIT: Duration = Duration::from_secs(5);
/// Longest time that meshd may take to drain.
const STOP_LIMIT: Duration = Duration::from_secs(15);
/// Longest time that a build may take to end its programs and to remove their files.
const BUILD_STOP_LIMIT: Duration = Duration::from_secs(60);
/// Number of log lines that an error shows.
const LOG_LINES: usize = 30;
/// Name of meshd among the rack's processes.
const NAME: &str = "meshd";

/// Returns the images, then the bundles, of one profile or of all profiles.
fn required_images(site: &Site, only: Option<&str>) -> Vec<(&'static str, String)> {
    let boots = |profile: &&Profile| only.is_none_or(|name| profile.name.as_str() == name);
    let profiles: Vec<&Profile> = site.profiles.values().filter(boots).collect();
    let images: BTreeSet<_> =
        profiles.iter().map(|profile| ("image", profile.image.to_string())).collect();
    let bundles = profiles.iter().flat_map(|profile| &profile.bundles);
    let bundles: BTreeSet<_> = bundles.map(|bundle| ("bundle", bundle.to_string())).collect();
    images.into_iter().chain(bundles).collect()
}

/// Builds the images and bundles of one profile, or of all, that are not up to date.
pub fn ensure_images(
    program: &Path,
    site: &Site,
    only: Option<&str>,
    interrupt: &Interrupt,
    report: &mut dyn FnMut(&str),
) -> Result<(), LabError> {
    for (kind, name) in required_images(site, only) {
        let mut build = Command::new(program);
        build.arg("--site").arg(&site.file).args([kind, "build"]).arg(&name);
        report(&format!("{kind} {name}: building unless up to date"));
        let shown = command::command_line(&build);
        // The build prints its progress to stderr.
        let status = run_build(&mut build, &shown, interrupt)?;
        if !status.success() {
            return Err(LabError::Failed {
                program: shown,
                detail: format!("see above ({status})"),
            });
        }
    }
    Ok(())
}

/// Runs a build. An interrupt ends it with the programs that it runs.
fn run_build(
    build: &mut Command,
    shown: &str,
    interrupt: &Interrupt,
) -> Result<ExitStatus, LabError> {
    let failed = |source| LabError::Spawn { program: shown.to_owned(), source };
    let mut child = build.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(failed)?;
    let ended = until(interrupt, Duration::MAX, shown, || {
        Ok(Wait::some(child.try_wait().map_err(failed)?, "it runs"))
    });
    if let (Err(_), Some(process)) = (&ended, ProcessId::of(child.id())) {
        process.end(shown, BUILD_STOP_LIMIT)?;
        let _ = child.wait();
    }
    // At a terminal, Ctrl-C reaches the build, too.
    if interrupt.is_raised() { Err(LabError::Interrupted) } else { ended }
}

impl Rack {
    /// Starts meshd and waits for its first answer.
    pub fn start_central(&mut self) -> Result<(), LabError> {
        let mut command = Command::new(&self.record.program);
        command.arg("--site").arg(&self.layout.site).arg("serve").env("NO_COLOR", "1");
        shared_blobs::register(&self.layout.dir, &self.site)?;
        let process = self.launch(NAME, &mut command, &self.layout.log.clone())?;
        self.record.central = Some(process);
        self.record.save(&self.layout.dir)?;
        self.wait(START_LIMIT, "meshd's first answer", |rack| {
            let up = UnixStream::connect(&rack.layout.socket).is_ok() && rack.nodes().is_ok();
            Ok(Wait::on(up, "nothing on its admin socket"))
        })?;
        let named = self.wait(ID_LIMIT, "the ID of meshd's site", |rack| {
            let has_id = shared_blobs::register(&rack.layout.dir, &rack.site)?;
            Ok(Wait::on(has_id, "no ID"))
        });
        match named {
            // The ID is needed only if the rack is killed and its folder removed.
            Err(LabError::Deadline { .. }) => Ok(()),
            named => named,
        }
    }

    /// Stops meshd as `systemctl stop` does.
    pub fn stop_central(&mut self) -> Result<(), LabError> {
        self.end_central(|process| process.end(NAME, STOP_LIMIT))
    }

    /// Kills meshd with SIGKILL.
    pub fn kill_central(&mut self) -> Result<(), LabError> {
        self.end_central(|process| process.kill(NAME))
    }

    fn end_central(
        &mut self,
        end: impl FnOnce(ProcessId) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        self.record.central.take().map_or(Ok(()), end)?;
        self.reap(NAME);
        self.record.save(&self.layout.dir)
    }

    /// Runs a verb of meshd's CLI and parses its JSON output: `query(&["node", "list"])`.
    pub fn query(&self, args: &[&str]) -> Result<Value, LabError> {
        let output = self.run_cli(&[args, &["-o", "json"]].concat())?;
        serde_json::from_str(&output).map_err(|error| LabError::Failed {
            program: format!("meshd {}", args.join(" ")),
            detail: error.to_string(),
        })
    }

    /// Runs a verb of meshd's CLI and returns its output.
    pub fn run_cli(&self, args: &[&str]) -> Result<String, LabError> {
        let mut command = Command::new(&self.record.program);
        command.arg("--site").arg(&self.layout.site).args(args);
        command::run(&mut command)
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Returns the log of meshd over all its starts.
    pub fn central_log(&self) -> String {
        fs::read(&self.layout.log).map(|bytes| serial::plain(&bytes)).unwrap_or_default()
    }

    /// Waits for a state of the rack; fails at once if meshd has ended.
    pub fn wait<T>(
        &self,
        timeout: Duration,
        awaited: &str,
        mut check: impl FnMut(&Rack) -> Result<Wait<T>, LabError>,
    ) -> Result<T, LabError> {
        until(&self.interrupt, timeout, awaited, || {
            if self.record.central.is_some_and(|process| !process.is_alive()) {
                let log = serial::last_lines(&self.central_log(), LOG_LINES);
                return Err(LabError::CentralDied { status: "see its log".to_owned(), log });
            }
            check(self)
        })
    }

    /// Starts a program in the rack's namespace, in its own process group because of the terminal's
    /// Ctrl-C.
    pub(super) fn launch(
        &mut self,
        name: &str,
        command: &mut Command,
        log: &Path,
    ) -> Result<ProcessId, LabError> {
        let open = || OpenOptions::new().create(true).append(true).open(log);
        let out = open().map_err(LabError::file("write", log))?;
        let err = open().map_err(LabError::file("write", log))?;
        command.stdin(Stdio::null()).stdout(out).stderr(err).process_group(0);
        let mut child = self.namespace.spawn(command)?;
        let Some(process) = ProcessId::of(child.id()) else {
            // The child is not reaped yet, so /proc lacks its entry only if /proc is not mounted.
            let _ = child.kill();
            return Err(LabError::Failed {
                program: name.to_owned(),
                detail: "/proc is not mounted".to_owned(),
            });
        };
        self.children.insert(name.to_owned(), child);
        Ok(process)
    }

    /// Reaps a child that ended, so that no zombie remains.
    pub(super) fn reap(&mut self, name: &str) {
        if let Some(mut child) = self.children.remove(name) {
            let _ = wait_for_child(&mut child, STOP_LIMIT, name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rack_with_one_profile_builds_only_its_artifacts() {
        let text = include_str!("../../../site.toml").to_owned()
            + "[profiles.lone]\nimage = \"other\"\noverlays = [\"base\", \"agent\"]\nbundles = [\"own\"]\n";
        let site = meshd_config::parse(&text, Path::new("site.toml"))
            .unwrap_or_else(|faults| panic!("{faults}"));
        assert_eq!(
            required_images(&site, Some("lone")),
            [("image", "other".to_owned()), ("bundle", "own".to_owned())]
        );
        assert!(required_images(&site, None).len() > 2);
    }
}
