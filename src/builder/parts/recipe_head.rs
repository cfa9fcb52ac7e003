//! What every recipe of an image or bundle has in common.

use meshd_config::reader::{self, Table};
use meshd_model::image_kind::{ImageKindName, KIND_KEY};
use meshd_types::Architecture;
use std::path::Path;

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

/// Reads the kind of an image whose recipe has the keys of the Alpine kind.
pub(crate) fn require_alpine(root: &Table<'_>) {
    if kind(root) == Some(ImageKindName::Root) {
        root.fault(
            KIND_KEY,
            "is `root`, and Alpine's files are imported",
            "remove the section [mirror]",
        );
    }
}

/// Reads the kind of the image in a folder. The default kind for a recipe that cannot be read:
/// loading reports why.
pub(crate) fn kind_of(recipe_dir: &Path) -> ImageKindName {
    let file = recipe_dir.join(RECIPE_FILE);
    let Ok(text) = reader::read_text(&file, "") else { return ImageKindName::default() };
    let Ok(document) = reader::parse(&text, &file) else { return ImageKindName::default() };
    kind(&document.root()).unwrap_or_default()
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
