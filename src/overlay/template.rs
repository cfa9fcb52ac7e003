//! Templates: strict minijinja, so that a misspelt name fails the render instead of leaving a hole in a file.

use crate::id::OverlayName;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};

/// The largest file that a template may render to, in bytes.
const MAX_RENDERED: usize = 4 << 20;

/// A template that did not render.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("overlay {overlay}: {file}{}: {what}", line.map(|line| format!(":{line}")).unwrap_or_default())]
pub struct TemplateFault {
    /// The overlay that brings the template.
    pub overlay: OverlayName,
    /// The template, relative to the overlay's folder.
    pub file: String,
    /// Line in the template, from 1.
    pub line: Option<usize>,
    /// What was wrong, and with which name.
    pub what: String,
}

/// Renders the templates of one node: the values are the same for all of them.
pub struct Templates {
    environment: Environment<'static>,
    values: Value,
}

impl Templates {
    /// `values` is what templates can name, in groups such as `node.id`; any other name is a fault.
    pub fn new(values: Value) -> Self {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        // What comes out is a script or a configuration file, never HTML, whatever its name ends in.
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_keep_trailing_newline(true);
        environment.add_filter("json", json);
        Templates { environment, values }
    }

    /// The text of one template, or where and why it has none.
    pub fn render(&self, overlay: &OverlayName, file: &str, text: &str) -> Result<String, TemplateFault> {
        let fault = |line, what| TemplateFault { overlay: overlay.clone(), file: file.to_owned(), line, what };
        let rendered = self
            .environment
            .render_named_str(file, text, &self.values)
            .map_err(|error| fault(error.line(), self.explain(&error, text)))?;
        if rendered.len() > MAX_RENDERED {
            return Err(fault(None, format!("renders to {} bytes, more than {MAX_RENDERED}", rendered.len())));
        }
        Ok(rendered)
    }

    /// minijinja says "undefined value"; a person wants the name, and the names that there are.
    fn explain(&self, error: &minijinja::Error, text: &str) -> String {
        if error.kind() == minijinja::ErrorKind::UndefinedError {
            let named = error.range().and_then(|range| text.get(range)).unwrap_or("a name").trim();
            return format!("`{named}` is undefined; templates know {}", self.known_names().join(", "));
        }
        match error.detail() {
            Some(detail) => format!("{}: {detail}", error.kind()),
            None => error.kind().to_string(),
        }
    }

    fn known_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for group in self.values.try_iter().into_iter().flatten() {
            let inner = self.values.get_item(&group).unwrap_or_default();
            names.extend(inner.try_iter().into_iter().flatten().map(|name| format!("{group}.{name}")));
        }
        names.sort();
        names
    }
}

/// `value | json`: the value as JSON writes it, quotes included.
fn json(value: &Value) -> Result<String, minijinja::Error> {
    serde_json::to_string(value)
        .map_err(|error| minijinja::Error::new(minijinja::ErrorKind::BadSerialization, error.to_string()))
}
