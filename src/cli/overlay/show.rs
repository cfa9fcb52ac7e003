//! `meshd overlay show`: files and variables of an overlay, and the images it fits.

use super::{
    OverlayView,
    check::{built_images, carriers, missing_contents},
    find,
};
use crate::cli::{
    Context, Failure,
    output::print::{Output, fields, table},
    overlay::render::overlays,
};
use clap::Args;
use meshd_config::Site;
use meshd_image::catalog::{
    self,
    overlay::{OverlayEntry, Source, Variable},
};
use meshd_types::{ImageName, VarName, VarValue};
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Args)]
pub(in crate::cli) struct Show {
    /// Name
    name: String,
    #[command(flatten)]
    output: Output,
}

#[derive(Debug, Serialize)]
struct View {
    #[serde(flatten)]
    overlay: OverlayView,
    /// Packages that a root image must contain.
    systemd_packages: Vec<String>,
    modules: Vec<String>,
    sysctl: BTreeMap<String, String>,
    removes: Vec<String>,
    brings: Vec<EntryView>,
    settings: Vec<VariableView>,
    /// Packages, services and modules that each built image lacks.
    images: BTreeMap<ImageName, Vec<String>>,
}

#[derive(Debug, Serialize)]
struct EntryView {
    path: String,
    kind: &'static str,
    mode: String,
    owner: String,
    note: String,
}

#[derive(Debug, Serialize)]
struct VariableView {
    name: VarName,
    r#type: &'static str,
    default: Option<VarValue>,
    required: bool,
    secret: bool,
    choices: Vec<String>,
    description: String,
}

impl Show {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let site = context.site()?;
        let overlays = overlays(&site)?;
        let overlay = find(&site, &overlays, &self.name)?;
        self.output.print(&View::new(overlay, &site), text)
    }
}

impl View {
    fn new(overlay: &catalog::Overlay, site: &Site) -> Self {
        let services = overlay.services.removed.keys().map(|service| format!("service {service}"));
        View {
            systemd_packages: overlay.units.packages.iter().cloned().collect(),
            modules: overlay.modules.clone(),
            sysctl: overlay.sysctl.clone(),
            removes: overlay.removed.keys().map(ToString::to_string).chain(services).collect(),
            brings: overlay
                .entries
                .iter()
                .map(|(path, entry)| EntryView::new(path.to_string(), entry, overlay))
                .collect(),
            settings: overlay
                .variables
                .iter()
                .map(|(name, variable)| VariableView::new(name, variable))
                .collect(),
            images: missing_contents(overlay, &built_images(site)),
            overlay: OverlayView::new(overlay, site),
        }
    }
}

impl EntryView {
    fn new(path: String, entry: &OverlayEntry, overlay: &catalog::Overlay) -> Self {
        let (kind, note) = match &entry.source {
            Source::File(_) => ("file", String::new()),
            Source::Template { .. } if entry.source.secret(&overlay.variables).is_some() => {
                ("file", "secret".to_owned())
            }
            Source::Template { .. } => ("file", "template".to_owned()),
            Source::Agent => ("file", "the agent".to_owned()),
            Source::Link(target) => ("link", format!("-> {target}")),
            Source::Directory => ("directory", String::new()),
        };
        let note = if entry.append { format!("{note} appended").trim().to_owned() } else { note };
        let (user, group) = entry.owner;
        EntryView {
            path,
            kind,
            mode: format!("{:04o}", entry.mode),
            owner: format!("{user}:{group}"),
            note,
        }
    }
}

impl VariableView {
    fn new(name: &VarName, variable: &Variable) -> Self {
        VariableView {
            name: name.clone(),
            r#type: variable.kind.as_str(),
            default: variable.default.clone(),
            required: variable.required,
            secret: variable.secret,
            choices: variable.choices.clone(),
            description: variable.description.clone(),
        }
    }

    fn default(&self) -> String {
        match (&self.default, self.secret, self.required) {
            (_, true, true) => "secret, required".into(),
            (_, true, false) => "secret".into(),
            (_, _, true) => "required".into(),
            (Some(value), ..) => value.to_string(),
            (None, ..) => String::new(),
        }
    }
}

fn text(view: &View) -> String {
    let services =
        view.overlay.services.iter().map(|(level, names)| format!("{level}: {}", names.join(" ")));
    let sysctl = view.sysctl.iter().map(|(name, value)| format!("{name}={value}"));
    let profiles: Vec<&str> =
        view.overlay.profiles.iter().map(meshd_types::ProfileName::as_str).collect();
    let mut text = fields([
        ("name", view.overlay.name.clone()),
        ("description", view.overlay.description.clone()),
        ("digest", view.overlay.digest.to_string()),
        ("systems", view.overlay.systems.join(" ")),
        ("packages", view.overlay.packages.join(" ")),
        ("packages of systemd roots", view.systemd_packages.join(" ")),
        ("modules", view.modules.join(" ")),
        ("sysctl", sysctl.collect::<Vec<_>>().join(", ")),
        ("services", services.collect::<Vec<_>>().join(", ")),
        ("units", view.overlay.units.join(" ")),
        ("removes", view.removes.join(" ")),
        ("profiles", profiles.join(" ")),
        ("images", carriers(&view.images)),
    ]);
    if !view.brings.is_empty() {
        text += "\n";
        let row = |entry: &EntryView| {
            [
                entry.kind.to_owned(),
                entry.mode.clone(),
                entry.owner.clone(),
                entry.path.clone(),
                entry.note.clone(),
            ]
        };
        text += &table(["kind", "mode", "owner", "path", ""], view.brings.iter().map(row));
    }
    if !view.settings.is_empty() {
        text += "\n";
        let row = |variable: &VariableView| {
            let kind = match variable.choices.as_slice() {
                [] => variable.r#type.to_owned(),
                choices => choices.join("|"),
            };
            [variable.name.to_string(), kind, variable.default(), variable.description.clone()]
        };
        text +=
            &table(["variable", "type", "default", "description"], view.settings.iter().map(row));
    }
    text
}
