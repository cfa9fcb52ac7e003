//! URLs of the boot plane. The public part of an overlay has none: a machine uses the address that
//! it booted from. Pure and total.

use crate::fetch::HttpUrl;
use meshd_types::Digest;

/// URLs of the central node that serves this boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootUrls {
    pub modloop: HttpUrl,
    /// Report of a failed boot.
    pub failed: HttpUrl,
    /// The server with its scheme, without a path.
    base: String,
}

impl BootUrls {
    /// Derives them from the URL of the modloop. `None` if that is no URL of a blob.
    pub fn from_modloop(modloop: &str) -> Option<Self> {
        let (base, _) = modloop.rsplit_once("/blob/")?;
        let modloop = modloop.parse().ok()?;
        let failed = format!("{base}/boot/failed").parse().ok()?;
        Some(BootUrls { modloop, failed, base: base.to_owned() })
    }

    /// Returns the URL of the layer of a bundle.
    pub fn bundle(&self, layer: &Digest) -> Option<HttpUrl> {
        format!("{}/blob/{layer}/bundle", self.base).parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn bundles_and_reports_have_the_server_of_the_modloop() {
        let urls = BootUrls::from_modloop("http://10.77.0.1:8080/blob/aa/modloop").expect("a URL");
        assert_eq!(urls.failed.to_string(), "http://10.77.0.1:8080/boot/failed");
        let layer = Digest::of(b"layer");
        let expected = format!("http://10.77.0.1:8080/blob/{layer}/bundle");
        assert_eq!(urls.bundle(&layer).map(|url| url.to_string()), Some(expected));
        for text in ["", "/blob/aa/modloop", "http://10.77.0.1/modloop", "https://10.77.0.1/blob/a"]
        {
            assert_eq!(BootUrls::from_modloop(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn urls_of_any_text_have_one_server(text in "http://10\\.0\\.0\\.[0-9](/blob/|[a-z/?]){0,6}") {
            if let Some(urls) = BootUrls::from_modloop(&text) {
                prop_assert_eq!(urls.failed.server(), urls.modloop.server());
            }
        }
    }
}
