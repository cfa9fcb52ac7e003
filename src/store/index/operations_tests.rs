//! Retention of operations: the oldest finished ones go first, a bounded number of records in a
//! transaction.

use super::operations::{MAX_NODE_OPERATIONS, MAX_REMOVED, MAX_STORED_OPERATIONS};
use crate::{Store, StoreError};
use meshd_model::{
    fleet::{AuditContext, Principal, Verb},
    operations::{NodeOperation, NodeOrder, NodeOutcome, Operation, OperationStage},
};
use meshd_types::{CorrelationId, Digest, NodeId, OperationId, Timestamp};

fn head(number: u32) -> Operation {
    Operation {
        id: OperationId(number.to_be_bytes()),
        order: NodeOrder::Resume,
        by: AuditContext::new(Principal::Operator(0), Verb::Resume, CorrelationId([0; 8])),
        accepted_at: Timestamp::from_millis(number.into()),
        targets: 1,
        stage: OperationStage::Accepted,
    }
}

fn node(number: u32) -> NodeId {
    let text = Digest::of_fields([&number.to_be_bytes()[..]]).to_string();
    text[..8].parse().expect("hexadecimal characters are Crockford base32")
}

/// Stores an operation in batches, as the service does.
async fn store(store: &Store, number: u32, nodes: u32, is_finished: bool) {
    for first in (0..nodes).step_by(MAX_REMOVED) {
        let batch: Vec<u32> = (first..nodes.min(first + MAX_REMOVED as u32)).collect();
        let stored = store.commit(|tx| {
            tx.remove_surplus_operations(batch.len());
            tx.put_operation(head(number));
            for index in &batch {
                let mut record =
                    NodeOperation::pending(head(number).id, node(*index), String::new());
                if is_finished {
                    assert!(record.finish(NodeOutcome::Done, Timestamp::from_millis(1)));
                }
                tx.put_node_operation(record);
            }
            Ok::<_, StoreError>(())
        });
        stored.await.unwrap();
    }
}

#[tokio::test]
async fn oldest_finished_operations_are_removed_and_open_ones_stay() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Store::open(dir.path()).unwrap();
    store(&opened, 0, 1, false).await;
    let most = u32::try_from(MAX_STORED_OPERATIONS).unwrap();
    for number in 1..most + 20 {
        store(&opened, number, 1, true).await;
    }
    let ids = |store: &Store| {
        store.read(|model| model.operations().map(|head| head.id).collect::<Vec<_>>())
    };
    let left = ids(&opened);
    assert_eq!((left.len(), left[0]), (MAX_STORED_OPERATIONS, head(0).id), "the open one stays");
    assert_eq!(left.last(), Some(&head(most + 19).id));
    opened.close().await.unwrap();
    drop(opened);
    let opened = Store::open(dir.path()).unwrap();
    assert_eq!(ids(&opened), left, "the same after a restart");
    assert_eq!(opened.read(|model| model.open_operation_count()), 1);
}

#[tokio::test]
async fn records_of_large_operations_are_bounded_and_removed_in_batches() {
    let dir = tempfile::tempdir().unwrap();
    let opened = Store::open(dir.path()).unwrap();
    for number in 0..7 {
        store(&opened, number, 10_000, true).await;
        let count = opened.read(|model| model.node_operation_count());
        assert!(count <= MAX_NODE_OPERATIONS + MAX_REMOVED, "{number}: {count}");
    }
    let totals = opened.read(|model| {
        let totals = model.operations().map(|head| model.operation_counts(head.id).total());
        totals.collect::<Vec<_>>()
    });
    assert_eq!(totals.last(), Some(&10_000));
    assert!(
        totals.iter().all(|total| *total == 10_000),
        "an operation that is listed has all its records: {totals:?}"
    );
}
