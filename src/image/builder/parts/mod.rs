//! The parts of an image: recipe, kernel, initramfs and package repository.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `recipe` | `image.toml`: the recipe of an image that is built |
//! | `fetch` | fetches userland and kernel from the cache, or with pip and apt |
//! | `installed` | apk's installed database: the files of each package |
//! | `plan` | the content of each package of the repository |
//! | `modules` | selects kernel modules and their dependencies |
//! | `kernel` | kernel, initramfs and modloop |
//! | `repo` | creates and signs the package repository |
//! | `initrd` | packs files as a reproducible compressed cpio |
//! | `contents` | services and kernel modules of an image, which overlays may require |

pub(crate) mod contents;
pub(crate) mod fetch;
pub(crate) mod initrd;
pub mod installed;
pub(crate) mod kernel;
pub(crate) mod modules;
pub mod plan;
pub mod recipe;
pub(crate) mod repo;
#[cfg(test)]
mod tests;
