//! Archives that are cut, and layers that end without the end of an archive.

use super::{archive, file, listing, merge, merge_archives};
use meshd_types::Digest;

#[test]
fn truncated_or_foreign_archive_is_refused() {
    let whole = archive(&[file("a", b"content"), file("b", b"content")]);
    for length in [0, 511, 1024, 1300, whole.len() - 512] {
        let refused = merge(&[&whole[..length]]).map(|merged| listing(&merged));
        let refused = refused.expect_err("it is cut").to_string();
        assert!(refused.contains("layer 0 is not an archive"), "{length}: {refused}");
    }
    let mut noise = vec![b'x'; 4096];
    noise.resize(8192, 0);
    assert!(merge(&[&noise]).is_err());
    let stated = Digest::of(b"another archive");
    let refused = merge_archives(&[&whole], Some(stated)).map(|merged| listing(&merged));
    assert!(refused.unwrap_err().to_string().contains(&stated.to_string()));
    assert!(merge_archives(&[&whole], Some(Digest::of(&whole))).is_ok());
}

#[test]
fn layer_of_umoci_without_an_end_is_read_if_its_digest_is_stated() {
    let whole = archive(&[file("a", b"content"), file("b", b"content")]);
    // `umoci insert` ends with the last byte of the last file: the headers are blocks 0 and 2.
    let layer = &whole[..3 * 512 + b"content".len()];
    let merged = merge_archives(&[layer], Some(Digest::of(layer))).unwrap();
    assert_eq!(listing(&merged), listing(&merge(&[&whole]).unwrap()));
    let of_whole = merge_archives(&[layer], Some(Digest::of(&whole)));
    assert!(of_whole.is_err(), "it is cut, as its digest shows");
    assert!(merge(&[layer]).is_err(), "nothing shows that it is whole");
}
