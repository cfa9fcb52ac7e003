//! The query of `GET /boot/failed`: the reason why `mesh-init` or stage 1 refused to start a node.

use meshd_types::BootSessionId;
use percent_encoding::percent_decode_str;

/// Maximum length of the query, in bytes.
const MAX_QUERY: usize = 4096;
/// Maximum length of the reason, in characters.
pub const MAX_REASON: usize = 500;

/// A boot that failed after all parts were loaded, as the machine claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootFailure {
    pub session: BootSessionId,
    /// One line without control characters.
    pub reason: String,
}

impl BootFailure {
    /// Parses the part of the URL after `?`. Total; `None` if session or reason is missing or
    /// damaged.
    pub fn parse(query: &str) -> Option<Self> {
        if query.len() > MAX_QUERY {
            return None;
        }
        let value = |key: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find_map(|(name, value)| {
                (name == key).then(|| percent_decode_str(value).decode_utf8_lossy())
            })
        };
        let session = value("session")?.parse().ok()?;
        let visible = |c: char| if c.is_control() { ' ' } else { c };
        let reason: String = value("reason")?.chars().map(visible).take(MAX_REASON).collect();
        Some(BootFailure { session, reason: reason.trim().to_owned() })
            .filter(|failure| !failure.reason.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SESSION: &str = "7cd57a24ea8a2b04d4dd1d1d";

    #[test]
    fn failure_query_without_session_or_reason_is_refused() {
        let failure = BootFailure::parse(&format!(
            "session={SESSION}&reason=packages%20not%20installed%3A%20qemu%0a"
        ))
        .unwrap();
        assert_eq!(
            (failure.session.to_string().as_str(), failure.reason.as_str()),
            (SESSION, "packages not installed: qemu")
        );
        for query in [
            "",
            "session=x&reason=y",
            "reason=y",
            &format!("session={SESSION}"),
            &format!("session={SESSION}&reason=%20"),
        ] {
            assert_eq!(BootFailure::parse(query), None, "{query}");
        }
    }

    proptest! {
        #[test]
        fn failure_query_with_junk_never_panics(query in "(session=7cd57a24ea8a2b04d4dd1d1d&reason=)?\\PC{0,600}|[ -~]{0,5000}") {
            let failure = BootFailure::parse(&query);
            let is_line = |failure: BootFailure| failure.reason.chars().count() <= MAX_REASON && !failure.reason.contains('\n');
            prop_assert!(failure.is_none_or(is_line));
        }
    }
}
