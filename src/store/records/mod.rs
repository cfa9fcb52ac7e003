//! The kinds of records: one row for each kind.
//!
//! | module | content |
//! | --- | --- |
//! | `changes` | staged changes of one kind, and where they are applied |
//! | `owned_node_key` | the key of the record of one node of an operation or a rollout |
//!
//! A row names the kind, the field of its staged changes, the types of key and record, and the
//! index that contains the records in the model. The key in the journal is `<kind>/<key>`; the
//! value is the record as JSON. The journal numbers events and audit lines itself:
//! `journal/numbered.rs`.

mod changes;
mod owned_node_key;

pub(crate) use changes::{Changes, RecordIndex};
pub(crate) use owned_node_key::{NodeOperationKey, RolloutNodeKey};

use crate::{Model, StoreError, journal::Batch};
use meshd_model::{
    bisections::Bisection,
    fleet::{BootSession, ExpectedMachine, History, IdempotencyRecord, Lease, Node, Revisions},
    operations::{LoginAttempt, NodeOperation, Operation},
    rollouts::{Rollout, RolloutNode},
    work::{ApprovedSlot, SlotId, Vm, container::Container, task::Task},
};
use meshd_trust::{ApiToken, TokenRecord};
use meshd_types::{
    BisectionId, BootSessionId, ContainerName, Digest, MacAddr, NodeId, OperationId, ProfileName,
    RolloutId, SystemUuid, TaskId,
};
use serde::de::DeserializeOwned;
use std::{net::Ipv4Addr, str::FromStr};

/// Declares [`StagedRecords`] and [`load`]. Kinds are applied in the order of their rows.
macro_rules! record_kinds {
    ($($kind:literal, $changes:ident: $key:ty => $record:ty, in model $(.$index:ident)*;)+) => {
        /// Staged changes of records, by kind.
        #[derive(Default)]
        pub(crate) struct StagedRecords {
            $(pub(crate) $changes: Changes<$key, $record>,)+
        }

        impl StagedRecords {
            /// Number of changed records.
            pub(crate) fn len(&self) -> usize {
                0 $(+ self.$changes.len())+
            }

            pub(crate) fn write(&self, batch: &mut Batch) -> Result<(), StoreError> {
                $(self.$changes.write($kind, batch)?;)+
                Ok(())
            }

            /// Applies the changes. Returns the changes that undo them.
            pub(crate) fn apply(self, model: &mut Model) -> Self {
                StagedRecords { $($changes: self.$changes.apply(&mut (*model)$(.$index)*),)+ }
            }
        }

        /// Adds a stored record to the model.
        pub(crate) fn load(model: &mut Model, key: &str, value: &[u8]) -> Result<(), StoreError> {
            match key.split_once('/') {
                $(Some(($kind, name)) => {
                    let (name, record) = decode::<$key, $record>(key, name, value)?;
                    let _ = (*model)$(.$index)*.put_record(name, record);
                })+
                _ => return Err(StoreError::UnknownKey { key: key.to_owned() }),
            }
            Ok(())
        }
    };
}

record_kinds! {
    "node",           nodes:           NodeId => Node,                    in model;
    "session",        sessions:        BootSessionId => BootSession,      in model;
    "lease",          leases:          Ipv4Addr => Lease,                 in model;
    // The key is the digest of the token.
    "token",          tokens:          Digest => TokenRecord,             in model;
    "history",        histories:       NodeId => History,                 in model.histories;
    "profile",        revisions:       ProfileName => Revisions,          in model.revisions;
    // The key is the digest of the token.
    "api-token",      api_tokens:      Digest => ApiToken,                in model.api_tokens;
    // The key is the digest of the caller and the idempotency key.
    "idempotency",    idempotency:     Digest => IdempotencyRecord,       in model.idempotency_records;
    "vm",             vms:             SystemUuid => Vm,                  in model.work;
    "slot",           slots:           SlotId => ApprovedSlot,            in model.work;
    "container",      containers:      ContainerName => Container,        in model.work;
    "task",           tasks:           TaskId => Task,                    in model.tasks;
    "operation",      operations:      OperationId => Operation,          in model.operations;
    // Machines that operators expect, by boot NIC.
    "machine",        expected:        MacAddr => ExpectedMachine,        in model;
    "node-operation", node_operations: NodeOperationKey => NodeOperation, in model.operations;
    // The key is the digest of the BMC's host and port.
    "bmc-login",      bmc_logins:      Digest => LoginAttempt,            in model.bmc_logins;
    "bisection",      bisections:      BisectionId => Bisection,          in model.bisections;
    "rollout",        rollouts:        RolloutId => Rollout,              in model.rollouts;
    "rollout-node",   rollout_nodes:   RolloutNodeKey => RolloutNode,     in model.rollouts;
}

fn decode<K: FromStr, R: DeserializeOwned>(
    key: &str,
    name: &str,
    value: &[u8],
) -> Result<(K, R), StoreError> {
    let name = name.parse().map_err(|_| StoreError::UnknownKey { key: key.to_owned() })?;
    let record = serde_json::from_slice(value)
        .map_err(|source| StoreError::Damaged { key: key.to_owned(), source })?;
    Ok((name, record))
}
