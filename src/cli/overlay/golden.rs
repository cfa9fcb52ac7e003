//! `meshd overlay golden`: compares `golden/` with a rendering on a sample node, or updates it.

use super::find;
use crate::cli::{Context, Failure, output::print::write, overlay::render::overlays};
use clap::Args;
use meshd_config::{Fault, Faults, files::read_regular, reader::MAX_FILE};
use meshd_image::{catalog::Overlay, overlay::sample::golden};
use similar::TextDiff;
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Without names: all overlays that have golden files, or with --update all overlays.
#[derive(Debug, Args)]
pub(in crate::cli) struct Golden {
    /// Overlays
    names: Vec<String>,
    /// Update the golden files
    #[arg(long)]
    update: bool,
}

type Files = BTreeMap<String, String>;

impl Golden {
    pub(super) fn run(self, context: &Context) -> Result<(), Failure> {
        let site = context.site()?;
        let overlays = overlays(&site)?;
        let chosen: Vec<&Overlay> = match self.names.as_slice() {
            [] => overlays.named.values().collect(),
            names => names.iter().map(|name| find(&site, &overlays, name)).collect::<Result<_, _>>()?,
        };
        let (mut faults, mut differing, mut compared) = (Vec::new(), String::new(), 0);
        for overlay in chosen {
            let folder = overlay.folder.join("golden");
            if !self.update && !folder.is_dir() {
                if !self.names.is_empty() {
                    let hint = format!("write them: meshd overlay golden {} --update", overlay.name);
                    faults.push(Fault::of_file(&folder, "there are no golden files", hint));
                }
                continue;
            }
            compared += 1;
            match golden(&overlays, overlay) {
                Err(found) => faults.extend(found.0),
                Ok(expected) if self.update => update(&folder, &expected)?,
                Ok(expected) => differing += &compare(&folder, &expected)?,
            }
        }
        write(&differing)?;
        if !faults.is_empty() {
            return Err(Faults(faults).into());
        }
        if !differing.is_empty() {
            let hint = "for an intended change run meshd overlay golden --update, then review the difference";
            return Err(Failure::new("rendered overlays differ from their golden files", hint));
        }
        message!("{compared} overlays {}", if self.update { "written" } else { "match their golden files" });
        Ok(())
    }
}

fn golden_failure(folder: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", folder.display()), "check its permissions")
}

/// Replaces the content of the folder with the expected files.
pub(super) fn update(folder: &Path, expected: &Files) -> Result<(), Failure> {
    let write = || {
        if folder.exists() {
            fs::remove_dir_all(folder)?;
        }
        for (path, text) in expected {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().unwrap_or(folder))?;
            fs::write(path, text)?;
        }
        Ok(())
    };
    write().map_err(|error| golden_failure(folder, &error))
}

/// Returns the differences as unified diffs.
fn compare(folder: &Path, expected: &Files) -> Result<String, Failure> {
    let mut found = Files::new();
    read(folder, folder, &mut found).map_err(|error| golden_failure(folder, &error))?;
    let mut paths: Vec<&String> = expected.keys().chain(found.keys()).collect();
    paths.sort();
    paths.dedup();
    let nothing = String::new();
    let mut out = String::new();
    for path in paths {
        let (old, new) = (found.get(path).unwrap_or(&nothing), expected.get(path).unwrap_or(&nothing));
        let absent = found.contains_key(path) != expected.contains_key(path);
        if old != new || absent {
            let name = folder.join(path).display().to_string();
            let rendered = if expected.contains_key(path) { "rendered now" } else { "/dev/null" };
            out += &TextDiff::from_lines(old, new).unified_diff().header(&name, rendered).to_string();
            if old == new {
                out += &format!(
                    "{name}: empty, and {}\n",
                    if expected.contains_key(path) { "missing" } else { "too many" }
                );
            }
        }
    }
    Ok(out)
}

fn read(root: &Path, folder: &Path, found: &mut Files) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path: PathBuf = entry?.path();
        if path.is_dir() {
            read(root, &path, found)?;
        } else {
            let relative = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
            found.insert(relative, String::from_utf8_lossy(&read_regular(&path, MAX_FILE)?).into_owned());
        }
    }
    Ok(())
}
