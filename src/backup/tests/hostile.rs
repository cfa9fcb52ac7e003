//! Backups that somebody with the passphrase made.

use super::*;

/// A backup with one link and valid digests, as only somebody with the passphrase makes it.
fn backup_with_link(made: &Made, link: &str, target: &str) {
    backup_of(made, Some((link, target)), &fs::read(made.path("site.toml")).unwrap());
}

fn backup_of(made: &Made, link: Option<(&str, &str)>, site_file: &[u8]) {
    let file = File::create(made.file()).unwrap();
    let mut packer =
        meshd_image::overlay::Packer::new(encryption::encrypt(file, &key("right")).unwrap());
    let path = |name: &str| SafePath::new(name).unwrap();
    if let Some((link, target)) = link {
        packer.link(&path(link), target).unwrap();
    }
    packer.file(&path("site.toml"), 0o644, site_file.len() as u64, site_file).unwrap();
    let member =
        |size: usize, bytes: &[u8]| Member { size: size as u64, digest: Digest::of(bytes) };
    let mut manifest = made.manifest.clone();
    manifest.members.clear();
    if let Some((link, target)) = link {
        manifest.members.insert(link.to_owned(), member(0, target.as_bytes()));
    }
    manifest.members.insert("site.toml".to_owned(), member(site_file.len(), site_file));
    let text = serde_json::to_vec(&manifest).unwrap();
    packer.file(&path(MANIFEST), 0o600, text.len() as u64, &text[..]).unwrap();
    packer.finish().unwrap().finish().unwrap();
}

#[tokio::test]
async fn site_file_with_other_types_is_refused_and_nothing_stays() {
    let made = made(false).await;
    for site_file in [
        "site = 5",
        "[[site]]\nname = \"a\"",
        "admin = 5",
        "[secrets]\nx = 5",
        "[secrets]\nx = [1]",
        "secrets = 5",
        "[[secrets.x]]\nfile = \"a\"",
    ] {
        backup_of(&made, None, site_file.as_bytes());
        let into = made.path("new");
        let refused = restore(&made.file(), &key("right"), &into, Timestamp::EPOCH).await;
        assert!(matches!(refused, Err(BackupError::Site(_))), "{site_file}: {refused:?}");
        assert_eq!(fs::read_dir(&into).unwrap().count(), 0, "{site_file}");
    }
}

#[tokio::test]
async fn restore_follows_no_link_of_a_backup_to_another_site() {
    let made = made(false).await;
    let other_site = made.path("var");
    let tokens = || {
        Store::open(&other_site)
            .unwrap()
            .read(|model| (model.tokens().count(), model.api_tokens().count()))
    };
    for (link, target) in [
        ("state", other_site.clone()),
        ("state/store", other_site.join("store")),
        ("state/ca/ca.key", other_site.join("ca/ca.key")),
        ("secrets/munge_key", made.path("munge")),
        ("state/generations", other_site.join("generations")),
        ("state/revisions", other_site.join("revisions")),
        ("state/revisions/overlays/0a", other_site.join("revisions")),
        ("state/boot-logs", other_site.join("boot-logs")),
        ("state/admin", other_site.join("admin")),
        ("blobs/sha256", other_site.join("blobs")),
        ("blobs/images/small.json", other_site.join("blobs/images/small.json")),
        (".restoring/x", other_site.clone()),
    ] {
        backup_with_link(&made, link, &target.to_string_lossy());
        let into = made.path("new");
        let refused = restore(&made.file(), &key("right"), &into, Timestamp::EPOCH).await;
        assert_eq!(tokens(), (1, 1), "the other site keeps its tokens: {link}");
        assert!(matches!(refused, Err(BackupError::Damaged { .. })), "{link}: {refused:?}");
        assert_eq!(fs::read_dir(&into).unwrap().count(), 0, "{link}");
        assert!(verify(&made.file(), Some(&key("right"))).is_err(), "{link}");
    }
}
