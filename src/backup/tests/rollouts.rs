//! Rollouts in a backup.

use super::{restored_store, site, store};
use meshd_model::{
    fleet::{AuditContext, Principal, Verb},
    rollouts::{Rollout, RolloutNode, RolloutPolicy, RolloutState, RolloutTarget},
};
use meshd_store::StoreError;
use meshd_types::{CorrelationId, RolloutId, Timestamp};

#[tokio::test]
async fn restored_rollout_is_paused_and_frozen_with_all_its_nodes() {
    let dir = tempfile::tempdir().unwrap();
    let site = site(dir.path());
    let store = store(dir.path()).await;
    let id = RolloutId([7; 4]);
    let node = store.read(|model| model.nodes().next().unwrap().clone());
    let head = Rollout {
        id,
        target: RolloutTarget::Reboot,
        policy: RolloutPolicy::default(),
        by: AuditContext::new(Principal::Operator(0), Verb::RolloutStart, CorrelationId([0; 8])),
        started_at: Timestamp::from_millis(5),
        state: RolloutState::Running,
        reason: None,
        frozen: false,
        nodes: 1,
        waves: 1,
        clock_ms: 7,
        finished_at: None,
        undoes: None,
    };
    let done = Rollout { id: RolloutId([8; 4]), state: RolloutState::Done, ..head.clone() };
    let record = RolloutNode::waiting(id, node.id, node.name, 0);
    let put = store.commit(|tx| {
        tx.put_rollout(head.clone());
        tx.put_rollout(done.clone());
        tx.put_rollout_node(record.clone());
        Ok::<_, StoreError>(())
    });
    put.await.unwrap();
    let restored = restored_store(&dir, &site, &store).await;
    restored.read(|model| {
        let paused = model.rollout(id).unwrap();
        assert_eq!((paused.state, paused.frozen), (RolloutState::Paused, true));
        assert!(paused.reason.as_ref().unwrap().contains("restored"), "{paused:?}");
        assert_eq!(model.rollout_nodes(id).values().collect::<Vec<_>>(), [&record]);
        assert_eq!(model.rollout(done.id), Some(&done));
    });
}
