//! The disks that a VM owns, and whether their image is written. [`crate::disks::ownership`] stores
//! the markers.

use crate::{
    disks::ownership::{self, OwnershipMarker},
    vm::{failure::refusal, vm_paths::VmPaths},
};
use meshd_proto::{
    DiskFacts, DiskUse,
    vm::{RawDisk, VmRefusal, VmRefusalReason, VmSpec, Volume, VolumeName, VolumeSource},
};
use meshd_types::{Digest, failpoint};
use std::{collections::BTreeMap, io};

/// Makes the marker of a volume; `None` if the volume is not a disk.
fn marker_of(volume: &Volume, state: DiskUse, before: Vec<String>) -> Option<OwnershipMarker> {
    match &volume.source {
        VolumeSource::Raw { disk, digest, .. } => {
            Some(OwnershipMarker { disk: disk.identity()?.clone(), digest: *digest, state, before })
        }
        VolumeSource::Qcow2 { .. } | VolumeSource::Iso { .. } => None,
    }
}

/// Returns the markers of the volumes of a specification. Markers of other disks or images are
/// ignored.
fn markers(files: &VmPaths, spec: &VmSpec) -> BTreeMap<VolumeName, OwnershipMarker> {
    if spec.disks().next().is_none() {
        return BTreeMap::new();
    }
    let mut markers = ownership::read(&files.ownership_markers());
    let of_volume = |volume: &Volume| {
        let marker = markers.remove(volume.name.as_str())?;
        let own = marker_of(volume, marker.state, Vec::new())?;
        marker.is_for_same_disk(&own).then(|| (volume.name.clone(), marker))
    };
    spec.volumes.iter().filter_map(of_volume).collect()
}

/// Returns the disks that the VM owns.
pub fn states(files: &VmPaths, spec: &VmSpec) -> BTreeMap<VolumeName, DiskUse> {
    markers(files, spec).into_iter().map(|(name, marker)| (name, marker.state)).collect()
}

/// Like [`states`], and the former content of disks that were not empty.
pub fn disk_uses(
    files: &VmPaths,
    spec: &VmSpec,
) -> (BTreeMap<VolumeName, DiskUse>, BTreeMap<VolumeName, Vec<String>>) {
    let markers = markers(files, spec);
    let states = markers.iter().map(|(name, marker)| (name.clone(), marker.state)).collect();
    let not_empty = markers.into_iter().filter(|(_, marker)| !marker.before.is_empty());
    (states, not_empty.map(|(name, marker)| (name, marker.before)).collect())
}

/// Records the state of a disk before the state takes effect. The recorded former content stays.
/// After an error the disk must not be used.
pub fn set_state(files: &VmPaths, volume: &Volume, state: DiskUse) -> io::Result<()> {
    put(files, volume, state, Vec::new())
}

/// Records the start of a disk write with the former content. A repeated write keeps the first
/// record.
pub fn record_begun(files: &VmPaths, volume: &Volume, before: Vec<String>) -> io::Result<()> {
    put(files, volume, DiskUse::Begun, before)
}

/// Writes a marker. `before` is used only if the disk has no marker yet.
fn put(files: &VmPaths, volume: &Volume, state: DiskUse, before: Vec<String>) -> io::Result<()> {
    let Some(marker) = marker_of(volume, state, before) else { return Ok(()) };
    files.make()?;
    ownership::record(&files.ownership_markers(), volume.name.as_str(), marker)
}

/// Returns the volumes that are disks without image and have no marker yet.
fn unmarked_disks<'a>(
    files: &VmPaths,
    spec: &'a VmSpec,
    disks: &'a [DiskFacts],
) -> impl Iterator<Item = (&'a Volume, &'a DiskFacts)> {
    let known = states(files, spec);
    let unmarked = spec.volumes.iter().filter(move |volume| !known.contains_key(&volume.name));
    unmarked.filter_map(|volume| {
        let VolumeSource::Raw { disk, digest: None, .. } = &volume.source else { return None };
        let identity = disk.identity()?.as_str();
        Some((volume, DiskFacts::by_identity(disks, identity)?))
    })
}

/// Refuses a new disk that has content and no image, unless the specification adopts it.
pub fn check_adoption(
    files: &VmPaths,
    spec: &VmSpec,
    disks: &[DiskFacts],
) -> Result<(), VmRefusal> {
    let is_foreign = |(volume, disk): &(&Volume, &DiskFacts)| {
        let adopts = matches!(volume.source, VolumeSource::Raw { adopt: true, .. });
        !disk.signatures.is_empty() && !adopts && failpoint::defends("disk-adoption")
    };
    let Some((volume, disk)) = unmarked_disks(files, spec, disks).find(is_foreign) else {
        return Ok(());
    };
    let identity =
        volume.source.disk().and_then(RawDisk::identity).map_or("", |disk| disk.as_str());
    let content = disk.signatures.join(", ");
    let detail = format!(
        "volume {}: `{identity}` is not empty: {content}; set adopt = true to use the disk with its content",
        volume.name
    );
    Err(refusal(VmRefusalReason::DiskNotEmpty, detail))
}

/// Records that a VM gets its disks without image.
pub fn record_assigned(files: &VmPaths, spec: &VmSpec, disks: &[DiskFacts]) -> io::Result<()> {
    let unmarked: Vec<_> = unmarked_disks(files, spec, disks).collect();
    unmarked
        .into_iter()
        .try_for_each(|(volume, disk)| put(files, volume, DiskUse::Done, disk.signatures.clone()))
}

/// Records states that only the central node knows.
pub fn add_missing(
    files: &VmPaths,
    spec: &VmSpec,
    known: &BTreeMap<VolumeName, DiskUse>,
) -> io::Result<()> {
    let local = states(files, spec);
    for volume in spec.volumes.iter().filter(|volume| !local.contains_key(&volume.name)) {
        if let Some(state) = known.get(&volume.name) {
            set_state(files, volume, *state)?;
        }
    }
    Ok(())
}

/// Returns the volumes that the VM still needs: images that are not on its disks yet.
pub fn needed_volumes(files: &VmPaths, spec: &VmSpec) -> Vec<Digest> {
    let states = states(files, spec);
    let is_done = |volume: &Volume| states.get(&volume.name) == Some(&DiskUse::Done);
    spec.volumes
        .iter()
        .filter(|volume| !is_done(volume))
        .filter_map(|volume| volume.source.digest())
        .collect()
}

/// Returns the volumes whose images must be written; true if a write began before.
pub fn unwritten_volumes(files: &VmPaths, spec: &VmSpec) -> Vec<(Volume, bool)> {
    let states = states(files, spec);
    let with_image = spec
        .volumes
        .iter()
        .filter(|volume| volume.source.disk().and(volume.source.digest()).is_some());
    let unwritten = with_image.filter(|volume| states.get(&volume.name) != Some(&DiskUse::Done));
    unwritten.map(|volume| (volume.clone(), states.contains_key(&volume.name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vm::fixtures;

    fn spec(disk: &str, digest: Option<&str>) -> VmSpec {
        let digest = digest.map(|text| Digest::of(text.as_bytes()));
        let volume =
            serde_json::json!({ "name": "d", "format": "raw", "disk": disk, "digest": digest });
        fixtures::spec(serde_json::json!({ "volumes": [volume] }))
    }

    #[test]
    fn marker_is_valid_for_its_disk_and_image_only() {
        let dir = tempfile::tempdir().expect("a folder");
        let vm = spec("slot:eui.1", Some("image"));
        let files = VmPaths::new(dir.path(), vm.uuid);
        let digest = Digest::of(b"image");
        assert_eq!(
            (needed_volumes(&files, &vm), unwritten_volumes(&files, &vm).len()),
            (vec![digest], 1)
        );
        set_state(&files, &vm.volumes[0], DiskUse::Begun).expect("written");
        assert_eq!(
            unwritten_volumes(&files, &vm),
            [(vm.volumes[0].clone(), true)],
            "the write is repeated"
        );
        set_state(&files, &vm.volumes[0], DiskUse::Done).expect("written");
        assert_eq!((needed_volumes(&files, &vm), unwritten_volumes(&files, &vm)), (vec![], vec![]));
        for other in [spec("slot:eui.2", Some("image")), spec("slot:eui.1", Some("other"))] {
            assert_eq!(
                (states(&files, &other).len(), unwritten_volumes(&files, &other).len()),
                (0, 1)
            );
        }
        std::fs::write(files.ownership_markers(), "{").expect("written");
        assert_eq!(states(&files, &vm).len(), 0, "a damaged file has no markers");
    }

    #[test]
    fn assigned_disks_and_states_of_the_central_node_are_recorded() {
        let dir = tempfile::tempdir().expect("a folder");
        let plain = spec("eui.1", None);
        let files = VmPaths::new(dir.path(), plain.uuid);
        assert!(unwritten_volumes(&files, &plain).is_empty() && states(&files, &plain).is_empty());
        let disk = DiskFacts { wwid: Some("eui.1".into()), ..DiskFacts::default() };
        record_assigned(&files, &plain, std::slice::from_ref(&disk)).expect("written");
        assert_eq!(
            states(&files, &plain),
            BTreeMap::from([(plain.volumes[0].name.clone(), DiskUse::Done)])
        );
        std::fs::remove_dir_all(files.folder()).expect("removed");
        let image = spec("eui.1", Some("image"));
        record_assigned(&files, &image, &[disk]).expect("nothing to write");
        assert!(states(&files, &image).is_empty(), "its image must be written first");
        let known = BTreeMap::from([(image.volumes[0].name.clone(), DiskUse::Done)]);
        add_missing(&files, &image, &known).expect("written");
        add_missing(
            &files,
            &image,
            &BTreeMap::from([(image.volumes[0].name.clone(), DiskUse::Begun)]),
        )
        .expect("ignored");
        assert_eq!(states(&files, &image), known, "a local state is not overwritten");
    }

    #[test]
    fn disk_with_content_is_assigned_only_to_vm_that_adopts_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut plain = spec("eui.1", None);
        let files = VmPaths::new(dir.path(), plain.uuid);
        let content = vec!["xfs file system on sda".to_owned()];
        let disks = [DiskFacts {
            serial: Some("eui.1".into()),
            signatures: content.clone(),
            ..DiskFacts::default()
        }];
        let empty = [DiskFacts { signatures: Vec::new(), ..disks[0].clone() }];
        assert_eq!(check_adoption(&files, &plain, &empty), Ok(()));
        let refused = check_adoption(&files, &plain, &disks).expect_err("not empty");
        assert_eq!(refused.reason, VmRefusalReason::DiskNotEmpty);
        assert!(
            refused.detail.contains("xfs file system on sda; set adopt = true"),
            "{}",
            refused.detail
        );
        if let VolumeSource::Raw { adopt, .. } = &mut plain.volumes[0].source {
            *adopt = true;
        }
        assert_eq!(check_adoption(&files, &plain, &disks), Ok(()));
        record_assigned(&files, &plain, &disks).expect("written");
        let name = plain.volumes[0].name.clone();
        assert_eq!(disk_uses(&files, &plain).1, BTreeMap::from([(name, content)]));
        if let VolumeSource::Raw { adopt, .. } = &mut plain.volumes[0].source {
            *adopt = false;
        }
        assert_eq!(
            check_adoption(&files, &plain, &disks),
            Ok(()),
            "the content belongs to the VM now"
        );
    }

    #[test]
    fn former_content_of_a_disk_stays_recorded_after_its_write() {
        let dir = tempfile::tempdir().expect("a folder");
        let image = spec("eui.1", Some("image"));
        let files = VmPaths::new(dir.path(), image.uuid);
        record_begun(&files, &image.volumes[0], vec!["old".to_owned()]).expect("written");
        record_begun(&files, &image.volumes[0], vec!["half an image".to_owned()]).expect("written");
        set_state(&files, &image.volumes[0], DiskUse::Done).expect("written");
        let (states, contents) = disk_uses(&files, &image);
        assert_eq!(states.values().collect::<Vec<_>>(), [&DiskUse::Done]);
        assert_eq!(contents.values().collect::<Vec<_>>(), [&["old".to_owned()]]);
    }
}
