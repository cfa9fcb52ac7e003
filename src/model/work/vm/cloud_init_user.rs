//! The user of a guest that takes the key of its node, by the cloud-init data. Pure.

use meshd_proto::shell::GuestUser;

/// Marks `user-data` of this format.
const CLOUD_CONFIG: &str = "#cloud-config";
/// Key of the user that cloud-init makes and gives keys.
const KEY: &str = "user";
/// Takes the key, too. In most images it answers with the name of the other user.
const ROOT: &str = "root";

/// Returns the user that the key `user` of a `#cloud-config` names, else root.
pub fn cloud_init_user(user_data: &str) -> GuestUser {
    let named = user_data.starts_with(CLOUD_CONFIG).then(|| named_user(user_data)).flatten();
    named.unwrap_or_else(|| ROOT.parse().expect("root is a user name"))
}

/// Finds `user: NAME`, or `user:` and then `  name: NAME`.
fn named_user(text: &str) -> Option<GuestUser> {
    let mut lines = text.lines().skip_while(|line| value(line, KEY).is_none());
    match value(lines.next()?, KEY)? {
        "" => {
            let mut nested =
                lines.take_while(|line| line.is_empty() || line.starts_with([' ', '#']));
            nested.find_map(|line| value(line.trim_start(), "name"))?.parse().ok()
        }
        name => name.parse().ok(),
    }
}

/// Returns the value of `key: value`, without quotes and comment.
fn value<'t>(line: &'t str, key: &str) -> Option<&'t str> {
    let value = line.strip_prefix(key)?.strip_prefix(':')?;
    let value = value.split(" #").next().unwrap_or_default().trim();
    Some(value.trim_matches(['"', '\'']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_that_of_cloud_config_else_root() {
        let cases = [
            ("#cloud-config\nuser: ada\n", "ada"),
            ("#cloud-config\npackages: [x]\nuser: \"ada\" # ours\n", "ada"),
            ("#cloud-config\nuser:\n  # ours\n  uid: 7\n  name: ada\nname: eve\n", "ada"),
            ("#cloud-config\nuser:\nname: eve\n", "root"),
            ("#cloud-config\nusers:\n  - default\n  - name: eve\n", "root"),
            ("#cloud-config\nuser: -oProxyCommand=x\n", "root"),
            ("#cloud-config\nuser: {name: ada}\n", "root"),
            ("#!/bin/sh\nuser: eve\n", "root"),
            ("", "root"),
        ];
        for (text, user) in cases {
            assert_eq!(cloud_init_user(text).as_str(), user, "{text}");
        }
    }
}
