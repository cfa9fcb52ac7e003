//! Reads all files and builds all services before a socket is opened.

use super::{DaemonError, ipxe_loaders::read_loaders};
use meshd_backup::AUTHORITY;
use meshd_central::{
    Central, Clock, Entropy as _, Lan, Parts, Shared, SystemClock, SystemEntropy, load_catalog,
};
use meshd_config::Site;
use meshd_image::catalog::load_agent;
use meshd_serve::lan::SystemLan;
use meshd_store::Store;
use meshd_trust::CertificateAuthority;
use meshd_types::Timestamp;
use std::{sync::Arc, time::Duration};

/// Returns the time at which this program was built.
fn built_at() -> Timestamp {
    let seconds: i64 = env!("MESHD_BUILD_TIME").parse().unwrap_or_default();
    Timestamp::from_millis(seconds.saturating_mul(1000))
}

/// Refuses a clock that was never set. Certificates, leases and events would have its times for
/// ever.
fn require_plausible_clock(now: Timestamp) -> Result<(), DaemonError> {
    let built = built_at();
    if now < built { Err(DaemonError::Clock { now, built }) } else { Ok(()) }
}

/// The machine's clocks. If the clock is set back before the build of this program, the time stands
/// still at the build.
struct PlausibleClock;

impl Clock for PlausibleClock {
    fn now(&self) -> Timestamp {
        SystemClock.now().max(built_at())
    }

    fn monotonic(&self) -> Duration {
        SystemClock.monotonic()
    }
}

/// Reads all files and builds the central node.
pub fn build(site: Site) -> Result<Shared, DaemonError> {
    require_plausible_clock(SystemClock.now())?;
    let lan = SystemLan::new(&site);
    build_with(site, Box::new(PlausibleClock), Box::new(lan))
}

/// Builds the central node with another clock and another boot LAN.
pub fn build_with(
    site: Site,
    clock: Box<dyn Clock>,
    lan: Box<dyn Lan>,
) -> Result<Shared, DaemonError> {
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
    let authority = CertificateAuthority::load_or_create(
        &site.state_dir.join(AUTHORITY),
        &site.name,
        clock.now(),
    )?;
    Ok(Central::new(Parts {
        commit: env!("MESHD_COMMIT"),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clock_before_the_build_of_the_program_is_refused() {
        let built = built_at();
        assert!(built > Timestamp::EPOCH && require_plausible_clock(built).is_ok());
        let refused =
            require_plausible_clock(Timestamp::from_millis(86_400_000)).expect_err("1970");
        assert!(refused.to_string().contains("the clock says 1970-01-02"), "{refused}");
        assert!(PlausibleClock.now() >= built);
    }
}
