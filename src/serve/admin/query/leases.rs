//! Filters and order of leases.

use super::{
    page::{OrderKey, time_key},
    parameters::{ListSpec, ParameterError, Parameters},
    text::Needle,
};
use meshd_api::LeaseView;
use meshd_types::NodeId;

const STATES: [&str; 2] = ["active", "expired"];

/// Fields and orders of `GET /v1/leases`.
pub(crate) const LEASES: ListSpec = ListSpec {
    fields: &["address", "mac", "state", "expires_at", "node", "name", "vm", "bmc"],
    sorts: &["address", "mac", "name", "expires_at"],
};

/// Filter of a lease list.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeaseFilter {
    states: Option<Vec<&'static str>>,
    /// Node that holds the lease.
    pub(crate) node: Option<NodeId>,
    text: Option<Needle>,
}

impl LeaseFilter {
    /// Reads all filters except the node, because only the central node can resolve its name.
    pub(crate) fn read(parameters: &Parameters) -> Result<Self, ParameterError> {
        Ok(LeaseFilter {
            states: parameters.words("state", &STATES)?,
            node: None,
            text: parameters.needle()?,
        })
    }

    pub(crate) fn takes(&self, lease: &LeaseView) -> bool {
        let has = |text: &Needle| {
            let node = lease.node.map(|node| node.to_string());
            let vm = lease.vm.map(|vm| vm.to_string());
            let texts = [
                Some(lease.address.to_string()),
                Some(lease.mac.to_string()),
                lease.name.clone(),
                node,
                vm,
                lease.bmc.clone(),
            ];
            texts.iter().flatten().any(|found| text.is_in(found))
        };
        self.states.as_ref().is_none_or(|states| states.contains(&lease.state.as_str()))
            && self.node.is_none_or(|node| lease.node == Some(node))
            && self.text.as_ref().is_none_or(has)
    }
}

/// Returns the sort key of a lease in an order of [`LEASES`].
pub(crate) fn lease_key(lease: &LeaseView, sort: &str) -> OrderKey {
    let id = format!("{:08x}", u32::from(lease.address));
    let key = match sort {
        "mac" => lease.mac.to_string(),
        "name" => lease.name.clone().unwrap_or_default(),
        "expires_at" => time_key(lease.expires_at),
        _ => String::new(),
    };
    (key, id)
}
