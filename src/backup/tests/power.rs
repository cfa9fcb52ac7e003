//! Orders to BMCs in a backup.

use super::{restored_store, site, store};
use meshd_model::{
    fleet::{AuditContext, Principal, Verb},
    operations::{
        NodeOperation, NodeOperationState, NodeOrder, Operation, OperationStage, PowerProgress,
    },
};
use meshd_store::StoreError;
use meshd_types::{CorrelationId, OperationId, PowerAction, PowerLadder, Timestamp};

#[tokio::test]
async fn restored_order_to_a_bmc_sends_no_further_request() {
    let dir = tempfile::tempdir().unwrap();
    let site = site(dir.path());
    let store = store(dir.path()).await;
    let at = Timestamp::from_millis(5);
    let node = store.read(|model| model.nodes().next().unwrap().clone());
    let head = Operation {
        id: OperationId([9; 4]),
        order: NodeOrder::Power { action: PowerAction::Cycle, now: false },
        by: AuditContext::new(Principal::Operator(0), Verb::Power, CorrelationId([0; 8])),
        accepted_at: at,
        targets: 1,
        stage: OperationStage::Accepted,
    };
    let mut record = NodeOperation::pending(head.id, node.id, node.name);
    record.start(at);
    record.power = Some(PowerProgress::new(PowerLadder::Standard, at));
    let put = store.commit(|tx| {
        tx.put_operation(head.clone());
        tx.put_node_operation(record.clone());
        Ok::<_, StoreError>(())
    });
    put.await.unwrap();
    let restored = restored_store(&dir, &site, &store).await;
    let states: Vec<_> = restored.read(|model| {
        model.node_operations(head.id).map(|record| (record.state, record.reason.clone())).collect()
    });
    let reason = Some("the site was restored from a backup".to_owned());
    assert_eq!(states, [(NodeOperationState::Cancelled, reason)]);
}
