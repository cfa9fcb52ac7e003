//! `[variables.NAME]`: typed variables of an overlay.

use meshd_config::reader::{Document, NamedTable, Table};
use meshd_types::{Hint as _, VarName, VarValue};

/// Declaration of a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Variable {
    pub kind: VarKind,
    /// Default value.
    pub default: Option<VarValue>,
    /// Rendering fails if the variable is not set.
    pub required: bool,
    /// The value comes from `[secrets]` of the site and is never shown.
    pub secret: bool,
    /// Permitted texts; empty permits all.
    pub choices: Vec<String>,
    /// Purpose, in one line.
    pub description: String,
    /// Line of `overlay.toml`.
    pub line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VarKind {
    /// `true` or `false`.
    Bool,
    /// A whole number.
    Integer,
    Text,
    /// A list of texts.
    List,
}

impl VarKind {
    const ALL: [(&str, VarKind); 4] = [
        ("bool", VarKind::Bool),
        ("integer", VarKind::Integer),
        ("text", VarKind::Text),
        ("list", VarKind::List),
    ];

    /// Returns the type name, as [`VarValue::type_name`].
    pub fn as_str(self) -> &'static str {
        Self::ALL.iter().find(|(_, kind)| *kind == self).map_or("", |(word, _)| word)
    }

    /// Returns the value of a variable that is neither required nor set.
    pub fn empty(self) -> VarValue {
        match self {
            VarKind::Bool => VarValue::Bool(false),
            VarKind::Integer => VarValue::Integer(0),
            VarKind::Text => VarValue::Text(String::new()),
            VarKind::List => VarValue::List(Vec::new()),
        }
    }
}

impl Variable {
    /// Checks the type and the choices of a value.
    pub fn check(&self, value: &VarValue) -> Result<(), (String, String)> {
        if value.type_name() != self.kind.as_str() {
            let example = match self.kind {
                VarKind::Bool => "true or false",
                VarKind::Integer => "a whole number, without quotes",
                VarKind::Text => "a text in quotes",
                VarKind::List => "a list of texts, [\"a\", \"b\"]",
            };
            let what = format!("is of type {}, not {}", value.type_name(), self.kind.as_str());
            return Err((what, format!("write {example}")));
        }
        match value {
            VarValue::Text(text) if !self.choices.is_empty() && !self.choices.contains(text) => {
                let hint = format!("it may be {}", self.choices.join(", "));
                Err((format!("cannot be `{}`", meshd_config::reader::brief(text)), hint))
            }
            _ => Ok(()),
        }
    }
}

/// Parses one `[variables.NAME]`.
pub(super) fn read(
    document: &Document,
    NamedTable { name, table }: NamedTable<'_>,
) -> Option<(VarName, Variable)> {
    let hint = "say what a value must be: bool, integer, text or list";
    let kind = table.required("type", table.choice("type", &VarKind::ALL), hint);
    let default = table.variable("default");
    let required = table.bool("required");
    let secret = table.bool("secret").is_some_and(|secret| secret.value);
    let description =
        table.word("description").map(|text| document.plain_line(text)).unwrap_or_default();
    let choices = table.strings("choices").into_iter().map(|choice| choice.value).collect();
    let variable = Variable {
        kind: kind?.value,
        // Secrets are required by default: an absent secret is rarely intended, and an empty one is
        // never safe.
        required: required.as_ref().map_or(secret, |required| required.value),
        default: default.as_ref().map(|default| default.value.clone()),
        secret,
        choices,
        description,
        line: table.own_position().line,
    };
    sound(&table, &variable, required.is_some());
    let name = name
        .parse::<VarName>()
        .map_err(|error| document.fault(&name, error.message(), "rename it"))
        .ok()?;
    Some((name, variable))
}

/// Checks conflicts between the keys.
fn sound(table: &Table<'_>, variable: &Variable, says_required: bool) {
    if variable.secret && variable.kind != VarKind::Text {
        table.fault("type", "a secret is a text", "write type = \"text\"");
    }
    if !variable.choices.is_empty() && (variable.kind != VarKind::Text || variable.secret) {
        table.fault("choices", "only a text that is no secret has choices", "remove it");
    }
    match &variable.default {
        Some(_) if variable.secret => {
            table.fault(
                "default",
                "a secret has no default, because people read this file",
                "remove it",
            );
        }
        Some(_) if variable.required => {
            table.fault(
                "default",
                "a variable that must be set needs no default",
                "remove this, or `required`",
            );
        }
        Some(default) => {
            if let Err((message, hint)) = variable.check(default) {
                table.fault("default", message, hint);
            }
        }
        None if says_required || variable.secret => {}
        None => {
            let hint = "write default = .., or required = true; required = false leaves it empty";
            table.fault(
                "default",
                "says neither what it is by default nor that it must be set",
                hint,
            );
        }
    }
}
