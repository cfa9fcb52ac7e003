//! Tests of recipes and plans, and of the committed recipe.

use super::{
    installed::{self, Checksum},
    plan::{self, Files, PlanError, apply_patches, restore_text},
    recipe::{self, FileEdit, Patch},
};
use std::path::Path;

fn recipe_dir() -> std::path::PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("images/alpine-lab")
}

#[test]
fn committed_recipe_has_no_faults() {
    let recipe = recipe::load(&recipe_dir()).unwrap_or_else(|faults| panic!("{faults}"));
    assert!(recipe.modules.iter().any(|path| path.relative() == "drivers/vfio"));
    assert!(recipe.packages.extra.iter().any(|extra| extra.name == "alpine-base"));
}

#[test]
fn recipe_faults_are_all_reported_at_once() {
    let text = "\
arch = \"z80\"
[source]
pip = \"thing\"
wheel = \"../w.whl\"
sha256 = \"12\"
[kernel]
package = \"-x\"
version = \"newest\"
[modules]
keep = [\"/drivers/../x\"]
[initramfs]
files = [\"bin/sh\"]
compression = \"lzma\"
level = 99
[modloop]
compression = \"gzip\"
level = 12
colour = \"red\"
[[packages.restore]]
path = \"etc/x\"
content = \"a\"
link = \"b\"
";
    let faults = recipe::parse(text, Path::new("image.toml")).unwrap_err();
    let expected = [
        (1, "arch"),
        (3, "source.pip"),
        (4, "source.wheel"),
        (5, "source.sha256"),
        (7, "kernel.package"),
        (10, "modules.keep[0]"),
        (12, "initramfs.files[0]"),
        (13, "initramfs.compression"),
        (14, "initramfs.level"),
        (17, "modloop.level"),
        (18, "modloop.colour"),
    ];
    assert_faults(
        &faults,
        &expected,
        &["description", "source.member", "one way to bring the file back"],
    );
}

/// Asserts that faults with these lines and keys are reported, and that the report contains these
/// texts.
pub(crate) fn assert_faults(
    faults: &meshd_config::Faults,
    expected: &[(usize, &str)],
    texts: &[&str],
) {
    let seen: Vec<_> = faults.0.iter().map(|fault| (fault.line, fault.key.as_str())).collect();
    for fault in expected {
        assert!(seen.contains(fault), "{fault:?} is missing from\n{faults}");
    }
    let report = faults.to_string();
    for text in texts {
        assert!(report.contains(text), "{text} is missing from\n{report}");
    }
}

const DATABASE: &str = "\
C:Q1VFqm8pEgmviZMrdh2eQiwneFlsw=
P:base
V:1-r0
A:x86_64
D:musl
F:etc
R:passwd
a:0:0:640
Z:Q12jmj7l5rSw0yVb/vlWAYkK/YBwk=

C:Q1IedNSQqyqGmzoSHWsnOYs1iHF6E=
P:kernel
V:2-r0
";

fn packages(text: &str) -> Result<recipe::Packages, meshd_config::Faults> {
    let whole = std::fs::read_to_string(recipe_dir().join("image.toml")).unwrap();
    let head = whole.split("[packages]").next().unwrap();
    recipe::parse(&format!("{head}[packages]\n{text}"), Path::new("image.toml"))
        .map(|recipe| recipe.packages)
}

#[test]
fn package_is_planned_with_its_scripts_triggers_and_rules() {
    let rules = "leave_out = [\"kernel\"]\n[[packages.restore]]\npath = \"etc/passwd\"\ndrop_lines = [\"maker:\"]\n\
                 [[packages.extra]]\nname = \"meta\"\nversion = \"1-r0\"\ndescription = \"d\"\ndepends = [\"base\"]\n";
    let installed = installed::parse(DATABASE).unwrap();
    let id = Checksum::parse("Q1VFqm8pEgmviZMrdh2eQiwneFlsw=").unwrap().to_hex();
    let scripts =
        [format!("base-1-r0.X1{id}.post-install"), "base-1-r0.X1other.trigger".to_owned()];
    let triggers = "Q1VFqm8pEgmviZMrdh2eQiwneFlsw= /bin /lib/modules/*\n";
    let plans =
        plan::plan(&installed, &packages(rules).unwrap(), "x86_64", &scripts, triggers).unwrap();
    let [base, meta] = &plans[..] else { panic!("{plans:?}") };
    assert_eq!(base.scripts.keys().collect::<Vec<_>>(), ["post-install"]);
    assert_eq!(base.triggers, ["/bin", "/lib/modules/*"]);
    assert!(base.info.contains(&("depends", "musl".to_owned())));
    let Files::Tree { files, .. } = &base.files else { panic!("{base:?}") };
    assert_eq!((files[0].0.mode, files[0].1.is_some()), (0o640, true));
    assert_eq!((meta.name.as_str(), &meta.files), ("meta", &Files::None));
}

#[test]
fn recipe_not_matching_its_source_is_refused() {
    let plan = |rules: &str, database: &str| {
        let installed = installed::parse(database).unwrap();
        plan::plan(&installed, &packages(rules).unwrap(), "x86_64", &[], "").unwrap_err()
    };
    assert!(matches!(plan("leave_out = [\"nope\"]", DATABASE), PlanError::NoSuchPackage(_)));
    let gone =
        "leave_out = [\"base\"]\n[[packages.restore]]\npath = \"etc/passwd\"\ncontent = \"\"\n";
    assert!(matches!(plan(gone, DATABASE), PlanError::NoSuchFile(_)));
    let foreign = DATABASE.replace("a:0:0:640", "a:100:101:640");
    let refused = plan("", &foreign);
    assert!(matches!(refused, PlanError::Owner { owner: (100, 101), .. }), "{refused}");
}

#[test]
fn file_is_restored_by_dropping_lines_and_replacing_text() {
    let edit = FileEdit::Edit {
        drop_lines: vec!["maker:".into()],
        replace: vec![("lxc".into(), String::new())],
    };
    assert_eq!(
        restore_text(&edit, "root:x\nmaker:y\nsys=\"lxc\"\n").unwrap(),
        "root:x\nsys=\"\"\n"
    );
    assert_eq!(restore_text(&FileEdit::Content("a".into()), "b").unwrap(), "a");
}

#[test]
fn patch_text_must_occur_exactly_once() {
    let patch = |find: &str| [Patch { find: find.into(), replace: "new".into() }];
    assert_eq!(apply_patches("one two".into(), &patch("one")).unwrap(), "new two");
    assert_eq!(apply_patches("one one".into(), &patch("one")), Err((2, "one".into())));
    assert_eq!(apply_patches("two".into(), &patch("one")), Err((0, "one".into())));
}
