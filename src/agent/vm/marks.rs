//! What became of the disks of the node that a machine has, in a file of its folder: what was written onto them is written once, whoever
//! the agent is, and what the machine never had is not wiped when it goes.

use super::folder::Files;
use crate::{
    agent::files,
    id::Digest,
    wire::vm::{DiskIdentity, DiskUse, VmSpec, Volume, VolumeName, VolumeSource},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, io};

/// What became of one disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Mark {
    disk: DiskIdentity,
    /// What is written onto it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    digest: Option<Digest>,
    state: DiskUse,
}

type Marks = BTreeMap<VolumeName, Mark>;

/// A mark of a volume, if that is a disk of the node.
fn mark(volume: &Volume, state: DiskUse) -> Option<Mark> {
    match &volume.source {
        VolumeSource::Raw { disk, digest, .. } => Some(Mark { disk: disk.identity()?.clone(), digest: *digest, state }),
        VolumeSource::Qcow2 { .. } | VolumeSource::Iso { .. } => None,
    }
}

fn read(files: &Files) -> Marks {
    match files::read(&files.marks()) {
        Ok(text) => serde_json::from_str(&text).unwrap_or_else(|error| {
            tracing::error!(file = %files.marks().display(), %error, "what became of its disks is not known any more");
            Marks::new()
        }),
        // Nothing has become of them.
        Err(_) => Marks::new(),
    }
}

/// The disks that are a machine's own by now. A mark of another disk, or of another image, is none.
pub fn of(files: &Files, spec: &VmSpec) -> BTreeMap<VolumeName, DiskUse> {
    if spec.disks().next().is_none() {
        return BTreeMap::new();
    }
    let marks = read(files);
    let own = spec.volumes.iter().filter_map(|volume| {
        let known = marks.get(&volume.name)?;
        (mark(volume, known.state).as_ref() == Some(known)).then(|| (volume.name.clone(), known.state))
    });
    own.collect()
}

/// Writes down what became of one disk, before anything is done by it.
///
/// # Errors
/// When it cannot be written; nothing may be done then.
pub fn set(files: &Files, volume: &Volume, state: DiskUse) -> io::Result<()> {
    let Some(mark) = mark(volume, state) else { return Ok(()) };
    let mut marks = read(files);
    if marks.get(&volume.name) == Some(&mark) {
        return Ok(());
    }
    marks.insert(volume.name.clone(), mark);
    files.make()?;
    let text = serde_json::to_string(&marks).map_err(io::Error::other)?;
    files::replace(&files.marks(), &text).map_err(io::Error::other)
}

/// A machine is about to have its disks as they are.
///
/// # Errors
/// As [`set`].
pub fn given(files: &Files, spec: &VmSpec) -> io::Result<()> {
    let as_it_is = |volume: &&Volume| matches!(volume.source, VolumeSource::Raw { digest: None, .. });
    spec.volumes.iter().filter(as_it_is).try_for_each(|volume| set(files, volume, DiskUse::Done))
}

/// Takes over what is known elsewhere of disks of which nothing is known here.
///
/// # Errors
/// As [`set`].
pub fn learn(files: &Files, spec: &VmSpec, known: &BTreeMap<VolumeName, DiskUse>) -> io::Result<()> {
    let here = of(files, spec);
    let news = |volume: &&Volume| known.contains_key(&volume.name) && !here.contains_key(&volume.name);
    spec.volumes.iter().filter(news).try_for_each(|volume| set(files, volume, known[&volume.name]))
}

/// The files of the central node that a machine still needs: an image that is on its disk is not one.
pub fn needed(files: &Files, spec: &VmSpec) -> Vec<Digest> {
    let done = of(files, spec);
    let is_done = |volume: &Volume| done.get(&volume.name) == Some(&DiskUse::Done);
    spec.volumes.iter().filter(|volume| !is_done(volume)).filter_map(|volume| volume.source.digest()).collect()
}

/// The volumes whose images are to be written onto disks, each with whether that was begun before.
pub fn unwritten(files: &Files, spec: &VmSpec) -> Vec<(Volume, bool)> {
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
        let files = Files::new(dir.path(), one.uuid);
        let digest = Digest::of(b"image");
        assert_eq!((needed(&files, &one), unwritten(&files, &one).len()), (vec![digest], 1));
        set(&files, &one.volumes[0], DiskUse::Begun).expect("written");
        assert_eq!(unwritten(&files, &one), [(one.volumes[0].clone(), true)], "it begins anew");
        set(&files, &one.volumes[0], DiskUse::Done).expect("written");
        assert_eq!((needed(&files, &one), unwritten(&files, &one)), (vec![], vec![]));
        for other in [spec("slot:eui.2", Some("image")), spec("slot:eui.1", Some("other"))] {
            assert_eq!((of(&files, &other).len(), unwritten(&files, &other).len()), (0, 1));
        }
        std::fs::write(files.marks(), "{").expect("written");
        assert_eq!(of(&files, &one).len(), 0, "damaged, it says nothing");
    }

    #[test]
    fn a_disk_that_is_given_as_it_is_and_what_the_central_node_knows_is_written_down() {
        let dir = tempfile::tempdir().expect("a folder");
        let plain = spec("eui.1", None);
        let files = Files::new(dir.path(), plain.uuid);
        assert!(unwritten(&files, &plain).is_empty() && of(&files, &plain).is_empty());
        given(&files, &plain).expect("written");
        assert_eq!(of(&files, &plain), BTreeMap::from([(plain.volumes[0].name.clone(), DiskUse::Done)]));
        std::fs::remove_dir_all(files.folder()).expect("removed");
        let image = spec("eui.1", Some("image"));
        given(&files, &image).expect("nothing to write");
        assert!(of(&files, &image).is_empty(), "it has to be written first");
        let known = BTreeMap::from([(image.volumes[0].name.clone(), DiskUse::Done)]);
        learn(&files, &image, &known).expect("written");
        learn(&files, &image, &BTreeMap::from([(image.volumes[0].name.clone(), DiskUse::Begun)]))
            .expect("known better");
        assert_eq!(of(&files, &image), known, "the node booted anew, and it is not written again");
    }
}
