//! Imports a folder without a recipe: architecture from the kernel, trusted keys from `keys/`,
//! packages from the index.

use super::{
    check,
    error::ImportError,
    recipe::{ImportRecipe, Mirror, Netboot},
    source::{MAX_PART, read_inside},
};
use crate::error::{BuildError, io_error};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Maximum size of a public key, in bytes.
const MAX_KEY: u64 = 64 << 10;

/// Derives recipe and keys from a folder without a recipe. An empty list of packages means all
/// packages.
pub(super) fn recipe(folder: &Path) -> Result<(ImportRecipe, Vec<PathBuf>), BuildError> {
    let names = |folder: &Path| -> Result<Vec<PathBuf>, BuildError> {
        let entries = fs::read_dir(folder).map_err(io_error("read", folder))?;
        let mut paths: Vec<PathBuf> =
            entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        paths.sort();
        Ok(paths)
    };
    let named = |path: &PathBuf| Some(path.file_name()?.to_str()?.to_owned());
    let kernel = names(folder)?.into_iter().find(|path| {
        named(path).is_some_and(|name| name == "vmlinuz" || name.starts_with("vmlinuz-"))
    });
    let hint = "a folder holds vmlinuz-lts, initramfs-lts, modloop-lts, packages/ and keys/";
    let absent =
        |what: &str| ImportError::NoFile { folder: folder.to_owned(), what: what.to_owned(), hint };
    let kernel = kernel.ok_or_else(|| absent("vmlinuz-lts"))?;
    let bytes = read_inside(folder, &kernel, MAX_PART)?;
    let facts =
        check::kernel(&bytes).map_err(|why| ImportError::Kernel { file: kernel.clone(), why })?;
    let name = named(&kernel).unwrap_or_default();
    let flavor = name.strip_prefix("vmlinuz-").unwrap_or("lts").to_owned();
    let keys = if folder.join("keys").is_dir() { names(&folder.join("keys"))? } else { Vec::new() };
    for key in &keys {
        read_inside(folder, key, MAX_KEY)?;
    }
    if keys.is_empty() {
        return Err(absent("public key of the packages under keys/").into());
    }
    let url = folder.display().to_string();
    let branch = String::new();
    Ok((
        ImportRecipe {
            arch: facts.arch,
            description: format!("imported from {}", folder.display()),
            mirror: Mirror { url, branch, repositories: vec![String::new()], keys: Vec::new() },
            netboot: Netboot { version: facts.release, flavor, sha256: None },
            install: Vec::new(),
        },
        keys,
    ))
}
