//! Tests of the number of trusted roots, and of the end of trust.

use super::*;

#[test]
fn rotation_beyond_eight_trusted_roots_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut authority =
        CertificateAuthority::load_or_create(dir.path(), "rack", now()).expect("made");
    for _ in 1..MAX_ROOTS {
        authority = authority.rotated(GRACE, now()).expect("rotated");
    }
    let refused = authority.rotated(GRACE, now()).expect_err("a ninth root");
    assert!(
        matches!(refused, TrustError::TooManyRoots { until } if until == now().after(GRACE)),
        "{refused}"
    );
    assert_eq!(authority.roots(now()).len(), MAX_ROOTS, "no changes");
    let later = now().after(GRACE + Duration::from_secs(1));
    assert_eq!(
        authority.rotated(GRACE, later).expect("the first ones are over").roots(later).len(),
        2
    );
    assert_eq!(
        authority.rotated(Duration::ZERO, now()).expect("no trust in others").roots(now()).len(),
        1
    );
}

#[test]
fn roots_of_an_earlier_release_are_limited_when_read() {
    let dir = tempfile::tempdir().expect("a folder");
    let authority = CertificateAuthority::load_or_create(dir.path(), "rack", now()).expect("made");
    let authority = authority.rotated(GRACE, now()).expect("rotated");
    let path = dir.path().join("authority.json");
    let mut manifest: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).expect("it")).expect("JSON");
    let old = manifest["retiring"][0].clone();
    manifest["retiring"] = vec![old; 131].into();
    std::fs::write(&path, manifest.to_string()).expect("written");
    let read = CertificateAuthority::load_or_create(dir.path(), "rack", now()).expect("read");
    assert_eq!((read.active(), read.roots(now()).len()), (authority.active(), MAX_ROOTS));
}

#[test]
fn retired_root_of_a_clock_in_the_future_ends_after_the_grace_time() {
    let dir = tempfile::tempdir().expect("a folder");
    let future = Timestamp::from_millis(4_296_000_000_000);
    let authority = CertificateAuthority::load_or_create(dir.path(), "rack", future).expect("made");
    authority.rotated(GRACE, future).expect("rotated");
    let corrected = CertificateAuthority::load_or_create(dir.path(), "rack", now()).expect("read");
    assert_eq!(corrected.roots(now()).last().and_then(|root| root.until), Some(now().after(GRACE)));
}
