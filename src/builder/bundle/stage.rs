//! Lays out a bundle: programs, wrappers, libraries and files.

use super::{
    BundleFault,
    recipe::{BundleRecipe, Program},
};
use crate::{
    error::{BuildError, io_error},
    parts::cpio::set_mode,
};
use meshd_types::BundleName;
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Mount point of bundles on a node.
pub(super) const MOUNTS: &str = "/opt/bundles";
/// First bytes of an ELF file.
const ELF: &[u8] = b"\x7fELF";

/// Copies programs and files from the tree; returns the ELF files, whose libraries are needed.
pub(super) fn programs_and_files(
    recipe: &BundleRecipe,
    tree: &Path,
    stage: &Path,
) -> Result<Vec<PathBuf>, BuildError> {
    let mut elf_files = Vec::new();
    for program in &recipe.programs {
        let to = stage.join("libexec").join(program.name());
        copy(tree, program.path.relative(), &to, &mut elf_files)?;
        set_mode(&to, 0o755)?;
    }
    for file in &recipe.files {
        copy(tree, file.from.relative(), &stage.join(file.to.relative()), &mut elf_files)?;
    }
    Ok(elf_files)
}

fn copy(
    tree: &Path,
    from: &str,
    to: &Path,
    elf_files: &mut Vec<PathBuf>,
) -> Result<(), BuildError> {
    let no_file = || BundleFault::NoFile(format!("/{from}"));
    // Only files of packages are copied: a link may lead out of the tree to a file of this host.
    let source = tree.join(from).canonicalize().map_err(|_| no_file())?;
    if !source.starts_with(tree) {
        return Err(no_file().into());
    }
    if source.is_dir() {
        // A link to one of its parent folders would cause an endless copy.
        let inside = |folder: &Path| folder.canonicalize().is_ok_and(|folder| folder == source);
        if tree
            .join(from)
            .ancestors()
            .skip(1)
            .take_while(|folder| folder.starts_with(tree))
            .any(inside)
        {
            return Ok(());
        }
        fs::create_dir_all(to).map_err(io_error("make the folder", to))?;
        for entry in fs::read_dir(&source).map_err(io_error("read", &source))? {
            let name = entry.map_err(io_error("read", &source))?.file_name();
            let name = name.to_string_lossy();
            copy(tree, &format!("{from}/{name}"), &to.join(&*name), elf_files)?;
        }
        return Ok(());
    }
    let folder = to.parent().expect("a file lies in a folder");
    fs::create_dir_all(folder).map_err(io_error("make the folder", folder))?;
    fs::copy(&source, to).map_err(io_error("copy to", to))?;
    if fs::read(to).is_ok_and(|bytes| bytes.starts_with(ELF)) {
        elf_files.push(to.to_owned());
    }
    Ok(())
}

/// Copies the libraries and the loader.
pub(super) fn libraries(
    found: &BTreeMap<String, PathBuf>,
    loader: (&str, &Path),
    stage: &Path,
) -> Result<(), BuildError> {
    let lib = stage.join("lib");
    fs::create_dir_all(&lib).map_err(io_error("make the folder", &lib))?;
    let loader = (loader.0.to_owned(), loader.1.to_owned());
    for (name, from) in found.clone().into_iter().chain([loader]) {
        let to = lib.join(name);
        fs::copy(&from, &to).map_err(io_error("copy to", &to))?;
        set_mode(&to, 0o755)?;
    }
    Ok(())
}

/// Writes the starters: `bin/<program>`, and `bin/<bundle>-run` for foreign programs.
pub(super) fn starters(
    name: &BundleName,
    recipe: &BundleRecipe,
    loader: &str,
    stage: &Path,
) -> Result<Vec<String>, BuildError> {
    let bin = stage.join("bin");
    fs::create_dir_all(&bin).map_err(io_error("make the folder", &bin))?;
    let mut names = Vec::new();
    for program in &recipe.programs {
        let text = starter(name, recipe, loader, Some(program));
        names.push(write(&bin, program.name(), &text)?);
    }
    let text = starter(name, recipe, loader, None);
    names.push(write(&bin, &format!("{name}-run"), &text)?);
    Ok(names)
}

fn write(bin: &Path, name: &str, text: &str) -> Result<String, BuildError> {
    let path = bin.join(name);
    fs::write(&path, text).map_err(io_error("write", &path))?;
    set_mode(&path, 0o755)?;
    Ok(name.to_owned())
}

/// Returns one starter script. It runs the bundle's loader, because the loader path in the program
/// does not exist on musl nodes.
fn starter(
    name: &BundleName,
    recipe: &BundleRecipe,
    loader: &str,
    program: Option<&Program>,
) -> String {
    let root = format!("{MOUNTS}/{name}");
    let within = |text: &str| match text.strip_prefix("@/") {
        Some(rest) => format!("'{root}/{rest}'"),
        None => format!("'{text}'"),
    };
    let exports =
        recipe.environment.iter().map(|(key, value)| format!("export {key}={}\n", within(value)));
    let exports: String = exports.collect();
    let start = format!("exec {root}/lib/{loader} --library-path {root}/lib");
    match program {
        Some(program) => {
            let arguments: String =
                program.arguments.iter().map(|argument| format!("{} ", within(argument))).collect();
            format!(
                "#!/bin/sh\n{exports}{start} --argv0 \"$0\" {root}/libexec/{} {arguments}\"$@\"\n",
                program.name()
            )
        }
        None => format!(
            "#!/bin/sh\n# {name}-run PROGRAM ARGUMENTS: a program that was built for these libraries.\n{exports}{start} \"$@\"\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bundle::recipe::parse;

    #[test]
    fn starter_script_uses_loader_libraries_and_files_of_its_bundle() {
        let text = "arch = \"x86_64\"\ndescription = \"d\"\npackages = [\"qemu\"]\n[[programs]]\npath = \"usr/bin/qemu\"\n\
                    arguments = [\"-L\", \"@/share/qemu\"]\n[environment]\nQEMU_MODULE_DIR = \"@/lib/qemu\"\n";
        let recipe = parse(text, Path::new("bundle.toml")).unwrap();
        let script = starter(&"qemu".parse().unwrap(), &recipe, "ld.so", Some(&recipe.programs[0]));
        assert_eq!(
            script,
            "#!/bin/sh\nexport QEMU_MODULE_DIR='/opt/bundles/qemu/lib/qemu'\n\
             exec /opt/bundles/qemu/lib/ld.so --library-path /opt/bundles/qemu/lib --argv0 \"$0\" \
             /opt/bundles/qemu/libexec/qemu '-L' '/opt/bundles/qemu/share/qemu' \"$@\"\n"
        );
    }

    #[test]
    fn symlink_to_enclosing_folder_is_left_out() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().canonicalize().unwrap().join("tree");
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        for (name, target) in [("up", ".."), ("here", "."), ("beside", "../b")] {
            std::os::unix::fs::symlink(target, tree.join("a/b").join(name)).unwrap();
        }
        let out = dir.path().join("out");
        copy(&tree, "a", &out, &mut Vec::new()).unwrap();
        assert_eq!(fs::read_to_string(out.join("b/file")).unwrap(), "x");
        assert_eq!(fs::read_dir(out.join("b")).unwrap().count(), 1);
    }

    #[test]
    fn symlink_out_of_the_packages_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().canonicalize().unwrap().join("tree");
        fs::create_dir(&tree).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", tree.join("data")).unwrap();
        let error =
            copy(&tree, "data", &dir.path().join("out"), &mut Vec::new()).unwrap_err().to_string();
        assert!(error.contains("/data") && !dir.path().join("out").exists(), "{error}");
    }
}
