//! Credentials of nodes: capabilities, tokens, certificates and their authority. Issues and revokes
//! them.
//!
//! | module | content |
//! | --- | --- |
//! | `authority` | the certificate authority, and its rotation while meshd runs |
//! | `enrol` | exchanges a token or a certificate for a new certificate |
//! | `error` | why the agent API refuses a request |
//! | `expected` | what a machine receives that an operator expects |
//! | `pending` | connections of nodes that wait for approval |
//! | `revoke` | revokes certificates, tokens, capability and link at once |
//! | `rule_names` | names and labels that a rule gives the nodes that it approves |
//! | `site_rules` | automatic approval by rule or policy |
//! | `tickets` | one-time tokens for machines that are not netbooted |

pub(crate) mod authority;
pub(crate) mod enrol;
mod error;
pub(crate) mod expected;
pub(crate) mod pending;
pub(crate) mod revoke;
pub(crate) mod rule_names;
pub(crate) mod site_rules;
pub(crate) mod tickets;

pub use authority::{AuthorityState, MAX_GRACE, RotateError};
pub use error::AgentApiError;
pub use pending::PendingConnection;
pub use tickets::{MAX_TOKEN_LIFE, TOKEN_LIFE, TokenError};

use super::{environment::Environment, links::Links, locks::Leaf};
use authority::Authority;
use meshd_trust::{CertificateAuthority, overlay_capability::CapabilityTable};
use pending::PendingConnections;
use std::sync::Arc;

/// Issues and revokes the credentials of nodes.
pub struct Enrolment {
    env: Arc<Environment>,
    links: Arc<Links>,
    authority: Authority,
    /// Capabilities for overlays. The boot service grants and spends them; a revocation voids them.
    pub(crate) capabilities: Leaf<CapabilityTable>,
    pending: PendingConnections,
    /// Counts revocations.
    revocations: tokio::sync::watch::Sender<u64>,
}

impl Enrolment {
    pub(super) fn new(
        env: Arc<Environment>,
        links: Arc<Links>,
        authority: CertificateAuthority,
    ) -> Self {
        let authority = Authority::new(authority, env.now());
        let capabilities = Leaf::default();
        let pending = PendingConnections::default();
        Enrolment {
            env,
            links,
            authority,
            capabilities,
            pending,
            revocations: tokio::sync::watch::Sender::new(0),
        }
    }
}
