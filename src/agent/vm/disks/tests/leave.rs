//! Which disks are wiped when a machine goes.

use super::*;
use crate::vm::vm_paths::VmPaths;
use meshd_proto::vm::DiskUse;

fn left(disk: &str, wipe: bool, used: bool) -> LeftDisk {
    LeftDisk { disk: disk.parse().expect("an identity"), wipe, used }
}

#[test]
fn what_the_central_node_wants_holds_and_what_the_node_knows_is_added() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut spec = VmSpec::unknown("a".parse().expect("a name"), SystemUuid([7; 16]));
    let volume = |name: &str, disk: &str| {
        serde_json::from_value(serde_json::json!({ "name": name, "format": "raw", "disk": disk })).expect("a volume")
    };
    spec.volumes = vec![volume("a", "slot:eui.1"), volume("b", "eui.2")];
    let files = VmPaths::new(dir.path(), spec.uuid);
    assert_eq!(disks_of(&files, None, vec![left("eui.9", true, true)]), [left("eui.9", true, true)]);
    let own = |said| disks_of(&files, Some(&spec), said);
    assert_eq!(own(vec![]), [left("eui.1", true, false), left("eui.2", false, false)], "it never had them");
    ownership_marker::set(&files, &spec.volumes[0], DiskUse::Begun).expect("written");
    assert_eq!(own(vec![left("eui.1", true, false)])[0], left("eui.1", true, true), "the node knows better");
    assert_eq!(own(vec![left("eui.1", false, true)])[0], left("eui.1", false, true), "it was forced");
}

#[test]
fn a_disk_that_is_to_be_wiped_has_to_be_there_and_one_that_is_kept_does_not() {
    let disk = DiskFacts { wwid: Some("eui.1".into()), serial: Some("SN-1".into()), ..DiskFacts::default() };
    let all = [disk.clone()];
    let of = |all: &[DiskFacts], left: &LeftDisk| called(all, left).map(|disk| disk.is_some());
    assert_eq!(of(&all, &left("SN-1", true, true)), Ok(true));
    assert!(of(&[], &left("SN-1", true, true)).is_err_and(|why| why.contains("is not there")));
    assert_eq!(of(&[], &left("SN-1", true, false)), Ok(false), "it never had it");
    assert_eq!(of(&[], &left("SN-1", false, true)), Ok(false));
    assert!(of(&[disk.clone(), disk], &left("eui.1", false, true)).is_err_and(|why| why.contains("2 disks")));
}
