//! Inputs of the actions, and the requests that they become.

use super::catalog::{Action, ActionInput};
use crate::{client::ApiError, form::Fields};
use maud::{Markup, html};
use meshd_api::{
    Approve, AssignProfile, BootOnce, ChangeVars, Drain, DrainPolicy, Pin, PowerOrder, ProfileView,
};
use meshd_types::ParseError;
use serde_json::{Value, json};

/// Renders the inputs of an action. `fields` are those of the last submission.
pub(super) fn input_fields(action: &Action, profiles: &[ProfileView], fields: &Fields) -> Markup {
    let profile = fields.text("profile");
    html! {
        @match action.input {
            ActionInput::Nothing => {}
            ActionInput::Moved => (tick_box(fields, "moved", "The machine was moved: forget its relay port")),
            ActionInput::Profile => {
                label for="profile" { "Profile" }
                select id="profile" name="profile" { (profile_options(profiles, profile)) }
            }
            ActionInput::Pin => (tick_box(fields, "off", "Unpin: boot the profile")),
            ActionInput::Once => {
                label for="profile" { "Profile of the next boot" }
                select id="profile" name="profile" {
                    option value="" { "its own" }
                    (profile_options(profiles, profile))
                }
                label for="kernel_args" { "Additional kernel arguments; -NAME removes one" }
                input id="kernel_args" name="kernel_args" value=(fields.text("kernel_args")) maxlength="500" placeholder="debug -quiet";
                (tick_box(fields, "clear", "Cancel the override of the next boot"))
            }
            ActionInput::Drain => {
                label for="workloads" { "Running work" }
                (choice("workloads", fields, &[("wait", "wait for its end"), ("stop", "stop it")]))
            }
            ActionInput::Power => {
                label for="power" { "Power" }
                (choice("power", fields, &[("on", "on"), ("off", "off, after a shutdown"), ("cycle", "cycle"), ("reset", "reset")]))
            }
            ActionInput::Labels => {
                label for="labels" { "Labels to set (key=value) and to remove (key-)" }
                input id="labels" name="labels" value=(fields.text("labels")) required placeholder="rack=a feed=2 spare-";
            }
            ActionInput::Variables => {
                label for="variables" { "Variables, one a line: NAME=VALUE sets, NAME- removes. A value is true, 8, [a,b] or text; \"8\" is text" }
                textarea.code id="variables" name="variables" rows="5" maxlength="10000" spellcheck="false" required { (fields.text("variables")) }
            }
        }
    }
}

/// Renders profiles as options of a `select`.
pub(in crate::screens) fn profile_options(profiles: &[ProfileView], chosen: &str) -> Markup {
    html! {
        @for profile in profiles {
            @let name = profile.name.as_str();
            option value=(name) selected[chosen == name] { (name) }
        }
    }
}

/// Renders a checkbox with its label.
fn tick_box(fields: &Fields, name: &str, label: &str) -> Markup {
    html! { label { input type="checkbox" name=(name) value="1" checked[fields.is_ticked(name)]; " " (label) } }
}

/// Renders a choice of values.
fn choice(name: &str, fields: &Fields, values: &[(&str, &str)]) -> Markup {
    html! {
        select id=(name) name=(name) { @for (value, label) in values {
            option value=(value) selected[fields.text(name) == *value] { (label) }
        } }
    }
}

/// Returns the body of the order for one node.
pub(super) fn body(action: &Action, fields: &Fields) -> Result<Value, ApiError> {
    let bad = |text: &str| ApiError::bad_request(text, "correct it");
    let value = match action.input {
        ActionInput::Nothing => Ok(Value::Null),
        ActionInput::Moved => serde_json::to_value(Approve { moved: fields.is_ticked("moved") }),
        ActionInput::Profile => {
            serde_json::to_value(AssignProfile { profile: fields.text("profile").to_owned() })
        }
        ActionInput::Drain => {
            let workloads = if fields.text("workloads") == "stop" {
                DrainPolicy::Stop
            } else {
                DrainPolicy::Wait
            };
            serde_json::to_value(Drain { workloads, grace_s: None })
        }
        ActionInput::Power => {
            let action = fields.text("power").parse();
            let action = action.map_err(|error: ParseError| bad(&error.to_string()))?;
            serde_json::to_value(PowerOrder { action, now: false })
        }
        ActionInput::Pin => {
            serde_json::to_value(Pin { generation: None, off: fields.is_ticked("off") })
        }
        ActionInput::Once => serde_json::to_value(boot_once(fields)),
        ActionInput::Labels => Ok(labels(fields.text("labels"))),
        ActionInput::Variables => {
            serde_json::to_value(variables(fields.text("variables")).map_err(|error| bad(&error))?)
        }
    };
    value.map_err(|error| bad(&error.to_string()))
}

/// Parses the fields of a form about the next boot.
pub(super) fn boot_once(fields: &Fields) -> BootOnce {
    BootOnce {
        profile: Some(fields.text("profile").to_owned()).filter(|profile| !profile.is_empty()),
        kernel_args: fields.text("kernel_args").split_whitespace().map(str::to_owned).collect(),
        clear: fields.is_ticked("clear"),
    }
}

/// Parses `rack=a spare-` into the JSON of the API. The API checks keys and values.
pub(in crate::screens) fn labels(text: &str) -> Value {
    let mut set = serde_json::Map::new();
    let mut unset = Vec::new();
    for word in text.split_whitespace() {
        match (word.split_once('='), word.strip_suffix('-')) {
            (Some((key, value)), _) => drop(set.insert(key.to_owned(), json!(value))),
            (None, Some(key)) => unset.push(json!(key)),
            (None, None) => drop(set.insert(word.to_owned(), json!(""))),
        }
    }
    json!({ "set": set, "unset": unset })
}

/// Parses variables in the syntax of the command line, one per line.
fn variables(text: &str) -> Result<ChangeVars, String> {
    let mut change = ChangeVars::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let wrong = |error: &dyn std::fmt::Display| format!("`{line}`: {error}");
        match (line.split_once('='), line.strip_suffix('-')) {
            (Some((name, value)), _) => {
                let name = name.trim().parse().map_err(|error| wrong(&error))?;
                change.set.insert(name, value.trim().parse().map_err(|error| wrong(&error))?);
            }
            (None, Some(name)) => change.unset.push(name.parse().map_err(|error| wrong(&error))?),
            (None, None) => return Err(wrong(&"write NAME=VALUE or NAME-")),
        }
    }
    Ok(change)
}
