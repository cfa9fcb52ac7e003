//! Records which disks a VM owns and whether their image is written. An image is written once, and a disk that the VM never had is not
//! wiped.

use crate::{
    files,
    vm::{host::resources::HostDisk, vm_paths::VmPaths},
};
use meshd_proto::vm::{
    DiskIdentity, DiskUse, RawDisk, VmRefusal, VmRefusalReason, VmSpec, Volume, VolumeName, VolumeSource,
};
use meshd_types::{Digest, fail};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io};

/// The record of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct OwnershipMarker {
    disk: DiskIdentity,
    /// Digest of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
    state: DiskUse,
    /// Content of the disk before the VM.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    before: Vec<String>,
}

impl OwnershipMarker {
    /// Returns true if it belongs to the disk and image of a volume.
    fn is_of(&self, volume: &Volume) -> bool {
        mark(volume, self.state).is_some_and(|own| (&own.disk, own.digest) == (&self.disk, self.digest))
    }
}

type OwnershipMarkers = BTreeMap<VolumeName, OwnershipMarker>;

/// Makes the marker of a volume, if the volume is a disk.
fn mark(volume: &Volume, state: DiskUse) -> Option<OwnershipMarker> {
    match &volume.source {
        VolumeSource::Raw { disk, digest, .. } => {
            Some(OwnershipMarker { disk: disk.identity()?.clone(), digest: *digest, state, before: Vec::new() })
        }
        VolumeSource::Qcow2 { .. } | VolumeSource::Iso { .. } => None,
    }
}

fn read(files: &VmPaths) -> OwnershipMarkers {
    match files::read(&files.ownership_markers()) {
        Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
            tracing::error!(file = %files.ownership_markers().display(), %error, "what became of its disks is not known any more");
            OwnershipMarkers::new()
        }),
        // The VM has no disks yet.
        Err(_) => OwnershipMarkers::new(),
    }
}

/// Returns the disks that the VM owns. Markers of other disks or images are ignored.
pub fn of(files: &VmPaths, spec: &VmSpec) -> BTreeMap<VolumeName, DiskUse> {
    own(files, spec).into_iter().map(|(name, mark)| (name, mark.state)).collect()
}

/// Like [`of`], and the former content of disks that were not empty.
pub fn disk_uses(files: &VmPaths, spec: &VmSpec) -> (BTreeMap<VolumeName, DiskUse>, BTreeMap<VolumeName, Vec<String>>) {
    let own = own(files, spec);
    let states = own.iter().map(|(name, mark)| (name.clone(), mark.state)).collect();
    (
        states,
        own.into_iter().filter(|(_, mark)| !mark.before.is_empty()).map(|(name, mark)| (name, mark.before)).collect(),
    )
}

fn own(files: &VmPaths, spec: &VmSpec) -> OwnershipMarkers {
    if spec.disks().next().is_none() {
        return OwnershipMarkers::new();
    }
    let ownership_markers = read(files);
    let own = spec.volumes.iter().filter_map(|volume| {
        let known = ownership_markers.get(&volume.name).filter(|known| known.is_of(volume))?;
        Some((volume.name.clone(), known.clone()))
    });
    own.collect()
}

/// Records the state of a disk before the state takes effect. The former content stays recorded.
///
/// # Errors
/// The record cannot be written; the disk must not be used.
pub fn set(files: &VmPaths, volume: &Volume, state: DiskUse) -> io::Result<()> {
    let known = read(files).remove(&volume.name).filter(|known| known.is_of(volume));
    put(files, volume, state, known.map(|known| known.before).unwrap_or_default())
}

/// Records the start of a disk write with the former content. A repeated write keeps the first record.
///
/// # Errors
/// As [`set`].
pub fn begun(files: &VmPaths, volume: &Volume, before: Vec<String>) -> io::Result<()> {
    let known = read(files).remove(&volume.name).filter(|known| known.is_of(volume));
    put(files, volume, DiskUse::Begun, known.map_or(before, |known| known.before))
}

fn put(files: &VmPaths, volume: &Volume, state: DiskUse, before: Vec<String>) -> io::Result<()> {
    let Some(mark) = mark(volume, state).map(|mark| OwnershipMarker { before, ..mark }) else { return Ok(()) };
    let mut ownership_markers = read(files);
    if ownership_markers.get(&volume.name) == Some(&mark) {
        return Ok(());
    }
    ownership_markers.insert(volume.name.clone(), mark);
    files.make()?;
    let text = serde_json::to_string(&ownership_markers).map_err(io::Error::other)?;
    files::replace(&files.ownership_markers(), &text).map_err(io::Error::other)
}

/// Returns volumes that are disks without image and new to the VM.
fn new_as_it_is<'a>(
    files: &VmPaths,
    spec: &'a VmSpec,
    disks: &'a [HostDisk],
) -> impl Iterator<Item = (&'a Volume, &'a HostDisk)> {
    let known = of(files, spec);
    let new = spec.volumes.iter().filter(move |volume| !known.contains_key(&volume.name));
    new.filter_map(|volume| {
        let VolumeSource::Raw { disk, digest: None, .. } = &volume.source else { return None };
        let identity = Some(disk.identity()?.as_str());
        let found = disks.iter().find(|disk| [disk.wwid.as_deref(), disk.serial.as_deref()].contains(&identity))?;
        Some((volume, found))
    })
}

/// Refuses a new disk that has content and no image, unless the specification adopts it.
///
/// # Errors
/// The first such disk.
pub fn adopts(files: &VmPaths, spec: &VmSpec, disks: &[HostDisk]) -> Result<(), VmRefusal> {
    let is_foreign = |(volume, disk): &(&Volume, &HostDisk)| {
        let adopts = matches!(volume.source, VolumeSource::Raw { adopt: true, .. });
        !disk.holds.is_empty() && !adopts && fail::defends("disk-adoption")
    };
    let Some((volume, disk)) = new_as_it_is(files, spec, disks).find(is_foreign) else { return Ok(()) };
    let identity = volume.source.disk().and_then(RawDisk::identity).map_or("", |disk| disk.as_str());
    let holds = disk.holds.join(", ");
    let detail = format!(
        "volume {}: `{identity}` holds: {holds}; write adopt = true if the machine is to have that",
        volume.name
    );
    Err(VmRefusal { reason: VmRefusalReason::DiskNotEmpty, detail })
}

/// Records that a VM gets its disks without image.
///
/// # Errors
/// As [`set`].
pub fn given(files: &VmPaths, spec: &VmSpec, disks: &[HostDisk]) -> io::Result<()> {
    let new: Vec<_> = new_as_it_is(files, spec, disks).collect();
    new.into_iter().try_for_each(|(volume, disk)| put(files, volume, DiskUse::Done, disk.holds.clone()))
}

/// Records states that only the central node knows.
///
/// # Errors
/// As [`set`].
pub fn learn(files: &VmPaths, spec: &VmSpec, known: &BTreeMap<VolumeName, DiskUse>) -> io::Result<()> {
    let here = of(files, spec);
    let news = |volume: &&Volume| known.contains_key(&volume.name) && !here.contains_key(&volume.name);
    spec.volumes.iter().filter(news).try_for_each(|volume| set(files, volume, known[&volume.name]))
}

/// Returns the volumes that the VM still needs: not images that are already on its disks.
pub fn needed(files: &VmPaths, spec: &VmSpec) -> Vec<Digest> {
    let done = of(files, spec);
    let is_done = |volume: &Volume| done.get(&volume.name) == Some(&DiskUse::Done);
    spec.volumes.iter().filter(|volume| !is_done(volume)).filter_map(|volume| volume.source.digest()).collect()
}

/// Returns the volumes whose images must be written; true if the write began before.
pub fn unwritten(files: &VmPaths, spec: &VmSpec) -> Vec<(Volume, bool)> {
    let known = of(files, spec);
    let open = spec.volumes.iter().filter(|volume| volume.source.disk().is_some() && volume.source.digest().is_some());
    let open = open.filter(|volume| known.get(&volume.name) != Some(&DiskUse::Done));
    open.map(|volume| (volume.clone(), known.contains_key(&volume.name))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(disk: &str, digest: Option<&str>) -> VmSpec {
        let digest = digest.map(|text| Digest::of(text.as_bytes()));
        let volume = serde_json::json!({ "name": "d", "format": "raw", "disk": disk, "digest": digest });
        let spec = serde_json::json!({
            "name": "a", "uuid": "11223344-5566-7788-99aa-bbccddeeff00", "vcpus": 1, "memory": "1G", "volumes": [volume],
        });
        serde_json::from_value(spec).expect("a specification")
    }

    #[test]
    fn what_was_written_is_known_of_that_disk_and_that_image_alone() {
        let dir = tempfile::tempdir().expect("a folder");
        let one = spec("slot:eui.1", Some("image"));
        let files = VmPaths::new(dir.path(), one.uuid);
        let digest = Digest::of(b"image");
        assert_eq!((needed(&files, &one), unwritten(&files, &one).len()), (vec![digest], 1));
        set(&files, &one.volumes[0], DiskUse::Begun).expect("written");
        assert_eq!(unwritten(&files, &one), [(one.volumes[0].clone(), true)], "it begins anew");
        set(&files, &one.volumes[0], DiskUse::Done).expect("written");
        assert_eq!((needed(&files, &one), unwritten(&files, &one)), (vec![], vec![]));
        for other in [spec("slot:eui.2", Some("image")), spec("slot:eui.1", Some("other"))] {
            assert_eq!((of(&files, &other).len(), unwritten(&files, &other).len()), (0, 1));
        }
        std::fs::write(files.ownership_markers(), "{").expect("written");
        assert_eq!(of(&files, &one).len(), 0, "damaged, it says nothing");
    }

    #[test]
    fn a_disk_that_is_given_as_it_is_and_what_the_central_node_knows_is_written_down() {
        let dir = tempfile::tempdir().expect("a folder");
        let plain = spec("eui.1", None);
        let files = VmPaths::new(dir.path(), plain.uuid);
        assert!(unwritten(&files, &plain).is_empty() && of(&files, &plain).is_empty());
        let disk = HostDisk { wwid: Some("eui.1".into()), ..HostDisk::default() };
        given(&files, &plain, std::slice::from_ref(&disk)).expect("written");
        assert_eq!(of(&files, &plain), BTreeMap::from([(plain.volumes[0].name.clone(), DiskUse::Done)]));
        std::fs::remove_dir_all(files.folder()).expect("removed");
        let image = spec("eui.1", Some("image"));
        given(&files, &image, &[disk]).expect("nothing to write");
        assert!(of(&files, &image).is_empty(), "it has to be written first");
        let known = BTreeMap::from([(image.volumes[0].name.clone(), DiskUse::Done)]);
        learn(&files, &image, &known).expect("written");
        learn(&files, &image, &BTreeMap::from([(image.volumes[0].name.clone(), DiskUse::Begun)]))
            .expect("known better");
        assert_eq!(of(&files, &image), known, "the node booted anew, and it is not written again");
    }

    #[test]
    fn disk_with_foreign_content_is_given_only_to_a_machine_that_adopts_it() {
        let dir = tempfile::tempdir().expect("a folder");
        let mut plain = spec("eui.1", None);
        let files = VmPaths::new(dir.path(), plain.uuid);
        let holds = vec!["xfs file system on sda".to_owned()];
        let disks = [HostDisk { serial: Some("eui.1".into()), holds: holds.clone(), ..HostDisk::default() }];
        let empty = [HostDisk { holds: Vec::new(), ..disks[0].clone() }];
        assert_eq!(adopts(&files, &plain, &empty), Ok(()));
        let refused = adopts(&files, &plain, &disks).expect_err("it holds something");
        assert_eq!(refused.reason, VmRefusalReason::DiskNotEmpty);
        assert!(refused.detail.contains("xfs file system on sda; write adopt = true"), "{}", refused.detail);
        if let VolumeSource::Raw { adopt, .. } = &mut plain.volumes[0].source {
            *adopt = true;
        }
        assert_eq!(adopts(&files, &plain, &disks), Ok(()));
        given(&files, &plain, &disks).expect("written");
        let name = plain.volumes[0].name.clone();
        assert_eq!(disk_uses(&files, &plain).1, BTreeMap::from([(name, holds)]));
        if let VolumeSource::Raw { adopt, .. } = &mut plain.volumes[0].source {
            *adopt = false;
        }
        assert_eq!(adopts(&files, &plain, &disks), Ok(()), "what is on it now is the machine's own");
    }

    #[test]
    fn what_a_disk_held_before_its_write_stays_known_when_the_write_is_done() {
        let dir = tempfile::tempdir().expect("a folder");
        let image = spec("eui.1", Some("image"));
        let files = VmPaths::new(dir.path(), image.uuid);
        begun(&files, &image.volumes[0], vec!["old".to_owned()]).expect("written");
        begun(&files, &image.volumes[0], vec!["half an image".to_owned()]).expect("written");
        set(&files, &image.volumes[0], DiskUse::Done).expect("written");
        let (states, contents) = disk_uses(&files, &image);
        assert_eq!(states.values().collect::<Vec<_>>(), [&DiskUse::Done]);
        assert_eq!(contents.values().collect::<Vec<_>>(), [&["old".to_owned()]]);
    }
}
