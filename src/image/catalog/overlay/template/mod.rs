//! Templates of an overlay, compiled once in strict mode, so that an unknown name is a fault. All
//! names are collected before rendering.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `comparisons` | counts comparisons of a template |
//! | `filters` | filters with bounds on the texts that they build |
//! | `limits` | bounds that are checked before minijinja parses a template |
//! | `products` | bounds of products and sums of numbers |
//! | `tokens` | tags and tokens of a template |

mod comparisons;
mod filters;
mod limits;
mod products;
mod tokens;
#[cfg(test)]
mod tests;

use super::variable::{VarKind, Variable};
use filters::MAX_RENDERED;
use meshd_config::Fault;
use meshd_types::VarName;
use minijinja::{AutoEscape, Environment, Error, ErrorKind, UndefinedBehavior, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Names that templates can use in addition to `vars` and `groups`; docs/overlays.md explains each.
pub const NAMES: [(&str, &[&str]); 5] = [
    ("agent", &["config"]),
    ("image", &["manifest", "modloop", "name", "root", "system"]),
    ("node", &["hostname", "id", "machine_id"]),
    ("profile", &["name"]),
    ("site", &["name", "ssh_keys"]),
];
/// Maximum depth of calls in a template.
const MAX_RECURSION: usize = 64;

#[derive(Clone)]
pub struct Templates {
    folder: PathBuf,
    environment: Arc<Environment<'static>>,
}

/// Collects a rendering and stops it at [`MAX_RENDERED`].
#[derive(Default)]
struct BoundedText(Vec<u8>);

impl io::Write for BoundedText {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_RENDERED {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Templates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Templates").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// Inputs of a template.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TemplateInputs {
    pub vars: BTreeSet<VarName>,
    /// Members of groups.
    pub groups: bool,
}

/// Compiles and renders templates; `read` them all before rendering.
pub(super) struct Compiler<'a> {
    folder: &'a Path,
    variables: &'a BTreeMap<VarName, Variable>,
    environment: Environment<'static>,
    faults: &'a mut Vec<Fault>,
}

impl<'a> Compiler<'a> {
    pub(super) fn new(
        folder: &'a Path,
        variables: &'a BTreeMap<VarName, Variable>,
        faults: &'a mut Vec<Fault>,
    ) -> Self {
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        // Disable HTML escaping for every file name: the output is a script or a configuration
        // file.
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_keep_trailing_newline(true);
        environment.set_recursion_limit(MAX_RECURSION);
        environment.remove_global("namespace");
        filters::add(&mut environment);
        Compiler { folder, variables, environment, faults }
    }

    /// Compiles one template and returns its inputs. `file` is relative to the overlay's folder.
    pub(super) fn add(&mut self, file: &str, text: &str) -> TemplateInputs {
        let integers =
            self.variables.iter().filter(|(_, variable)| variable.kind == VarKind::Integer);
        match limits::check(text, integers.map(|(name, _)| name.as_str()).collect()) {
            // Templates of one overlay share an environment, and the least of their limits.
            Ok(fuel) => self.environment.set_fuel(
                self.environment.fuel().map_or(Some(fuel), |least| Some(least.min(fuel))),
            ),
            Err(found) => {
                self.fault(file, Some(found.line), found.what, found.hint);
                return TemplateInputs::default();
            }
        }
        if let Err(error) = self.environment.add_template_owned(file.to_owned(), text.to_owned()) {
            let message = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
            self.fault(
                file,
                error.line(),
                message,
                "see the documentation of minijinja: {{ value }}, {% if x %}",
            );
            return TemplateInputs::default();
        }
        let names =
            self.environment.get_template(file).map(|template| template.undeclared_variables(true));
        let mut names: Vec<String> = names.into_iter().flatten().collect();
        names.sort();
        let mut uses = TemplateInputs::default();
        for name in names {
            self.name(file, text, &name, &mut uses);
        }
        uses
    }

    pub(super) fn finish(self) -> Templates {
        Templates { folder: self.folder.to_owned(), environment: Arc::new(self.environment) }
    }

    fn name(&mut self, file: &str, text: &str, name: &str, uses: &mut TemplateInputs) {
        let mut parts = name.split('.');
        let first = parts.next().unwrap_or_default();
        let second = parts.next();
        match (first, second) {
            ("vars", None) => {
                let what = "names `vars` as a whole";
                self.fault(file, line_of(text, "vars"), what, "name each variable: vars.NAME");
            }
            ("vars", Some(variable)) => {
                match self.variables.keys().find(|declared| declared.as_str() == variable) {
                    Some(declared) => drop(uses.vars.insert(declared.clone())),
                    None => {
                        let what = format!("`vars.{variable}` is not declared");
                        let hint = format!(
                            "add to overlay.toml: [variables.{variable}] type = \"text\" required = true"
                        );
                        self.fault(file, line_of(text, &format!("vars.{variable}")), what, hint);
                    }
                };
            }
            ("groups", _) => uses.groups = true,
            _ if self.environment.globals().any(|(global, _)| global == first) => {}
            _ => match (NAMES.iter().find(|(group, _)| *group == first), second) {
                (Some(_), None) => {}
                (Some((_, members)), Some(member)) if members.contains(&member) => {}
                _ => {
                    let named = second
                        .map_or_else(|| first.to_owned(), |second| format!("{first}.{second}"));
                    let line = line_of(text, &named);
                    self.fault(file, line, format!("`{named}` is undefined"), known_names());
                }
            },
        }
    }

    fn fault(
        &mut self,
        file: &str,
        line: Option<usize>,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) {
        let fault = Fault::of_file(self.folder.join(file), message, hint);
        self.faults.push(Fault { line: line.unwrap_or(0), ..fault });
    }
}

impl Templates {
    /// Renders one template; `None` if the template is empty.
    pub fn render(&self, file: &str, values: &Value) -> Result<String, Fault> {
        let fault = |line: Option<usize>, what: String, hint: &str| Fault {
            line: line.unwrap_or(0),
            ..Fault::of_file(self.folder.join(file), what, hint)
        };
        let mut text = BoundedText::default();
        let rendered = self
            .environment
            .get_template(file)
            .and_then(|template| filters::render(&template, values, &mut text));
        match rendered {
            Ok(()) => Ok(String::from_utf8_lossy(&text.0).into_owned()),
            Err(error) => {
                let (what, hint) = explain(&error);
                Err(fault(error.line(), what, &hint))
            }
        }
    }
}

/// Adds the name and the known names to minijinja's "undefined value".
fn explain(error: &Error) -> (String, String) {
    if error.kind() == ErrorKind::UndefinedError {
        let named = error
            .template_source()
            .zip(error.range())
            .and_then(|(text, range)| whole_name(text, range));
        return (format!("`{}` is undefined", named.unwrap_or("a name")), known_names());
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return (
            "takes too many steps to render".to_owned(),
            "loop over fewer values, or bring a plain file".to_owned(),
        );
    }
    if error.kind() == ErrorKind::WriteFailure {
        return (
            format!("renders to more than {MAX_RENDERED} bytes"),
            "bring it smaller".to_owned(),
        );
    }
    let what = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    (what, "see docs/overlays.md for what each name is".to_owned())
}

/// Returns the whole dotted name, such as `groups.x.members`. minijinja reports only the position
/// of the part that failed.
fn whole_name(text: &str, range: Range<usize>) -> Option<&str> {
    let before = text.get(..range.start)?;
    let part = |c: char| c.is_alphanumeric() || "_.[]\"'".contains(c);
    let start = before.trim_end_matches(part).len();
    text.get(start..range.end).map(str::trim)
}

fn known_names() -> String {
    let names = NAMES
        .iter()
        .flat_map(|(group, members)| members.iter().map(move |member| format!("{group}.{member}")));
    let names: Vec<String> =
        names.chain(["groups.NAME.members".to_owned(), "vars.NAME".to_owned()]).collect();
    format!("templates know {}", names.join(", "))
}

/// Returns the first line, from 1, that contains a name as a word.
fn line_of(text: &str, name: &str) -> Option<usize> {
    let word = |c: char| c.is_alphanumeric() || c == '_';
    let at = text.match_indices(name).find(|(at, _)| {
        let after = text[at + name.len()..].chars().next();
        !text[..*at].ends_with(|c| word(c) || c == '.') && !after.is_some_and(word)
    });
    at.map(|(at, _)| text[..at].matches('\n').count() + 1)
}
