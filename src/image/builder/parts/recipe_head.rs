//! What every recipe of an image or bundle has in common.

use meshd_config::reader::Table;
use meshd_model::image_kind::{ImageKindName, KIND_KEY};
use meshd_types::Architecture;

/// File name of an image's recipe.
pub const RECIPE_FILE: &str = "image.toml";

/// Reads the required key `arch`.
pub(crate) fn architecture(root: &Table<'_>) -> Option<Architecture> {
    let hint = format!("arch = \"{}\"", Architecture::X86_64);
    Some(root.required("arch", root.parsed("arch"), hint)?.value)
}

/// Reads the kind of the image; a recipe without the key is of the default kind. `None` for an
/// unknown kind.
pub(crate) fn kind(root: &Table<'_>) -> Option<ImageKindName> {
    let kind = root.choice(KIND_KEY, &ImageKindName::WORDS).map(|kind| kind.value);
    if root.has(KIND_KEY) { kind } else { Some(ImageKindName::default()) }
}

/// Reads a required section.
pub(crate) fn section<T>(
    root: &Table<'_>,
    key: &str,
    read: impl FnOnce(&Table<'_>) -> Option<T>,
) -> Option<T> {
    let table = root.table(key);
    read(&root.required(key, table, format!("add the section [{key}]"))?)
}
