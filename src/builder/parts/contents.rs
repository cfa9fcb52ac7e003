//! Services and kernel modules of an image, which overlays may require.

use super::plan::{Files, PackagePlan};
use meshd_image::catalog::image::Contents;
use std::{collections::BTreeSet, fs, io, path::Path};

/// Folder of OpenRC services in packages.
const SERVICES: &str = "etc/init.d/";

/// Returns the services of planned packages, and the modules in a folder that depmod indexed
/// (`/lib/modules/<release>`).
pub(crate) fn contents(
    plans: &[PackagePlan],
    recipe_dir: &Path,
    modules_dir: &Path,
) -> io::Result<Contents> {
    let mut services = BTreeSet::new();
    for plan in plans {
        match &plan.files {
            Files::Tree { files, .. } => {
                let paths = files.iter().map(|(node, _)| node.path.relative());
                services.extend(
                    paths.filter_map(|path| path.strip_prefix(SERVICES)).map(str::to_owned),
                );
            }
            Files::Recipe(folder) => {
                let listing = fs::read_dir(recipe_dir.join(folder.relative()).join(SERVICES))
                    .into_iter()
                    .flatten();
                services.extend(
                    listing.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()),
                );
            }
            Files::None => {}
        }
    }
    let mut modules = BTreeSet::new();
    for list in ["modules.dep", "modules.builtin"] {
        modules.extend(module_names(&fs::read_to_string(modules_dir.join(list))?));
    }
    Ok(Contents { services, modules })
}

/// Parses module names: `kernel/drivers/vfio/pci/vfio-pci.ko.zst: needs...` is `vfio_pci`, the name
/// for modprobe.
pub(crate) fn module_names(list: &str) -> impl Iterator<Item = String> {
    list.lines().filter_map(|line| {
        let path = line.split(':').next()?;
        let (name, _) = path.rsplit('/').next()?.split_once(".ko")?;
        Some(name.replace('-', "_"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_name_is_in_modprobe_form() {
        let list = "kernel/drivers/vfio/pci/vfio-pci.ko: kernel/drivers/vfio/vfio.ko\nkernel/net/tun.ko.zst:\n\nkernel/a.b\n";
        assert_eq!(module_names(list).collect::<Vec<_>>(), ["vfio_pci", "tun"]);
    }
}
