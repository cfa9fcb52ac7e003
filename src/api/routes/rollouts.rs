//! Routes of rollouts and bisections.

use super::{Array, Empty, Get, Object, Post, route::routes};
use crate::{
    BisectionView, RolloutNodeView, RolloutPlan, RolloutView, StartBisection, StartRollout,
    UndoRollout,
};
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
    LIST_BISECTIONS: Get<Array<BisectionView>> =
        Get::new("/v1/bisections", "List bisections").query(PARAMETERS);
    GET_BISECTION: Get<Object<BisectionView>, 1> =
        Get::new("/v1/bisections/{bisection}", "Show a bisection");
    START_BISECTION: Post<Object<StartBisection>, Object<BisectionView>> = Post::new(
        "/v1/bisections",
        Verb::BisectStart,
        "Search the first bad generation of a profile: spare nodes boot generations",
    );
    ABORT_BISECTION: Post<Empty, Object<BisectionView>, 1> = Post::new(
        "/v1/bisections/{bisection}/abort",
        Verb::BisectAbort,
        "End a bisection: its nodes return to what they ran",
    );
}
