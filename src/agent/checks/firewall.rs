//! Checks the firewalls of VM and task users, which the agent installs and repairs.

use super::{Context, fail, pass, skip, unproven};
use crate::networks::firewall::user::CentralServices;
use meshd_proto::Check;

pub fn firewall(context: &Context) -> Check {
    const NAME: &str = "firewall";
    const REMEDY: &str =
        "the agent repairs them every 15 s: see its log; the kernel needs the module nf_tables";
    match context.probe.user_firewalls(CentralServices::new(&context.config, &context.boot)) {
        Some(Ok(missing)) if missing.is_empty() => {
            pass(NAME, "programs of VMs and tasks are filtered")
        }
        Some(Ok(missing)) => {
            fail(NAME, format!("missing or changed: {}", missing.join(", ")), REMEDY)
        }
        Some(Err(error)) => unproven(NAME, format!("cannot read the firewalls: {error}"), REMEDY),
        None => skip(NAME, "this root is not that of a running system"),
    }
}
