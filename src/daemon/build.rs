//! Reads all files and builds all services before a socket is opened.

use super::{DaemonError, ipxe_loaders::read_loaders};
use crate::serve::lan::SystemLan;
use meshd_backup::AUTHORITY;
use meshd_central::{Central, Clock, Entropy as _, Lan, Parts, Shared, SystemClock, SystemEntropy, load_catalog};
use meshd_config::Site;
use meshd_image::catalog::load_agent;
use meshd_store::Store;
use meshd_trust::CertificateAuthority;
use std::sync::Arc;

/// Reads all files and builds the central node.
pub fn build(site: Site) -> Result<Shared, DaemonError> {
    let lan = SystemLan::new(&site);
    build_with(site, Box::new(SystemClock), Box::new(lan))
}

/// Builds the central node with another clock and another boot LAN.
pub fn build_with(site: Site, clock: Box<dyn Clock>, lan: Box<dyn Lan>) -> Result<Shared, DaemonError> {
    let loaders = read_loaders(&site.boot.loaders_dir)?;
    let agent_binary = load_agent(&site)?.bytes;
    let mut random = [0; 32];
    SystemEntropy.fill(&mut random);
    let catalog = load_catalog(&site, random).map_err(DaemonError::Overlays)?;
    for (image, reason) in catalog.unusable() {
        tracing::warn!(%image, reason, "machines with this image wait and retry");
    }
    for (bundle, reason) in catalog.unusable_bundles() {
        tracing::warn!(%bundle, reason, "machines with this bundle wait and retry");
    }
    let store = Store::open(&site.state_dir)?;
    let authority = CertificateAuthority::load_or_create(&site.state_dir.join(AUTHORITY), &site.name, clock.now())?;
    Ok(Central::new(Parts {
        site: Arc::new(site),
        catalog,
        loaders,
        agent_binary,
        store,
        authority,
        clock,
        entropy: Box::new(SystemEntropy),
        lan,
    }))
}
