//! Checks the network: the default gateway must answer.

use super::{Context, pass, unproven, warn};
use crate::system::{Route, routes};
use meshd_proto::Check;

/// Checks that the gateway of the default route answers.
pub fn network(context: &Context) -> Check {
    const NAME: &str = "network";
    const REMEDY: &str = "check [dhcp].router of the site, and the gateway";
    let is_gateway = |route: &Route| route.is_default() && !route.gateway.is_unspecified();
    let Some(Route { gateway, interface, .. }) = routes(&context.tree).into_iter().find(is_gateway)
    else {
        return pass(NAME, "no default route: the lease names no router");
    };
    let name = format!("{gateway} ({interface})");
    match context.probe.neighbour_answers(gateway) {
        Some(true) => pass(NAME, format!("the default gateway {name} answers")),
        Some(false) => {
            let detail = format!(
                "the default gateway {name} does not answer; other networks are unreachable"
            );
            warn(NAME, detail, REMEDY)
        }
        None => unproven(NAME, format!("cannot test the default gateway {name}"), REMEDY),
    }
}
