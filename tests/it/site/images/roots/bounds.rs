//! Sources that expand too far are refused before they fill the disk.

use super::{RootSite, run};
use std::{fs::File, process::Command};

#[test]
fn sparse_file_of_one_tebibyte_is_refused_in_each_format() {
    let site = RootSite::new();
    let folder = site.path("tree");
    std::fs::create_dir(&folder).unwrap();
    File::create(folder.join("huge")).unwrap().set_len(1 << 40).unwrap();
    for format in ["gnu", "pax"] {
        let tar = site.path("huge.tar");
        super::sources::archive(&folder, format, &tar);
        let refused = site.refusal(&format!("tar = {tar:?}"));
        assert!(refused.contains("expand to more than"), "{format}: {refused}");
    }
    let tar = site.path("old.tar");
    let mut old = Command::new("tar");
    old.args(["--create", "--sparse", "--sparse-version=0.1", "--format=pax", "--file"]);
    run(old.arg(&tar).arg("--directory").arg(&folder).arg("."));
    let refused = site.refusal(&format!("tar = {tar:?}"));
    assert!(refused.contains("--sparse-version=1.0"), "{refused}");
}
