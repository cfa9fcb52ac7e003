//! Finds a disk that its owner gives up, checks that it is idle, and wipes it.

use super::{current_use, exclusive_disk::ExclusiveDisk};
use crate::system::Tree;
use meshd_proto::{Check, CheckStatus, DiskFacts, DiskIdentity, VOLUMES_CHECK};
use tokio_util::sync::CancellationToken;

/// Checks that must have run before a disk is written or wiped.
const STORAGE_CHECKS: [&str; 2] = ["store", VOLUMES_CHECK];

/// Returns the disk with an identity; `None` if the node has no such disk.
///
/// # Errors
/// Several disks have the identity.
pub fn find<'a>(
    all: &'a [DiskFacts],
    identity: &DiskIdentity,
) -> Result<Option<&'a DiskFacts>, String> {
    let mut found =
        all.iter().filter(|disk| disk.identities().any(|name| name == identity.as_str()));
    let first = found.next();
    match found.count() {
        0 => Ok(first),
        others => Err(format!("{} disks have the identity {identity}", others + 1)),
    }
}

/// Checks that neither the node nor a process uses a disk.
pub fn check_idle(tree: &Tree, disk: &DiskFacts, identity: &DiskIdentity) -> Result<(), String> {
    match current_use(tree, &disk.name) {
        Some(reason) => Err(format!("disk {identity} is not idle: {reason}")),
        None => Ok(()),
    }
}

/// Returns the check that forbids disk writes (DR-16), and its result. Pure.
pub fn blocking_check(checks: &[Check]) -> Option<String> {
    if let Some(check) = checks.iter().find(|check| check.status == CheckStatus::Fail) {
        return Some(format!("check {} fails: {}", check.name, check.detail));
    }
    let ran = |name: &str| {
        let passed = |check: &Check| matches!(check.status, CheckStatus::Pass | CheckStatus::Warn);
        checks.iter().any(|check| check.name == name && passed(check))
    };
    STORAGE_CHECKS.iter().find(|name| !ran(name)).map(|name| format!("check {name} did not run"))
}

/// Wipes a disk of a recent survey unless it is blocked or a check of the node forbids it. `checks`
/// runs only for a disk that is not blocked. Blocks, for hours on a large hard disk.
pub fn wipe(
    tree: &Tree,
    disk: &DiskFacts,
    checks: impl FnOnce() -> Vec<Check>,
    cancelled: &CancellationToken,
) -> Result<(), String> {
    match disk.blocked.clone().or_else(|| blocking_check(&checks())) {
        Some(reason) => Err(reason),
        None => ExclusiveDisk::open(tree, disk)?.wipe(cancelled),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::{FakeMachine, LoopDevice};

    fn check(name: &str, status: CheckStatus) -> Check {
        let detail = "seen".to_owned();
        let remediation = String::new();
        Check { name: name.into(), status, detail, remediation, unproven: false }
    }

    fn passing_checks() -> Vec<Check> {
        vec![
            check("store", CheckStatus::Warn),
            check("images", CheckStatus::Pass),
            check("vfio", CheckStatus::Skip),
        ]
    }

    #[test]
    fn failed_or_missing_check_blocks_disk_writes() {
        assert_eq!(blocking_check(&passing_checks()), None);
        let mut failing = passing_checks();
        failing.push(check("memory", CheckStatus::Fail));
        assert_eq!(blocking_check(&failing).as_deref(), Some("check memory fails: seen"));
        let skipped = [check("store", CheckStatus::Skip), check("images", CheckStatus::Pass)];
        assert_eq!(blocking_check(&skipped).as_deref(), Some("check store did not run"));
        assert!(blocking_check(&[]).is_some());
    }

    #[test]
    fn disk_is_found_by_each_of_its_identities_if_they_are_unique() {
        let disk = DiskFacts {
            wwid: Some("eui.1".into()),
            serial: Some("SN-1".into()),
            ..DiskFacts::default()
        };
        let found = |all: &[DiskFacts], name: &str| {
            find(all, &name.parse().expect("an identity")).map(|disk| disk.cloned())
        };
        let one = [disk.clone()];
        assert_eq!(found(&one, "eui.1"), Ok(Some(disk.clone())));
        assert_eq!(found(&one, "SN-1"), Ok(Some(disk.clone())));
        assert_eq!(found(&one, "eui.2"), Ok(None));
        assert_eq!(
            found(&[disk.clone(), disk], "eui.1"),
            Err("2 disks have the identity eui.1".to_owned())
        );
    }

    #[test]
    fn idle_disk_is_wiped_and_a_blocked_or_unchecked_one_is_not() {
        const MIB: usize = 1 << 20;
        let real = LoopDevice::new(8 * MIB as u64);
        let fake = FakeMachine::new("", &[]);
        let number =
            Tree::new(std::path::Path::new("/")).text(&format!("/sys/block/{}/dev", real.name()));
        fake.file("sys/block/vdz/dev", &number.expect("a device number"));
        fake.file("sys/block/vdz/size", "16384");
        fake.file("sys/block/vdz/wwid", "eui.1");
        fake.link("dev/vdz", &real.device);
        std::fs::OpenOptions::new()
            .write(true)
            .open(&real.device)
            .and_then(|file| std::os::unix::fs::FileExt::write_all_at(&file, b"data", MIB as u64))
            .expect("written");
        let is_zero =
            || std::fs::read(&real.device).expect("readable").iter().all(|byte| *byte == 0);
        let all = crate::disks::survey(&fake.tree, &[]);
        let disk =
            find(&all, &"eui.1".parse().expect("an identity")).expect("one disk").expect("a disk");
        let token = CancellationToken::new();
        assert_eq!(
            wipe(&fake.tree, disk, Vec::new, &token),
            Err("check store did not run".to_owned())
        );
        let blocked = DiskFacts {
            blocked: Some("the profile marks eui.1 as data".to_owned()),
            ..disk.clone()
        };
        assert!(
            wipe(&fake.tree, &blocked, || panic!("no check runs"), &token)
                .is_err_and(|error| error.contains("as data"))
        );
        assert!(!is_zero());
        assert_eq!(wipe(&fake.tree, disk, passing_checks, &token), Ok(()));
        assert!(is_zero());
    }
}
