//! The disks of a released VM, and which of them are wiped.

use super::*;
use meshd_proto::DiskUse;

fn left(disk: &str, wipe: bool, used: bool) -> ReleasedDisk {
    ReleasedDisk { disk: disk.parse().expect("an identity"), wipe, used }
}

#[test]
fn report_of_the_central_node_takes_precedence_over_the_specification() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut spec = VmSpec::unknown("a".parse().expect("a name"), SystemUuid([7; 16]));
    let volume = |name: &str, disk: &str| {
        serde_json::from_value(serde_json::json!({ "name": name, "format": "raw", "disk": disk }))
            .expect("a volume")
    };
    spec.volumes = vec![volume("a", "slot:eui.1"), volume("b", "eui.2")];
    let files = VmPaths::new(dir.path(), spec.uuid);
    assert_eq!(
        disks_of(&files, None, vec![left("eui.9", true, true)]),
        [left("eui.9", true, true)]
    );
    let own = |reported| disks_of(&files, Some(&spec), reported);
    assert_eq!(
        own(vec![]),
        [left("eui.1", true, false), left("eui.2", false, false)],
        "the VM never used them"
    );
    ownership_marker::set_state(&files, &spec.volumes[0], DiskUse::Begun).expect("written");
    assert_eq!(
        own(vec![left("eui.1", true, false)])[0],
        left("eui.1", true, true),
        "the node knows that the VM used it"
    );
    assert_eq!(
        own(vec![left("eui.1", false, true)])[0],
        left("eui.1", false, true),
        "deleted with --force"
    );
}

#[test]
fn missing_disk_is_an_error_only_if_it_must_be_wiped() {
    let disk = DiskFacts {
        wwid: Some("eui.1".into()),
        serial: Some("SN-1".into()),
        ..DiskFacts::default()
    };
    let all = [disk.clone()];
    let of =
        |all: &[DiskFacts], left: &ReleasedDisk| find_disk(all, left).map(|disk| disk.is_some());
    assert_eq!(of(&all, &left("SN-1", true, true)), Ok(true));
    assert!(of(&[], &left("SN-1", true, true)).is_err_and(|error| error.contains("is missing")));
    assert_eq!(of(&[], &left("SN-1", true, false)), Ok(false), "the VM never used it");
    assert_eq!(of(&[], &left("SN-1", false, true)), Ok(false));
    assert!(
        of(&[disk.clone(), disk], &left("eui.1", false, true))
            .is_err_and(|error| error.contains("2 disks"))
    );
}
