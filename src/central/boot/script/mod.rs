//! The boot script.
//!
//! | module | content |
//! | --- | --- |
//! | `script_request` | the boot script: identity, admission, rendering, capability, plan |
//! | `requester_check` | keeps the boot of a machine from other machines |
//! | `identify_machine` | which node a machine is, and whether it may boot |
//! | `node_presence` | whether the machine of a node is present on the wire |
//! | `script_cache` | the same script for a repeated request |
//! | `boot_record` | records that a node boots in a session |

mod boot_record;
mod identify_machine;
mod node_presence;
mod requester_check;
mod script_cache;
mod script_request;

pub(super) use script_cache::CachedScript;

use meshd_model::boot::Refusal;
use meshd_store::StoreError;

/// Returns the refusal of a boot that the store cannot record.
pub(super) fn store_refusal(error: &StoreError) -> Refusal {
    tracing::error!(error = error as &dyn std::error::Error, "cannot answer a boot");
    Refusal::Internal { detail: "the central node cannot write its store; see its log".to_owned() }
}
