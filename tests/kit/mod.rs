//! What several test programs use.

pub mod browser;
pub mod redfish;
pub mod registry;
pub mod web_image;

use std::{env, path::PathBuf};

/// The Python environment that `make setup` makes in the user's cache.
pub fn python_tools() -> PathBuf {
    let cache = env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(env::var_os("HOME").unwrap()).join(".cache"));
    cache.join("meshd/python")
}
