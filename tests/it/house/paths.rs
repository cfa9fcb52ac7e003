//! Imports as the compiler reads them: paths between folders of a crate, and what pure code names.

use super::{code, is_tests, sources};
use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};
use syn::{ItemMod, ItemUse, UseTree, visit::Visit};

/// Code that takes time, randomness and I/O as arguments: crates, folders and files.
const PURE: [&str; 34] = [
    "src/agent/container/bundle",
    "src/agent/container/replica_machine.rs",
    "src/types",
    "src/proto",
    "src/model",
    "src/image/overlay/context.rs",
    "src/image/overlay/merge.rs",
    "src/image/overlay/plan.rs",
    "src/image/overlay/rendered.rs",
    "src/image/overlay/secret.rs",
    "src/image/overlay/values.rs",
    "src/trust/overlay_capability.rs",
    "src/agent/link_state",
    "src/dhcp",
    "src/tftp",
    "src/agent/vm/spec",
    "src/agent/vm/process/vm_state_machine.rs",
    "src/agent/vm/net/nic_addresses.rs",
    "src/agent/vm/process/qmp_message.rs",
    "src/agent/vm/disks/cloud_init_seed.rs",
    "src/stage1/alpine/boot_urls.rs",
    "src/stage1/alpine/config.rs",
    "src/stage1/alpine/installed.rs",
    "src/stage1/boot/command_line.rs",
    "src/stage1/config.rs",
    "src/stage1/fetch/response.rs",
    "src/stage1/fetch/retry.rs",
    "src/stage1/fetch/transfer.rs",
    "src/stage1/modules/index.rs",
    "src/stage1/modules/pattern.rs",
    "src/stage1/network/dhcp_client.rs",
    "src/stage1/network/netconsole.rs",
    "src/stage1/network/options.rs",
    "src/stage1/overlay/member.rs",
];
/// Failpoints read the environment. Fuzz checks start at the current time. Drivers own sockets and
/// threads.
const NOT_PURE: [&str; 3] =
    ["src/types/failpoint.rs", "src/tftp/fuzz_invariants.rs", "src/tftp/driver"];
/// Paths that pure code does not name.
const IMPURE: [&str; 10] = [
    "getrandom",
    "std::fs",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::os::unix::net",
    "std::process",
    "std::thread",
    "rustix",
    "tokio",
];
/// The same, whatever stands before: a time is an argument, and only the clock is not.
const CLOCKS: [&str; 2] = ["Instant::now", "SystemTime::now"];
/// Parts of the program that do not know each other.
const SERVERS: [&str; 5] = ["dhcp", "tftp", "http", "agent", "admin"];

/// Paths that a file names outside of its tests.
#[derive(Default)]
pub(super) struct Named {
    pub(super) paths: BTreeSet<Vec<String>>,
    /// The path of each imported name.
    pub(super) imports: BTreeMap<String, Vec<String>>,
}

impl<'ast> Visit<'ast> for Named {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        let is_test = item.attrs.iter().any(|attribute| {
            attribute.path().is_ident("cfg")
                && attribute.parse_args::<syn::Ident>().is_ok_and(|word| word == "test")
        });
        if !is_test {
            syn::visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.flatten(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> =
            path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        if words.len() > 1 {
            self.paths.insert(words);
        }
        syn::visit::visit_path(self, path);
    }
}

impl Named {
    pub(super) fn of(text: &str) -> Self {
        let mut named = Named::default();
        named.visit_file(&syn::parse_file(text).unwrap());
        named
    }

    fn flatten(&mut self, tree: &UseTree, before: &mut Vec<String>) {
        match tree {
            UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.flatten(&path.tree, before);
                before.pop();
            }
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.flatten(tree, before)),
            UseTree::Name(name) => {
                self.import(name.ident.to_string(), &name.ident.to_string(), before)
            }
            UseTree::Rename(name) => {
                self.import(name.rename.to_string(), &name.ident.to_string(), before)
            }
            UseTree::Glob(_) => drop(self.paths.insert(before.clone())),
        }
    }

    fn import(&mut self, name: String, word: &str, before: &[String]) {
        // `use a::{self}` imports `a`.
        let (path, name) = match before.last() {
            Some(module) if word == "self" => {
                (before.to_vec(), if name == "self" { module.clone() } else { name })
            }
            _ => ([before, &[word.to_owned()]].concat(), name),
        };
        self.paths.insert(path.clone());
        self.imports.insert(name, path);
    }
}

pub(super) fn released() -> impl Iterator<Item = (PathBuf, String)> {
    sources().into_iter().filter(|(path, _)| !is_tests(path))
}

#[test]
fn pure_code_uses_no_clock_file_or_socket() {
    for path in PURE.iter().chain(&NOT_PURE) {
        assert!(Path::new(path).exists(), "{path} is missing: name what stands in its place");
    }
    let mut faults = Vec::new();
    for (path, text) in released() {
        let is_pure = PURE.iter().any(|pure| path.starts_with(pure));
        if !is_pure || NOT_PURE.iter().any(|other| path.starts_with(other)) {
            continue;
        }
        for named in Named::of(&text).paths {
            let named = named.join("::");
            let is_clock = CLOCKS.iter().any(|clock| named.ends_with(clock));
            if is_clock
                || IMPURE
                    .iter()
                    .any(|impure| named == *impure || named.starts_with(&format!("{impure}::")))
            {
                faults.push(format!("{} names {named}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn server_folders_do_not_import_each_other() {
    let mut faults = Vec::new();
    for (path, text) in released() {
        let Ok(inside) = path.strip_prefix("src/serve") else { continue };
        let own = inside.components().next().unwrap().as_os_str().to_string_lossy().into_owned();
        for named in Named::of(&text).paths {
            let [first, server, ..] = &named[..] else { continue };
            let is_other = SERVERS.contains(&server.as_str()) && *server != own && own != "lib.rs";
            if first == "crate" && is_other {
                faults.push(format!("{} names {}", path.display(), named.join("::")));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Crates by folder: where the paths of a file begin.
fn root_of(path: &Path) -> PathBuf {
    let first: PathBuf = path.components().take(2).collect();
    if first.join("Cargo.toml").exists() { first } else { PathBuf::from("src") }
}

/// True for a file whose module is its folder.
pub(super) fn is_root(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == "mod.rs" || name == "lib.rs")
}

/// The innermost module that a path of a file leads through, and the words after it; `None` outside
/// of its crate.
pub(super) fn module<'n>(path: &Path, named: &'n [String]) -> Option<(PathBuf, &'n [String])> {
    let root = root_of(path);
    // The module of a file `a/b.rs` is `a/b`; that of `a/mod.rs` and `a/lib.rs` is `a`.
    let own = if is_root(path) { path.parent()?.to_owned() } else { path.with_extension("") };
    let (mut at, mut rest) = match named.first()?.as_str() {
        "crate" => (root.clone(), &named[1..]),
        "self" => (own, &named[1..]),
        "super" => {
            let ups = named.iter().take_while(|word| *word == "super").count();
            (own.ancestors().nth(ups)?.to_owned(), &named[ups..])
        }
        _ => return None,
    };
    while let Some((word, after)) = rest.split_first() {
        let next = at.join(word);
        if !next.is_dir() && !next.with_extension("rs").is_file() {
            break;
        }
        (at, rest) = (next, after);
    }
    at.starts_with(&root).then_some((at, rest))
}

/// The folder that a path of a file leads to; `None` outside of its crate.
fn target(path: &Path, named: &[String]) -> Option<PathBuf> {
    let root = root_of(path);
    let (at, _) = module(path, named)?;
    let folder = if at.is_dir() { at } else { at.parent()?.to_owned() };
    folder.starts_with(&root).then_some(folder)
}

/// Imports: which files or folders name which.
pub(super) type Edges = BTreeMap<PathBuf, BTreeSet<PathBuf>>;

/// All nodes that a path of imports leads to.
fn reach<'a>(edges: &'a Edges, from: &PathBuf) -> BTreeSet<&'a PathBuf> {
    let mut found = BTreeSet::new();
    let mut next = edges.get(from).into_iter().flatten().collect::<Vec<_>>();
    while let Some(node) = next.pop() {
        if found.insert(node) {
            next.extend(edges.get(node).into_iter().flatten());
        }
    }
    found
}

/// Files or folders that name each other, directly or by way of others; one line for each such set.
pub(super) fn cycles(edges: &Edges) -> BTreeSet<String> {
    let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
        edges.keys().map(|from| (from, reach(edges, from))).collect();
    let leads =
        |from: &PathBuf, to: &PathBuf| reached.get(from).is_some_and(|all| all.contains(to));
    let both = |from: &PathBuf| -> Vec<String> {
        let all = edges.keys().filter(|to| leads(from, to) && leads(to, from));
        all.map(|node| node.display().to_string()).collect()
    };
    edges.keys().map(both).filter(|set| set.len() > 1).map(|set| set.join(" ")).collect()
}

/// A folder and those inside of it are one idea: parts of it may name the whole.
fn folder_edges() -> Edges {
    let mut edges = Edges::new();
    for (path, text) in released() {
        let from = path.parent().unwrap().to_owned();
        for to in Named::of(&text).paths.iter().filter_map(|named| target(&path, named)) {
            if !to.starts_with(&from) && !from.starts_with(&to) {
                edges.entry(from.clone()).or_default().insert(to);
            }
        }
    }
    edges
}

#[test]
fn folders_have_no_import_cycle() {
    let found = cycles(&folder_edges());
    assert!(found.is_empty(), "{found:#?}");
}

#[test]
fn server_reads_and_changes_records_through_services() {
    let servers =
        sources().into_iter().filter(|(path, _)| path.starts_with("src/serve") && !is_tests(path));
    let direct = servers.filter(|(_, text)| code(text).any(|line| line.contains(".store()")));
    let faults: Vec<String> =
        direct.map(|(path, _)| format!("{} uses the store", path.display())).collect();
    assert!(faults.is_empty(), "use a method of a service of src/central:\n{}", faults.join("\n"));
}
