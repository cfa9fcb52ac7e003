//! Routes of rollouts.

use super::{Array, Empty, Get, Object, Post, route::routes};
use crate::{RolloutNodeView, RolloutPlan, RolloutView, StartRollout, UndoRollout};
use meshd_model::fleet::Verb;

const PARAMETERS: &[&str] = &["state", "sort", "fields", "limit", "after"];
const NODE_PARAMETERS: &[&str] = &["stage", "sort", "fields", "limit", "after"];

routes! {
    LIST_ROLLOUTS: Get<Array<RolloutView>> =
        Get::new("/v1/rollouts", "List rollouts").query(PARAMETERS);
    GET_ROLLOUT: Get<Object<RolloutView>, 1> = Get::new("/v1/rollouts/{rollout}", "Show a rollout");
    LIST_ROLLOUT_NODES: Get<Array<RolloutNodeView>, 1> =
        Get::new("/v1/rollouts/{rollout}/nodes", "List the nodes of a rollout").query(NODE_PARAMETERS);
    PLAN_ROLLOUT: Post<Object<StartRollout>, Object<RolloutPlan>> =
        Post::new("/v1/rollouts/plan", Verb::RolloutPlan, "Plan a rollout, and change nothing");
    START_ROLLOUT: Post<Object<StartRollout>, Object<RolloutView>> =
        Post::new("/v1/rollouts", Verb::RolloutStart, "Plan and start a rollout");
    PAUSE_ROLLOUT: Post<Empty, Object<RolloutView>, 1> = Post::new(
        "/v1/rollouts/{rollout}/pause",
        Verb::RolloutPause,
        "Pause a rollout: no further node begins",
    );
    RESUME_ROLLOUT: Post<Empty, Object<RolloutView>, 1> =
        Post::new("/v1/rollouts/{rollout}/resume", Verb::RolloutResume, "Resume a paused rollout");
    ABORT_ROLLOUT: Post<Empty, Object<RolloutView>, 1> = Post::new(
        "/v1/rollouts/{rollout}/abort",
        Verb::RolloutAbort,
        "End a rollout: nodes in progress are finished, others stay as they are",
    );
    UNDO_ROLLOUT: Post<Object<UndoRollout>, Object<RolloutView>, 1> = Post::new(
        "/v1/rollouts/{rollout}/undo",
        Verb::RolloutUndo,
        "Return the nodes of a finished rollout to what they ran, by another rollout",
    );
}
