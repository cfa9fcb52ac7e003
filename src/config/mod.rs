//! Step 1, configuration: `site.toml` as written becomes a [`Site`] as valid, or a list of all its faults.

mod site;

pub use site::{
    Admin, AgentPlane, Boot, Delivery, DhcpMode, Enroll, EnrollPolicy, Http, Pool, Profile, Segment, Site, Transport,
    VfioSelector,
};
