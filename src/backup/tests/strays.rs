//! Files that editors, crashes and operators leave in the folders of meshd.

use super::*;

#[tokio::test]
async fn stray_files_below_the_state_folder_are_named_and_left_out() {
    let strays = [
        "var/.site-id.swp",
        "var/ca/.authority.json.swp",
        "var/ca/0a/root.key~",
        "var/core.4711",
        "var/generations/content/copy of 00",
        "var/old/ca/0a/root.key",
        "var/blobs/images/.small.json.4711",
        "var/blobs/backup.tar",
    ];
    let owned = [
        "var/site-id",
        "var/secrets.key",
        "var/admin/https.pem",
        "var/keys/repo.rsa",
        "var/generations/0a.json",
        "var/generations/content/0b",
        "var/revisions/0a.json",
        "var/revisions/overlays/0c/base/rootfs/.hidden~",
        "var/tasks/0d/0",
        "var/boot-logs/0e/4096",
        "var/blobs/volumes/0f.json",
        "var/blobs/in-use/rack.0a.volumes",
        "var/blobs/images/small/moves/0.0a",
    ];
    let made = made_with(false, |dir| {
        for name in strays.iter().chain(&owned) {
            write(&dir.join(name), name, 0o600);
        }
    })
    .await;
    let member = |name: &str| {
        let name = name.strip_prefix("var/").unwrap();
        if name.starts_with("blobs/") { name.to_owned() } else { format!("state/{name}") }
    };
    for name in owned {
        assert!(made.manifest.members.contains_key(&member(name)), "{name}");
    }
    // A folder is named once.
    let mut named = strays.map(|name| member(name).replace("old/ca/0a/root.key", "old"));
    let of_others =
        |line: &String| line.strip_suffix(": it is no file of meshd").map(str::to_owned);
    let mut left_out: Vec<_> = made.manifest.left_out.iter().filter_map(of_others).collect();
    named.sort_unstable();
    left_out.sort_unstable();
    assert_eq!(left_out, named);
    let into = made.path("new");
    restore(&made.file(), &key("right"), &into, Timestamp::EPOCH).await.unwrap();
    assert!(strays.iter().all(|name| !into.join(member(name)).exists()));
    assert!(owned.iter().all(|name| into.join(member(name)).exists()));
}

#[tokio::test]
async fn files_of_operators_are_kept_whatever_their_names() {
    let files = [
        "overlays/web/rootfs/etc/motd.new",
        "overlays/web/rootfs/root/.newsrc",
        "overlays/web/rootfs/root/.news/today",
        "images/small/recipe.new",
        "var/revisions/overlays/0c/web/rootfs/etc/motd.new",
    ];
    let made = made_with(false, |dir| {
        for name in files {
            write(&dir.join(name), name, 0o644);
        }
    })
    .await;
    for name in files {
        let member = name.replace("var/", "state/");
        assert!(made.manifest.members.contains_key(&member), "{member}");
    }
}
