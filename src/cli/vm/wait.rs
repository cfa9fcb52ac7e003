//! `--wait` of `meshd vm`: waits until a VM reaches its desired state or fails.

use crate::cli::{
    Failure,
    client::AdminClient,
    node::word,
    output::print::{bytes, span},
};
use clap::Args;
use meshd_api::VmView;
use meshd_config::parse_duration;
use meshd_model::work::VmPhase;
use meshd_proto::vm::VmFetching;
use meshd_types::SystemUuid;
use std::time::{Duration, Instant};

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// How long a central node that is started anew may be away.
const PATIENCE: Duration = Duration::from_secs(120);

/// Whether a verb returns when its order is on record, or when it is followed.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Wait {
    /// Wait for the result, for TIME at most
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "10m", value_parser = limit)]
    wait: Option<Duration>,
}

fn limit(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "write a whole number and one of s, m, h, d: 10m".to_owned())
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Running,
    /// It is off.
    Off,
    /// Nothing of it is left.
    Gone,
}

/// Whether it is so.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Look {
    /// It is.
    Done,
    /// It will not be, and why.
    Never(String),
    /// It is on its way.
    NotYet(String),
}

impl Wait {
    pub(crate) fn is_asked(self) -> bool {
        self.wait.is_some()
    }

    /// Waits if that was asked for.
    pub(crate) async fn wait(self, client: &AdminClient, vm: &VmView, until: Until) -> Result<(), Failure> {
        let Some(limit) = self.wait else { return Ok(()) };
        let (uuid, name, begun) = (vm.uuid, &vm.name, Instant::now());
        let (mut heard, mut said) = (begun, String::new());
        loop {
            let look = match client.get::<Vec<VmView>>("/v1/vms").await {
                Ok(all) => {
                    heard = Instant::now();
                    look(&all, uuid, until)
                }
                Err(failure) if heard.elapsed() > PATIENCE => return Err(failure),
                Err(_) => Look::NotYet("the central node does not answer".to_owned()),
            };
            let now = match look {
                Look::Done => return Ok(()),
                Look::Never(why) => {
                    return Err(Failure::new(format!("{name}: {why}"), format!("meshd vm show {name}")));
                }
                Look::NotYet(now) => now,
            };
            if now != said {
                eprintln!("{name} is {now}");
                said = now;
            }
            if begun.elapsed() >= limit {
                let message = format!("{name} is {said} after {}", span(limit));
                return Err(Failure::new(message, "the order stands; meshd vm show says how far it is"));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

/// Judges. Only what the node told of the newest order counts.
fn look(all: &[VmView], uuid: SystemUuid, until: Until) -> Look {
    let Some(vm) = all.iter().find(|vm| vm.uuid == uuid && vm.desired_state.is_some()) else {
        return if until == Until::Gone { Look::Done } else { Look::Never("it is not on record any more".to_owned()) };
    };
    match (until, vm.state) {
        (Until::Running, VmPhase::Running) | (Until::Off, VmPhase::Stopped | VmPhase::Failed) if vm.settled => {
            Look::Done
        }
        (Until::Off, VmPhase::Unplaced) => Look::Done,
        (Until::Running, VmPhase::Failed | VmPhase::Stopped | VmPhase::Paused) if vm.settled => Look::Never(ending(vm)),
        (Until::Running, VmPhase::Unplaced) => Look::Never(ending(vm)),
        (Until::Gone, VmPhase::ReleaseBlocked) => Look::Never(ending(vm)),
        _ => Look::NotYet(far(vm)),
    }
}

/// Why it came otherwise.
fn ending(vm: &VmView) -> String {
    let failure = vm.failure.as_ref().map(|failure| format!("{}: {}", word(&failure.kind), failure.detail));
    let why = failure.or_else(|| vm.obstacle.clone());
    why.map_or_else(|| vm.state.as_str().to_owned(), |why| format!("{}, {why}", vm.state.as_str()))
}

/// How far it is. Megabytes would be a line each second.
fn far(vm: &VmView) -> String {
    match vm.fetching {
        Some(VmFetching { of, .. }) if of > 0 => {
            format!("{}, its volumes are fetched: {}", vm.state.as_str(), bytes(of))
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
            "name": "one", "uuid": "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9", "state": state, "wish": "run", "node": null, "since": null,
            "settled": settled, "restarts": 0, "vcpus": 1, "memory": "1G", "units": [], "wants": [], "volumes": [], "nics": [],
            "on_node_loss": "wait", "start": 1, "created_at": null, "failure": {"kind": "crashed", "detail": "it is gone", "log": []},
        }))
        .expect("a view")
    }

    fn at(state: &str, settled: bool, until: Until) -> Look {
        let vm = vm(state, settled);
        look(std::slice::from_ref(&vm), vm.uuid, until)
    }

    #[test]
    fn only_a_report_on_the_newest_order_ends_the_wait() {
        assert_eq!(at("running", true, Until::Running), Look::Done);
        assert_eq!(at("running", false, Until::Running), Look::NotYet("running".to_owned()));
        assert_eq!(at("failed", false, Until::Running), Look::NotYet("failed".to_owned()));
        assert_eq!(at("failed", true, Until::Running), Look::Never("failed, crashed: it is gone".to_owned()));
        assert_eq!(at("unplaced", false, Until::Running), Look::Never("unplaced, crashed: it is gone".to_owned()));
        assert_eq!(at("waiting", true, Until::Running), Look::NotYet("waiting".to_owned()));
    }

    #[test]
    fn wait_ends_for_a_stopped_and_for_a_deleted_vm() {
        assert_eq!(at("failed", true, Until::Off), Look::Done);
        assert_eq!(at("stopping", false, Until::Off), Look::NotYet("stopping".to_owned()));
        let gone = vm("releasing", false);
        assert_eq!(look(&[], gone.uuid, Until::Gone), Look::Done);
        assert!(matches!(look(&[], gone.uuid, Until::Running), Look::Never(_)));
        assert_eq!(at("releasing", false, Until::Gone), Look::NotYet("releasing".to_owned()));
        assert!(matches!(at("release_blocked", false, Until::Gone), Look::Never(_)));
    }
}
