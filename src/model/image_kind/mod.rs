//! Kinds of images: the parts of an image, who loads each part, and the kernel arguments that the
//! kind needs.
//!
//! | module | content |
//! | --- | --- |
//! | `alpine` | Alpine's initramfs, a package repository and a modloop |
//! | `nic_drivers` | the NICs that an initramfs drives |
//! | `part` | one part of an image, by digest |
//! | `root` | any Linux as one squashfs with dm-verity, which stage 1 fetches |
//! | `system` | what the overlays of a node configure: Alpine with OpenRC, or systemd |
//!
//! A further kind is one file beside `alpine` and one variant of [`ImageKind`] and
//! [`ImageKindName`]; the compiler then names each place that decides by kind.
//! docs/adr/0043-boot-plan-loader-image-kind.md lists them.

mod alpine;
mod nic_drivers;
mod part;
mod root;
mod system;

pub use alpine::AlpineParts;
pub use nic_drivers::{NicDrivers, PciId};
pub use part::{Blob, ImagePart, PartUse};
pub use root::{DEFAULT_WRITABLE, RootParts};
pub use system::System;

use crate::fleet::Stage;
use meshd_types::MacAddr;
use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::{Map, Value};

/// Where the initramfs of each kind has an overlay that the loader fetched as an initrd.
pub const OVERLAY_PATH: &str = "/apkovl.tar.gz";

/// Names of the parts of all kinds, in URLs and in names of TFTP.
pub const PART_NAMES: [&str; 6] = ["kernel", "initramfs", "packages", "modloop", "modules", "root"];

/// Key of a manifest's parts and of `image.toml` that names the kind.
pub const KIND_KEY: &str = "kind";

/// The kind of an image, as `image.toml` and manifests name it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
pub enum ImageKindName {
    #[default]
    Alpine,
    Root,
}

impl ImageKindName {
    /// Each kind with its word.
    pub const WORDS: [(&str, ImageKindName); 2] =
        [("alpine", ImageKindName::Alpine), ("root", ImageKindName::Root)];

    /// Returns the name of the first program of a node, which checks its boot.
    pub fn first_program(self) -> &'static str {
        match self {
            ImageKindName::Alpine => "mesh-init",
            ImageKindName::Root => "stage1",
        }
    }

    /// Returns the stages that no boot of this kind reaches.
    pub fn skipped_stages(self) -> &'static [Stage] {
        match self {
            ImageKindName::Alpine => &[Stage::Root],
            ImageKindName::Root => &[Stage::Packages, Stage::Modloop],
        }
    }

    /// Returns the names of the parts that the running node fetches, which templates of overlays
    /// use as `image.NAME`.
    pub fn fetched_parts(self) -> &'static [&'static str] {
        match self {
            ImageKindName::Alpine => &alpine::FETCHED_PARTS,
            ImageKindName::Root => &root::FETCHED_PARTS,
        }
    }
}

/// The kind of an image with its parts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ImageKind {
    Alpine(AlpineParts),
    Root(RootParts),
}

/// Values of one boot from which a kind forms its kernel arguments.
pub struct KernelArgInputs<'a> {
    /// The NIC that the machine boots from.
    pub nic: MacAddr,
    /// Returns the URL of a part for the running node.
    pub url: &'a dyn Fn(&ImagePart) -> String,
}

impl ImageKind {
    pub fn name(&self) -> ImageKindName {
        match self {
            ImageKind::Alpine(_) => ImageKindName::Alpine,
            ImageKind::Root(_) => ImageKindName::Root,
        }
    }

    /// Returns the system that nodes of the image run.
    pub fn system(&self) -> System {
        match self {
            ImageKind::Alpine(_) => System::Alpine,
            ImageKind::Root(parts) => parts.system,
        }
    }

    /// Returns all parts in boot order. Each kind begins with a kernel.
    pub fn parts(&self) -> Vec<ImagePart> {
        match self {
            ImageKind::Alpine(parts) => parts.parts().into(),
            ImageKind::Root(parts) => parts.parts().into(),
        }
    }

    /// Returns a part by its name.
    pub fn part(&self, name: &str) -> Option<Blob> {
        self.parts().into_iter().find(|part| part.name == name).map(|part| part.blob)
    }

    /// Returns the kernel arguments of the kind, without that of the overlay.
    pub fn kernel_args(&self, inputs: &KernelArgInputs<'_>) -> Vec<String> {
        match self {
            ImageKind::Alpine(parts) => parts.kernel_args(inputs),
            ImageKind::Root(_) => root::kernel_args(),
        }
    }

    /// Returns the kernel argument that names the overlay: a path of the initramfs or a URL. `None`
    /// for a kind whose first program knows the path.
    pub fn overlay_arg(&self, location: &str) -> Option<String> {
        match self {
            ImageKind::Alpine(_) => Some(alpine::overlay_arg(location)),
            ImageKind::Root(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for ImageKind {
    /// A manifest without a kind is of the default kind.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut parts = Map::deserialize(deserializer)?;
        let kind = parts
            .remove(KIND_KEY)
            .map(serde_json::from_value)
            .transpose()
            .map_err(D::Error::custom)?;
        let parts = Value::Object(parts);
        match kind.unwrap_or_default() {
            ImageKindName::Alpine => {
                serde_json::from_value(parts).map(ImageKind::Alpine).map_err(D::Error::custom)
            }
            ImageKindName::Root => {
                serde_json::from_value(parts).map(ImageKind::Root).map_err(D::Error::custom)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use meshd_proto::stage1::VeritySpec;
    use meshd_types::Digest;

    fn alpine() -> ImageKind {
        let [kernel, initramfs, packages, modloop] =
            [1, 2, 3, 4].map(|byte| Blob { digest: Digest([byte; 32]), size: 4 });
        ImageKind::Alpine(AlpineParts { kernel, initramfs, packages, modloop })
    }

    fn root() -> ImageKind {
        let [kernel, modules, root] =
            [1, 2, 3].map(|byte| Blob { digest: Digest([byte; 32]), size: 8192 });
        let verity = VeritySpec {
            root_hash: Digest([4; 32]),
            salt: "05".repeat(32),
            hash_offset: 4096,
            block_size: 4096,
            data_blocks: 1,
        };
        let sources = [("tar".to_owned(), Digest([6; 32]))].into();
        let nic_drivers = serde_json::from_str(r#"["1af4:*","8086:100e"]"#).unwrap();
        let system = System::Alpine;
        ImageKind::Root(RootParts { kernel, modules, root, verity, system, sources, nic_drivers })
    }

    #[test]
    fn every_kind_has_a_word() {
        let words = ImageKindName::WORDS.map(|(_, name)| name);
        assert_eq!(words.as_slice(), <ImageKindName as strum::VariantArray>::VARIANTS);
    }

    /// Every kind. The compiler refuses a match that lacks one.
    fn every_kind() -> Vec<ImageKind> {
        let kind = |name| match name {
            ImageKindName::Alpine => alpine(),
            ImageKindName::Root => root(),
        };
        ImageKindName::WORDS.map(|(_, name)| kind(name)).into()
    }

    #[test]
    fn kind_round_trips_and_defaults_to_alpine() {
        for kind in every_kind() {
            let text = serde_json::to_string(&kind).unwrap();
            assert_eq!(serde_json::from_str::<ImageKind>(&text).unwrap(), kind, "{text}");
        }
        let mut parts = serde_json::to_value(alpine()).unwrap();
        assert_eq!(parts.as_object_mut().unwrap().remove(KIND_KEY), Some("alpine".into()));
        assert_eq!(serde_json::from_value::<ImageKind>(parts).unwrap(), alpine());
    }

    #[test]
    fn unknown_kind_or_foreign_part_is_refused() {
        let with = |key: &str, value: Value| {
            let mut parts = serde_json::to_value(alpine()).unwrap();
            parts.as_object_mut().unwrap().insert(key.to_owned(), value);
            serde_json::from_value::<ImageKind>(parts).unwrap_err().to_string()
        };
        assert!(with(KIND_KEY, "vax".into()).contains("vax"));
        assert!(with("root", 1.into()).contains("root"));
    }

    #[test]
    fn parts_begin_with_the_kernel_and_have_one_name_each() {
        for kind in every_kind() {
            let parts = kind.parts();
            let skipped = kind.name().skipped_stages();
            assert!(parts.iter().all(|part| !skipped.contains(&part.stage)), "{parts:?}");
            let kernels = parts.iter().filter(|part| part.usage == PartUse::Kernel).count();
            assert_eq!((parts[0].usage, kernels), (PartUse::Kernel, 1));
            let fetched =
                parts.iter().filter(|part| part.usage == PartUse::Fetched).map(|part| part.name);
            assert_eq!(fetched.collect::<Vec<_>>(), kind.name().fetched_parts());
            for part in &parts {
                assert!(PART_NAMES.contains(&part.name), "{}", part.name);
                assert_eq!(
                    parts.iter().filter(|other| other.name == part.name).count(),
                    1,
                    "{}",
                    part.name
                );
            }
        }
    }

    #[test]
    fn site_file_cannot_set_a_kernel_argument_of_any_kind() {
        for kind in every_kind() {
            let inputs = KernelArgInputs {
                nic: MacAddr([2, 0, 0, 0, 0, 1]),
                url: &|part| format!("http://x/{}", part.name),
            };
            for arg in kind.kernel_args(&inputs).into_iter().chain(kind.overlay_arg("/x")) {
                assert!(
                    meshd_config::kernel_arg(&arg)
                        .is_err_and(|error| error.to_string().contains("set by meshd itself")),
                    "{arg}"
                );
            }
        }
    }
}
