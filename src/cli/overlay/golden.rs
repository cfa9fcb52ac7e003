//! `meshd overlay golden`: compares `golden/` with a rendering on a sample node, or updates it.

use super::find;
use crate::cli::{Context, Failure, output::print::write, overlay::render::overlays};
use clap::Args;
use meshd_config::{
    Fault, Faults,
    files::{open_beneath, read_opened},
    reader::MAX_FILE,
};
use meshd_image::{
    catalog::{Overlay, overlay::System},
    overlay::sample::golden,
};
use meshd_types::failpoint;
use rustix::{
    fs::{Dir, Mode, OFlags, mkdirat},
    io::Errno,
    path::Arg,
};
use similar::TextDiff;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
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
            names => {
                names.iter().map(|name| find(&site, &overlays, name)).collect::<Result<_, _>>()?
            }
        };
        let mut faults = Vec::new();
        let mut differing = String::new();
        let mut compared = 0;
        let each = chosen
            .into_iter()
            .flat_map(|overlay| overlay.systems.iter().map(move |system| (overlay, *system)));
        for (overlay, system) in each {
            let folder = overlay.folder.join(system.golden());
            if !self.update && !folder.is_dir() {
                if !self.names.is_empty() {
                    let hint =
                        format!("write them: meshd overlay golden {} --update", overlay.name);
                    faults.push(Fault::of_file(&folder, "there are no golden files", hint));
                }
                continue;
            }
            compared += 1;
            match golden(&overlays, overlay, system) {
                Err(found) => faults.extend(found.0),
                Ok(expected) if self.update => update(&overlay.folder, system, &expected)?,
                Ok(expected) => differing += &compare(&overlay.folder, system, &expected)?,
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
        message!(
            "{compared} renderings {}",
            if self.update { "written" } else { "match their golden files" }
        );
        Ok(())
    }
}

fn golden_failure(folder: &Path, error: &io::Error) -> Failure {
    Failure::new(format!("{}: {error}", folder.display()), "check its permissions")
}

/// Opens a file or folder of a folder. Follows no link: the author of an overlay may have put one
/// where a command of root reads and writes.
fn open_in(folder: &File, name: impl Arg, flags: OFlags) -> io::Result<File> {
    open_beneath(folder, name, flags, !failpoint::defends("golden-links"))
}

/// Opens a folder of a folder, and makes it if it is absent.
fn make_in(folder: &File, name: &Path) -> io::Result<File> {
    match mkdirat(folder, name, Mode::from(0o777)) {
        Ok(()) | Err(Errno::EXIST) => open_in(folder, name, OFlags::RDONLY | OFlags::DIRECTORY),
        Err(error) => Err(error.into()),
    }
}

/// Replaces the golden files of the overlay in `overlay` with the expected ones.
pub(super) fn update(overlay: &Path, system: System, expected: &Files) -> Result<(), Failure> {
    let write = || {
        // If it is a link, the link is removed.
        match fs::remove_dir_all(overlay.join(system.golden())) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let golden = make_in(&File::open(overlay)?, Path::new(system.golden()))?;
        for (path, text) in expected {
            let path = Path::new(path);
            let parents = path.parent().into_iter().flat_map(Path::iter);
            let folder = parents
                .map(Path::new)
                .try_fold(golden.try_clone()?, |above, name| make_in(&above, name))?;
            let name = path.file_name().unwrap_or_default();
            let mut file = open_in(&folder, name, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL)?;
            file.write_all(text.as_bytes())?;
        }
        Ok(())
    };
    write().map_err(|error| golden_failure(&overlay.join(system.golden()), &error))
}

/// Returns the differences as unified diffs.
fn compare(overlay: &Path, system: System, expected: &Files) -> Result<String, Failure> {
    let mut found = Files::new();
    let folder = overlay.join(system.golden());
    let opened = File::open(overlay)
        .and_then(|overlay| open_in(&overlay, system.golden(), OFlags::RDONLY | OFlags::DIRECTORY));
    opened
        .and_then(|golden| read(&golden, "", &mut found))
        .map_err(|error| golden_failure(&folder, &error))?;
    let mut paths: Vec<&String> = expected.keys().chain(found.keys()).collect();
    paths.sort();
    paths.dedup();
    let nothing = String::new();
    let mut out = String::new();
    for path in paths {
        let old = found.get(path).unwrap_or(&nothing);
        let new = expected.get(path).unwrap_or(&nothing);
        let absent = found.contains_key(path) != expected.contains_key(path);
        if old != new || absent {
            let name = folder.join(path).display().to_string();
            let rendered = if expected.contains_key(path) { "rendered now" } else { "/dev/null" };
            out +=
                &TextDiff::from_lines(old, new).unified_diff().header(&name, rendered).to_string();
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

/// Reads all files of a folder, whose path below `golden/` is `prefix`.
fn read(folder: &File, prefix: &str, found: &mut Files) -> io::Result<()> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if [c".", c".."].contains(&name) {
            continue;
        }
        let path = format!("{prefix}{}", name.to_string_lossy());
        let failed = |what: String| io::Error::other(format!("{path}: {what}"));
        // Opening a pipe must not wait.
        let file = open_in(folder, name, OFlags::RDONLY | OFlags::NONBLOCK)
            .map_err(|error| failed(error.to_string()))?;
        if file.metadata()?.is_dir() {
            read(&file, &format!("{path}/"), found)?;
        } else {
            let bytes = read_opened(file, MAX_FILE).map_err(|error| failed(error.to_string()))?;
            found.insert(path, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn golden_files_are_read_and_written_through_no_link() {
        let dir = tempfile::tempdir().unwrap();
        let overlay = dir.path().join("overlay");
        let private = dir.path().join("private");
        fs::create_dir(&overlay).unwrap();
        fs::create_dir(&private).unwrap();
        fs::write(private.join("key"), "a private key").unwrap();
        let expected = Files::from([("node/etc/motd".to_owned(), "hello\n".to_owned())]);
        update(&overlay, System::Alpine, &expected).unwrap();
        update(&overlay, System::Alpine, &expected).unwrap();
        assert_eq!(compare(&overlay, System::Alpine, &expected).unwrap(), "");
        symlink(&private, overlay.join("golden/node/linked")).unwrap();
        let refused = compare(&overlay, System::Alpine, &expected)
            .map_err(|failure| failure.parts().0.to_owned());
        assert!(
            refused
                .as_ref()
                .is_err_and(|error| error.contains("node/linked: links are not followed")),
            "{refused:?}"
        );
        fs::remove_dir_all(overlay.join(System::Alpine.golden())).unwrap();
        symlink(&private, overlay.join(System::Alpine.golden())).unwrap();
        assert!(compare(&overlay, System::Alpine, &expected).is_err());
        update(&overlay, System::Alpine, &expected).unwrap();
        assert_eq!(
            fs::read_dir(&private).unwrap().count(),
            1,
            "the target of the link is unchanged"
        );
        assert_eq!(compare(&overlay, System::Alpine, &expected).unwrap(), "");
    }
}
