//! `--wait` of `meshd vm`: waits until a VM reaches its desired state or fails.

use crate::cli::{
    Failure,
    client::AdminClient,
    output::print::{bytes, span, word},
};
use clap::Args;
use meshd_api::{VmView, routes as api};
use meshd_config::parse_duration;
use meshd_model::work::VmPhase;
use meshd_proto::vm::VmFetching;
use meshd_types::SystemUuid;
use std::time::{Duration, Instant};

/// Interval between two requests.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for a restart of the central node.
const RECONNECT_TIMEOUT: Duration = Duration::from_secs(120);

/// Whether a command returns when its order is recorded, or when the VM has reached the ordered
/// state.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Wait {
    /// Wait for the result or the guest, for TIME at most
    #[arg(long, value_name = "[ready,]TIME", num_args = 0..=1, require_equals = true, default_missing_value = DEFAULT_LIMIT, value_parser = awaited)]
    wait: Option<Awaited>,
}

/// Time limit if the user gives none.
const DEFAULT_LIMIT: &str = "10m";

/// The value of `--wait`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Awaited {
    limit: Duration,
    /// Wait until the guest of a started VM is ready.
    ready: bool,
}

fn awaited(text: &str) -> Result<Awaited, String> {
    let (ready, time) = match text.split_once(',') {
        Some(("ready", time)) => (true, time),
        _ if text == "ready" => (true, DEFAULT_LIMIT),
        _ => (false, text),
    };
    let limit = parse_duration(time);
    let hint = "write ready, or a whole number and one of s, m, h, d: 10m; or both: ready,10m";
    limit.map(|limit| Awaited { limit, ready }).ok_or_else(|| hint.to_owned())
}

/// Time in which the node of a running VM says whether its guest is ready, also after a restart of
/// the central node. An agent older than readiness checks never does.
const UNREPORTED_LIMIT: Duration = Duration::from_secs(15);

/// State for which a command waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Running,
    /// The VM runs, and its guest has answered.
    Ready,
    Off,
    /// The VM has no record.
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Progress {
    Done,
    /// The VM cannot reach the state, for this reason.
    Failed(String),
    /// The current state.
    Pending(String),
    /// The VM runs, and its node does not say whether the guest is ready.
    Unreported,
}

impl Wait {
    pub(crate) fn is_requested(self) -> bool {
        self.wait.is_some()
    }

    /// Refuses to wait for a guest that nobody asks. `is_asked`: the VM has a readiness check.
    pub(crate) fn check(self, name: &str, is_asked: bool) -> Result<(), Failure> {
        if is_asked || !self.wait.is_some_and(|awaited| awaited.ready) {
            return Ok(());
        }
        let message = format!("cannot wait until {name} is ready: it has no readiness check");
        Err(Failure::new(message, "write ready = \"ssh\" into its VM file"))
    }

    /// Waits if `--wait` is present.
    pub(crate) async fn wait(
        self,
        client: &AdminClient,
        vm: &VmView,
        until: Until,
    ) -> Result<(), Failure> {
        let Some(Awaited { limit, ready }) = self.wait else { return Ok(()) };
        let until = match until {
            Until::Running if ready => Until::Ready,
            until => until,
        };
        let uuid = vm.uuid;
        let name = &vm.name;
        let started = Instant::now();
        let mut last_response = started;
        let mut printed = String::new();
        let mut unreported_since = None;
        loop {
            let progress = match client.get(api::LIST_VMS.path([])).await {
                Ok(all) => {
                    last_response = Instant::now();
                    progress(&all, uuid, until)
                }
                Err(failure) if last_response.elapsed() > RECONNECT_TIMEOUT => return Err(failure),
                Err(_) => Progress::Pending("the central node does not answer".to_owned()),
            };
            if progress != Progress::Unreported {
                unreported_since = None;
            }
            let state = match progress {
                Progress::Unreported => {
                    let since = *unreported_since.get_or_insert_with(Instant::now);
                    if since.elapsed() >= UNREPORTED_LIMIT {
                        return Err(Failure::new(
                            format!(
                                "{name} is running, but its node does not report whether it is ready"
                            ),
                            "the agent is older than readiness checks: boot the node again, or leave out `ready`",
                        ));
                    }
                    "running, and not ready yet".to_owned()
                }
                Progress::Done => return Ok(()),
                Progress::Failed(why) => {
                    return Err(Failure::new(
                        format!("{name}: {why}"),
                        format!("meshd vm show {name}"),
                    ));
                }
                Progress::Pending(state) => state,
            };
            if state != printed {
                message!("{name} is {state}");
                printed = state;
            }
            if started.elapsed() >= limit {
                let message = format!("{name} is {printed} after {}", span(limit));
                return Err(Failure::new(
                    message,
                    "the order remains in effect; meshd vm show shows its progress",
                ));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Compares a VM with the awaited state. Only a report of the node on the newest order counts.
fn progress(all: &[VmView], uuid: SystemUuid, until: Until) -> Progress {
    let Some(vm) = all.iter().find(|vm| vm.uuid == uuid && vm.desired_state.is_some()) else {
        return if until == Until::Gone {
            Progress::Done
        } else {
            Progress::Failed("it is not on record any more".to_owned())
        };
    };
    match (until, vm.state) {
        (Until::Running, VmPhase::Running) | (Until::Off, VmPhase::Stopped | VmPhase::Failed)
            if vm.settled =>
        {
            Progress::Done
        }
        (Until::Ready, VmPhase::Running) if vm.settled && vm.ready == Some(true) => Progress::Done,
        (Until::Ready, VmPhase::Running) if vm.settled && vm.ready.is_none() => {
            Progress::Unreported
        }
        (Until::Ready, VmPhase::Running) if vm.settled => {
            Progress::Pending("running, and not ready yet".to_owned())
        }
        (Until::Off, VmPhase::Unplaced) => Progress::Done,
        (Until::Running | Until::Ready, VmPhase::Failed | VmPhase::Stopped | VmPhase::Paused)
            if vm.settled =>
        {
            Progress::Failed(failure_text(vm))
        }
        (Until::Running | Until::Ready, VmPhase::Unplaced) => Progress::Failed(failure_text(vm)),
        (Until::Gone, VmPhase::ReleaseBlocked) => Progress::Failed(failure_text(vm)),
        _ => Progress::Pending(state_text(vm)),
    }
}

fn failure_text(vm: &VmView) -> String {
    let failure =
        vm.failure.as_ref().map(|failure| format!("{}: {}", word(&failure.kind), failure.detail));
    let why = failure.or_else(|| vm.obstacle.clone());
    why.map_or_else(|| vm.state.as_str().to_owned(), |why| format!("{}, {why}", vm.state.as_str()))
}

/// Returns the state without the number of downloaded bytes, which would print a line each second.
fn state_text(vm: &VmView) -> String {
    match vm.fetching {
        Some(VmFetching { total, .. }) if total > 0 => {
            format!("{}, fetching volumes: {}", vm.state.as_str(), bytes(total))
        }
        _ => vm.state.as_str().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vm(state: &str, settled: bool) -> VmView {
        serde_json::from_value(json!({
            "name": "one", "uuid": "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "state": state, "desired_state": "run", "node": null, "since": null,
            "settled": settled, "restarts": 0, "vcpus": 1, "memory": "1G", "units": [], "unit_selectors": [], "volumes": [], "nics": [],
            "on_node_loss": "wait", "start": 1, "created_at": null, "failure": {"kind": "crashed", "detail": "it is gone", "log": []},
        }))
        .expect("a view")
    }

    fn at(state: &str, settled: bool, until: Until) -> Progress {
        let vm = vm(state, settled);
        progress(std::slice::from_ref(&vm), vm.uuid, until)
    }

    #[test]
    fn wait_ends_only_for_settled_or_unplaceable_vm() {
        assert_eq!(at("running", true, Until::Running), Progress::Done);
        assert_eq!(at("running", false, Until::Running), Progress::Pending("running".to_owned()));
        assert_eq!(at("failed", false, Until::Running), Progress::Pending("failed".to_owned()));
        assert_eq!(
            at("failed", true, Until::Running),
            Progress::Failed("failed, crashed: it is gone".to_owned())
        );
        assert_eq!(
            at("unplaced", false, Until::Running),
            Progress::Failed("unplaced, crashed: it is gone".to_owned())
        );
        assert_eq!(at("waiting", true, Until::Running), Progress::Pending("waiting".to_owned()));
    }

    #[test]
    fn wait_for_ready_guest_ends_when_it_has_answered() {
        let ten = Duration::from_secs(600);
        for (text, ready, limit) in
            [("ready", true, ten), ("ready,5s", true, ten / 120), ("10m", false, ten)]
        {
            assert_eq!(awaited(text), Ok(Awaited { limit, ready }));
        }
        for text in ["", "ready,", "ready;5s", "Ready", "5s,ready"] {
            assert!(awaited(text).is_err(), "{text}");
        }
        let mut guest = vm("running", true);
        for (ready, is_done) in [(None, false), (Some(false), false), (Some(true), true)] {
            guest.ready = ready;
            let progress = progress(std::slice::from_ref(&guest), guest.uuid, Until::Ready);
            assert_eq!(progress == Progress::Done, is_done, "{ready:?} {progress:?}");
            assert_eq!(progress == Progress::Unreported, ready.is_none(), "{ready:?}");
        }
        guest.settled = false;
        let progress = progress(std::slice::from_ref(&guest), guest.uuid, Until::Ready);
        assert_ne!(progress, Progress::Done, "the answer may be of an earlier start");
        assert!(matches!(at("failed", true, Until::Ready), Progress::Failed(_)));
        let wait = Wait { wait: awaited("ready").ok() };
        assert!(wait.check("one", false).is_err() && wait.check("one", true).is_ok());
    }

    #[test]
    fn wait_ends_for_stopped_and_deleted_vm() {
        assert_eq!(at("failed", true, Until::Off), Progress::Done);
        assert_eq!(at("stopping", false, Until::Off), Progress::Pending("stopping".to_owned()));
        let gone = vm("releasing", false);
        assert_eq!(progress(&[], gone.uuid, Until::Gone), Progress::Done);
        assert!(matches!(progress(&[], gone.uuid, Until::Running), Progress::Failed(_)));
        assert_eq!(at("releasing", false, Until::Gone), Progress::Pending("releasing".to_owned()));
        assert!(matches!(at("release_blocked", false, Until::Gone), Progress::Failed(_)));
    }
}
