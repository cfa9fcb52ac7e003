//! The parts of an image: recipe, kernel, initramfs and package repository.
//!
//! | module | what it holds |
//! | --- | --- |
//! | `recipe` | `image.toml`: the recipe of an image that is built |
//! | `recipe_head` | what every recipe of an image or bundle has in common |
//! | `fetch` | fetches userland and kernel from the cache, or with pip and apt |
//! | `installed` | apk's installed database: the files of each package |
//! | `plan` | the content of each package of the repository |
//! | `modules` | selects kernel modules and their dependencies |
//! | `keys` | the site's signing key for package repositories |
//! | `kernel` | unpacks the kernel package and prunes its modules |
//! | `initramfs` | the initramfs |
//! | `modloop` | the modloop |
//! | `repo` | creates and signs the package repository |
//! | `cpio` | packs files as a reproducible compressed cpio |
//! | `contents` | services and kernel modules of an image, which overlays may require |

pub(crate) mod contents;
pub(crate) mod fetch;
pub(crate) mod cpio;
pub mod installed;
pub(crate) mod initramfs;
pub(crate) mod kernel;
pub(crate) mod keys;
pub(crate) mod modloop;
pub(crate) mod modules;
pub mod plan;
pub mod recipe;
pub(crate) mod recipe_head;
pub(crate) mod repo;
#[cfg(test)]
pub(crate) mod tests;
