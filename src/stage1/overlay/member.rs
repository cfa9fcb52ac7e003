//! What a member of the archive may be: a file, a folder or a symbolic link below the root. Pure.

use meshd_types::{ParseError, SafePath};
use tar::EntryType;

/// A permitted member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Member {
    File(SafePath),
    Folder(SafePath),
    /// A symbolic link with its target.
    Link(SafePath, String),
}

/// A member that is not unpacked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    #[error("path {0:?} is not UTF-8")]
    Encoding(Vec<u8>),
    #[error("path {0:?} is absolute")]
    Absolute(String),
    #[error(transparent)]
    Path(#[from] ParseError),
    #[error("{path} is neither file, folder nor symbolic link (type {kind:?})")]
    Kind { path: SafePath, kind: char },
    #[error("link {0} has no target")]
    NoTarget(SafePath),
}

impl Member {
    /// Checks a member by its path, type and link target. The target of a link may be any text:
    /// paths of later members are resolved below the root.
    pub fn new(path: &[u8], kind: EntryType, target: Option<&[u8]>) -> Result<Self, MemberError> {
        let text = std::str::from_utf8(path).map_err(|_| MemberError::Encoding(path.to_vec()))?;
        if text.starts_with('/') {
            return Err(MemberError::Absolute(text.to_owned()));
        }
        let is_folder = kind == EntryType::Directory;
        let relative = text.strip_prefix("./").unwrap_or(text);
        let relative = if is_folder { relative.trim_end_matches('/') } else { relative };
        let path = SafePath::new(relative)?;
        match kind {
            EntryType::Regular => Ok(Member::File(path)),
            EntryType::Directory => Ok(Member::Folder(path)),
            EntryType::Symlink => {
                let target = target.and_then(|target| std::str::from_utf8(target).ok());
                match target.filter(|target| !target.is_empty() && !target.contains('\0')) {
                    Some(target) => Ok(Member::Link(path, target.to_owned())),
                    None => Err(MemberError::NoTarget(path)),
                }
            }
            other => Err(MemberError::Kind { path, kind: char::from(other.as_byte()) }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn path(text: &str) -> SafePath {
        SafePath::new(text).expect("a path")
    }

    #[test]
    fn file_folder_and_link_are_permitted() {
        let new = |text: &str, kind, target: Option<&str>| {
            Member::new(text.as_bytes(), kind, target.map(str::as_bytes))
        };
        assert_eq!(new("./etc/a", EntryType::Regular, None), Ok(Member::File(path("etc/a"))));
        assert_eq!(new("etc/", EntryType::Directory, None), Ok(Member::Folder(path("etc"))));
        let link = Member::Link(path("etc/b"), "/run/b".to_owned());
        assert_eq!(new("etc/b", EntryType::Symlink, Some("/run/b")), Ok(link));
        assert!(new("etc/b", EntryType::Symlink, None).is_err());
    }

    #[test]
    fn path_outside_of_the_root_and_other_types_are_refused() {
        for text in ["/etc/a", "../a", "etc/../../a", "", ".", "./", "a//b", "a\0b", "a/"] {
            let member = Member::new(text.as_bytes(), EntryType::Regular, None);
            assert!(member.is_err(), "{text:?}: {member:?}");
        }
        for kind in [EntryType::Link, EntryType::Char, EntryType::Block, EntryType::Fifo] {
            let member = Member::new(b"a", kind, Some(b"b"));
            assert!(matches!(member, Err(MemberError::Kind { .. })), "{kind:?}");
        }
        assert!(matches!(
            Member::new(b"\xff", EntryType::Regular, None),
            Err(MemberError::Encoding(_))
        ));
    }

    proptest! {
        #[test]
        fn permitted_member_stays_below_the_root(
            bytes in "[a./]{0,12}|\\PC{0,20}",
            kind in any::<u8>(),
        ) {
            if let Ok(member) = Member::new(bytes.as_bytes(), EntryType::new(kind), Some(b"x")) {
                let (Member::File(path) | Member::Folder(path) | Member::Link(path, _)) = member;
                prop_assert!(path.relative().split('/').all(|part| !matches!(part, "" | "." | "..")));
            }
        }
    }
}
