//! The workspace as Cargo sees it: a crate depends only on crates that are listed above it, and a
//! package is used where it belongs.

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand, Package};
use std::collections::BTreeSet;

/// Packages with one home: the crates that may depend on them.
const HOMES: [(&str, &[&str]); 13] = [
    ("age", &["meshd-backup"]),
    ("axum", &["meshd", "meshd-serve", "meshd-ui"]),
    ("clap", &["meshd", "meshd-agent"]),
    ("dhcproto", &["meshd-agent", "meshd-dhcp", "meshd-stage1"]),
    ("flate2", &["meshd-builder", "meshd-image", "meshd-stage1"]),
    ("keyutils", &["meshd-agent"]),
    ("maud", &["meshd-ui"]),
    ("minijinja", &["meshd-image"]),
    ("rangemap", &["meshd-store"]),
    ("rcgen", &["meshd-agent", "meshd-trust"]),
    ("tar", &["meshd-builder", "meshd-image", "meshd-stage1"]),
    ("toml_edit", &["meshd", "meshd-backup", "meshd-config", "meshd-lab"]),
    ("vfio-ioctls", &["meshd-agent"]),
];
/// Crates without I/O, and packages that none of them may depend on.
const PURE: [&str; 4] = ["meshd-types", "meshd-proto", "meshd-model", "meshd-dhcp"];
const IMPURE: [&str; 7] =
    ["getrandom", "hyper", "nix", "socket2", "tokio", "tokio-rustls", "tracing-subscriber"];
/// Programs of nodes travel in every overlay and know nothing of the central node.
const AGENT: [&str; 4] = ["meshd-types", "meshd-proto", "meshd-client", "meshd-kexec"];
const STAGE1: [&str; 2] = ["meshd-types", "meshd-proto"];

fn metadata() -> Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    let options = ["--offline".to_owned(), "--locked".to_owned()];
    MetadataCommand::new().manifest_path(manifest).no_deps().other_options(options).exec().unwrap()
}

/// Members in the order of Cargo.toml, the program last.
fn members(metadata: &Metadata) -> Vec<&Package> {
    let manifest = include_str!("../../../Cargo.toml");
    let place = |package: &Package| {
        let folder =
            package.manifest_path.strip_prefix(&metadata.workspace_root).unwrap().parent().unwrap();
        manifest.find(&format!("\"{folder}\", #")).unwrap_or(usize::MAX)
    };
    let mut members = metadata.workspace_packages();
    members.sort_by_key(|package| place(package));
    assert_eq!(members.last().unwrap().name.as_str(), "meshd", "the program depends on all others");
    members
}

fn normal(package: &Package) -> impl Iterator<Item = &str> {
    package
        .dependencies
        .iter()
        .filter(|it| it.kind == DependencyKind::Normal)
        .map(|it| it.name.as_str())
}

#[test]
fn crate_depends_only_on_crates_above_it() {
    let metadata = metadata();
    let mut above = BTreeSet::new();
    let mut faults = Vec::new();
    for package in members(&metadata) {
        for dependency in normal(package).filter(|name| name.starts_with("meshd")) {
            let is_permitted = match package.name.as_str() {
                "meshd-agent" => AGENT.contains(&dependency),
                "meshd-stage1" => STAGE1.contains(&dependency),
                _ => true,
            };
            if !above.contains(dependency) || !is_permitted {
                faults.push(format!("{} depends on {dependency}", package.name));
            }
        }
        above.insert(package.name.as_str());
    }
    assert!(above.len() > 8 && faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn package_is_used_only_in_its_home() {
    let metadata = metadata();
    let mut faults = Vec::new();
    for package in members(&metadata) {
        for dependency in normal(package) {
            let away = HOMES.iter().any(|(name, homes)| {
                *name == dependency && !homes.contains(&package.name.as_str())
            });
            let impure = PURE.contains(&package.name.as_str()) && IMPURE.contains(&dependency);
            if away || impure {
                faults.push(format!("{} depends on {dependency}", package.name));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn programs_of_nodes_are_built_without_schemas() {
    let metadata = metadata();
    let is_on_nodes =
        |name: &str| AGENT.contains(&name) || ["meshd-agent", "meshd-stage1"].contains(&name);
    let mut optional = 0;
    for package in members(&metadata).into_iter().filter(|package| is_on_nodes(&package.name)) {
        for dependency in &package.dependencies {
            let is_utoipa = dependency.name == "utoipa";
            let has_schemas = is_utoipa && !dependency.optional
                || dependency.features.iter().any(|it| it == "schema");
            assert!(!has_schemas, "{} needs schemas of {}", package.name, dependency.name);
            optional += usize::from(is_utoipa);
        }
    }
    assert_eq!(optional, 2, "meshd-types and meshd-proto have the feature `schema`");
}
