//! Names and types of the values that templates can use; docs/overlays.md lists them.
//! [`NAMES`](crate::catalog::overlay::NAMES) is the list that templates are validated against.

use super::{
    RenderInput,
    merge::{Merged, fault},
};
use crate::catalog::overlay::{Layer, Overlay, Runlevel, Source, SourceLocation, Variable};
use meshd_config::Fault;
use meshd_proto::AgentConfig;
use meshd_types::{Secret, VarName, VarValue};
use minijinja::{Value, context};
use std::collections::BTreeMap;

/// Template values for each layer, in the order of layers: they differ in `vars`.
pub(super) fn values(
    input: &RenderInput<'_>,
    merged: &Merged<'_>,
    faults: &mut Vec<Fault>,
) -> Vec<Value> {
    let common = common(input, merged);
    let each = merged.layers.iter().map(|overlay| {
        let vars = variables(input, overlay, faults);
        context! { vars => vars, ..common.clone() }
    });
    each.collect()
}

fn common(input: &RenderInput<'_>, merged: &Merged<'_>) -> Value {
    let site = input.site;
    let config = agent_config(input, merged);
    let values = context! {
        site => context! { name => site.name, ssh_keys => site.ssh_keys },
        node => context! {
            id => input.node.id.to_string(),
            hostname => input.node.hostname(),
            machine_id => input.node.machine_id(),
        },
        profile => context! { name => input.profile.name.as_str() },
        image => context! {
            name => input.image.name.as_str(),
            manifest => input.image.manifest.to_string(),
            system => input.image.system.as_str(),
            ..fetched_parts(input)
        },
        agent => context! {
            config => serde_json::to_string_pretty(&config).expect("an agent's configuration is plain data"),
        },
    };
    // Look up members only for templates that use them: a group may have thousands of members.
    if !merged.paths.values().flatten().any(|piece| uses_groups(&piece.entry.source)) {
        return values;
    }
    context! { groups => groups(input), ..values }
}

/// The digests of the parts that the running node fetches, such as `image.modloop`.
fn fetched_parts(input: &RenderInput<'_>) -> Value {
    let parts = input.image.fetched_parts.iter();
    parts.map(|(name, blob)| (*name, blob.digest.to_string())).collect()
}

fn uses_groups(source: &Source) -> bool {
    matches!(source, Source::Template { uses, .. } if uses.groups)
}

fn groups(input: &RenderInput<'_>) -> BTreeMap<String, Value> {
    let member = |member: &super::MemberContext| {
        let address = member.address.map(|address| address.to_string());
        context! {
            id => member.id.to_string(),
            hostname => member.hostname,
            address => address,
            threads => member.size.map(|size| size.threads),
            memory_mib => member.size.map(|size| size.memory_mib),
        }
    };
    let groups = input.node.groups.iter().map(|group| {
        let members: Vec<Value> = group.members.iter().map(member).collect();
        (group.name.to_string(), context! { name => group.name.as_str(), members => members })
    });
    groups.collect()
}

fn agent_config(input: &RenderInput<'_>, merged: &Merged<'_>) -> AgentConfig {
    let running = [Runlevel::Boot, Runlevel::Default].into_iter().flat_map(|level| {
        merged
            .services
            .iter()
            .filter(move |(_, enabled)| enabled.level == level)
            .map(|(service, _)| *service)
    });
    AgentConfig {
        version: meshd_proto::VERSION,
        node: input.node.id,
        central: input.central,
        port: input.site.agent.port,
        ca_file: "/etc/meshd/ca.pem".to_owned(),
        heartbeat_s: u32::try_from(input.site.agent.heartbeat.as_secs()).unwrap_or(u32::MAX),
        profile: input.profile.name.to_string(),
        services: running.map(str::to_owned).collect(),
        units: merged.units.keys().map(|unit| (*unit).to_owned()).collect(),
        checks: input.profile.checks.clone(),
        vfio: input.profile.vfio.clone(),
        data_disks: input.profile.data_disks.iter().map(ToString::to_string).collect(),
        kvm: merged.modules.iter().any(|module| *module == "kvm" || module.starts_with("kvm_")),
    }
}

/// Returns the variables that one overlay declares, with a placeholder for each secret.
fn variables(
    input: &RenderInput<'_>,
    overlay: &Overlay,
    faults: &mut Vec<Fault>,
) -> BTreeMap<String, Value> {
    let mut values = BTreeMap::new();
    for (name, variable) in &overlay.variables {
        let value = value(input, overlay, name, variable).unwrap_or_else(|(what, hint)| {
            let location = SourceLocation { file: "overlay.toml".into(), line: variable.line };
            faults.push(fault(overlay, &location, format!("variable `{name}` {what}"), hint));
            // An empty value of the right type replaces an invalid value, so that one cause gives
            // one fault.
            plain(&variable.kind.empty())
        });
        values.insert(name.to_string(), value);
    }
    values
}

fn value(
    input: &RenderInput<'_>,
    overlay: &Overlay,
    name: &VarName,
    variable: &Variable,
) -> Result<Value, (String, String)> {
    let set = input.node.vars.get(name);
    if variable.secret {
        if set.is_some() {
            let hint = format!(
                "remove it there, and write {name} = {{ file = \"/path\" }} under [secrets] in site.toml"
            );
            return Err(("is a secret and set where everybody reads it".into(), hint));
        }
        if !input.overlays.may_use(&overlay.name, name) {
            let hint = match &overlay.name {
                Layer::Named(_) => format!(
                    "use another secret, or add the overlay to `overlays` of {name} under [secrets] in site.toml"
                ),
                Layer::Node(_) => format!(
                    "move the file into a named overlay, or use a secret without `overlays`, not {name}"
                ),
            };
            return Err(("is a secret of other overlays".into(), hint));
        }
        if input.overlays.secret_marks.contains_key(name) {
            return Ok(Value::from(placeholder(name)));
        }
        if variable.required {
            let hint =
                format!("write in site.toml, under [secrets]: {name} = {{ file = \"/path\" }}");
            return Err((
                format!("is a secret that the site does not have (profile {})", input.profile.name),
                hint,
            ));
        }
        return Ok(Value::from(""));
    }
    if let Some(value) = set {
        variable
            .check(value)
            .map_err(|(what, hint)| (format!("{what} (profile {})", input.profile.name), hint))?;
        return Ok(plain(value));
    }
    match &variable.default {
        Some(value) => Ok(plain(value)),
        None if variable.required => {
            let hint =
                format!("set it for the profile, a group or the node: vars = {{ {name} = .. }}");
            Err((format!("is required and not set (profile {})", input.profile.name), hint))
        }
        None => Ok(plain(&variable.kind.empty())),
    }
}

/// Placeholder of a secret.
fn placeholder(name: &VarName) -> String {
    format!("[secret {name}]")
}

fn plain(value: &VarValue) -> Value {
    match value {
        VarValue::Bool(value) => Value::from(*value),
        VarValue::Integer(value) => Value::from(*value),
        VarValue::Text(text) => Value::from(text.as_str()),
        VarValue::List(texts) => texts.iter().map(String::as_str).collect(),
    }
}

/// Returns the values with secrets, for the overlay of one boot. The caller must not store them.
pub(super) fn with_secrets<'s>(
    values: &Value,
    secrets: impl IntoIterator<Item = (&'s VarName, &'s Secret<String>)>,
) -> Value {
    // The secrets are exposed to the template of a file that only root of an admitted node can
    // read.
    let secrets = secrets
        .into_iter()
        .map(|(name, secret)| (name.to_string(), Value::from(secret.expose().as_str())));
    let secrets: Value = secrets.collect::<BTreeMap<_, _>>().into();
    let vars = values.get_attr("vars").unwrap_or_default();
    context! { vars => context! { ..secrets, ..vars }, ..values.clone() }
}
