//! `overlays/<name>/golden/`: what each shipped overlay renders to on a made-up node, for people to read in a review.
//!
//! `FILES` lists everything; beside it lies the text of each template and of what meshd makes of services and packages.
//! After a change that is meant: `MESHD_UPDATE_GOLDEN=1 cargo test golden`, then read the difference.

use super::{
    Kind, Origin, PublicOverlay, RenderedFile,
    tests::{Given, shipped_folder},
};
use std::{collections::BTreeMap, fs, path::Path};

const UPDATE: &str = "MESHD_UPDATE_GOLDEN";

#[test]
fn every_shipped_overlay_renders_to_its_golden_files() {
    let names: Vec<String> = Given::shipped(&[]).overlays.keys().map(ToString::to_string).collect();
    assert!(names.len() >= 3, "{names:?}");
    for name in names {
        let public = Given::shipped(&[&name]).render().unwrap_or_else(|faults| panic!("{faults}"));
        compare(&shipped_folder(&name).join("golden"), &golden(&name, &public));
    }
}

/// Text by path below `golden/`.
fn golden(name: &str, public: &PublicOverlay) -> BTreeMap<String, String> {
    let mut files = BTreeMap::from([("FILES".to_owned(), listing(public))]);
    for file in &public.files {
        // A plain file stands in rootfs/ already, and digests of files would only hide what has changed.
        let plain = shipped_folder(name).join("rootfs").join(file.path.relative()).exists();
        if let (Kind::File(bytes), false, false) =
            (&file.kind, plain, file.path.relative().ends_with("manifest.sha256"))
        {
            files.insert(file.path.relative().to_owned(), String::from_utf8_lossy(bytes).into_owned());
        }
    }
    files
}

fn listing(public: &PublicOverlay) -> String {
    let line = |file: &RenderedFile| {
        let target = if let Kind::Link(target) = &file.kind { format!(" -> {target}") } else { String::new() };
        let made = if file.origin == Origin::Generated { "  (made by meshd)" } else { "" };
        format!("{:9} {:04o} {}:{} {}{target}{made}\n", file.kind, file.mode, file.owner.0, file.owner.1, file.path)
    };
    public.files.iter().map(line).collect()
}

fn compare(folder: &Path, wanted: &BTreeMap<String, String>) {
    if std::env::var_os(UPDATE).is_some() {
        let _ = fs::remove_dir_all(folder);
        for (path, text) in wanted {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("is below the folder")).expect("made");
            fs::write(path, text).expect("written");
        }
    }
    let mut found = BTreeMap::new();
    read(folder, folder, &mut found);
    for (path, text) in wanted {
        let golden = found.remove(path).unwrap_or_default();
        assert_eq!(*text, golden, "{}/{path} differs; if it is meant, set {UPDATE}=1", folder.display());
    }
    assert!(
        found.is_empty(),
        "{} holds {:?}, which nothing renders to; set {UPDATE}=1",
        folder.display(),
        found.keys()
    );
}

fn read(root: &Path, folder: &Path, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            read(root, &path, found);
        } else {
            let relative = path.strip_prefix(root).expect("below it").to_string_lossy().into_owned();
            found.insert(relative, fs::read_to_string(&path).expect("golden files are text"));
        }
    }
}
