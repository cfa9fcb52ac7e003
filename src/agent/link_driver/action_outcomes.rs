//! Outcomes of ordered actions, and the accepted reboot, in files: a restarted agent repeats no
//! action, and carries the reboot out.

use super::side_effects::source;
use crate::{
    files,
    link_state::ordered_actions::MAX_OUTCOMES,
    system::{self, Tree},
};
use meshd_proto::{ActionId, ActionOutcome, FromAgent};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    time::Duration,
};

/// A reboot that this agent accepted, stored so that a restarted agent carries it out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct AcceptedReboot {
    action: ActionId,
    /// The kernel that it ends.
    kernel_boot_id: String,
    /// Uptime in seconds.
    accepted_at_s: u64,
}

/// Time after which a reboot is not carried out any more. The central node has reported its failure
/// by then.
const REBOOT_LIMIT: Duration = Duration::from_secs(30 * 60);

/// Outcomes of the actions of this boot, stored so that a restarted agent repeats no action.
pub struct ActionOutcomes {
    path: PathBuf,
    /// The oldest first.
    outcomes: VecDeque<(ActionId, ActionOutcome)>,
    reboot_path: PathBuf,
    reboot: Option<AcceptedReboot>,
}

impl ActionOutcomes {
    /// Reads the outcomes of an earlier run; a damaged file counts as absent.
    pub fn open(state_dir: &Path) -> Self {
        let path = state_dir.join("action-outcomes.json");
        let reboot_path = state_dir.join("accepted-reboot.json");
        let [outcomes, reboot] =
            [&path, &reboot_path].map(|path| files::read(path).unwrap_or_default());
        ActionOutcomes {
            path,
            outcomes: serde_json::from_str(&outcomes).unwrap_or_default(),
            reboot_path,
            reboot: serde_json::from_str(&reboot).ok(),
        }
    }

    /// Returns the reboot that an earlier run accepted in this boot.
    pub fn accepted_reboot(&self, tree: &Tree) -> Option<ActionId> {
        let is_due = |reboot: &&AcceptedReboot| {
            let accepted_at = Duration::from_secs(reboot.accepted_at_s);
            reboot.kernel_boot_id == system::kernel_boot_id(tree)
                && system::uptime(tree).saturating_sub(accepted_at) < REBOOT_LIMIT
        };
        self.reboot.as_ref().filter(is_due).map(|reboot| reboot.action)
    }

    /// Stores an accepted reboot before its outcome is reported, and removes it when it has failed.
    pub fn store_reboot(&mut self, action: Option<ActionId>, tree: &Tree) {
        if self.reboot.as_ref().map(|reboot| reboot.action) == action {
            return;
        }
        self.reboot = action.map(|action| AcceptedReboot {
            action,
            kernel_boot_id: system::kernel_boot_id(tree),
            accepted_at_s: system::uptime(tree).as_secs(),
        });
        let stored = match &self.reboot {
            Some(reboot) => {
                let text = serde_json::to_string(reboot).unwrap_or_default();
                files::replace_unsynced(&self.reboot_path, &text).map_err(|error| error.to_string())
            }
            None => files::remove_if_exists(&self.reboot_path).map_err(|error| error.to_string()),
        };
        if let Err(error) = stored {
            tracing::error!(error, "cannot store an accepted reboot");
        }
    }

    pub fn all(&self) -> impl Iterator<Item = (ActionId, ActionOutcome)> {
        self.outcomes.iter().cloned()
    }

    /// Stores an outcome before it is reported, and before a reboot begins.
    pub fn store(&mut self, message: &FromAgent) {
        let FromAgent::ActionDone { id, outcome } = message else { return };
        let stored = (*id, outcome.clone());
        if self.outcomes.contains(&stored) {
            return;
        }
        self.outcomes.retain(|(known, _)| known != id);
        self.outcomes.push_back(stored);
        while self.outcomes.len() > MAX_OUTCOMES {
            self.outcomes.pop_front();
        }
        let text = serde_json::to_string(&self.outcomes).unwrap_or_default();
        if let Err(error) = files::replace_unsynced(&self.path, &text) {
            tracing::error!(%error, cause = source(&error), "cannot store the outcome of an action");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeMachine;

    #[test]
    fn accepted_reboot_is_resumed_in_its_boot_until_it_fails() {
        let fake = FakeMachine::new("", &[]);
        let dir = tempfile::tempdir().expect("a folder");
        let start = |boot: &str, uptime: &str| {
            fake.file("proc/sys/kernel/random/boot_id", boot);
            fake.file("proc/uptime", uptime);
            ActionOutcomes::open(dir.path())
        };
        let mut first = start("a", "100.00 1.00");
        first.store_reboot(Some(ActionId(7)), &fake.tree);
        assert_eq!(start("a", "105.00 1.00").accepted_reboot(&fake.tree), Some(ActionId(7)));
        assert_eq!(start("a", "1900.00 1.00").accepted_reboot(&fake.tree), None, "too late");
        assert_eq!(start("b", "105.00 1.00").accepted_reboot(&fake.tree), None, "it rebooted");
        let mut second = start("a", "105.00 1.00");
        second.store_reboot(None, &fake.tree);
        assert_eq!(start("a", "105.00 1.00").accepted_reboot(&fake.tree), None);
    }
}
