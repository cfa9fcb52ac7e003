//! Step 1, configuration: `site.toml` as written becomes a [`Site`] as valid, or a list of all its faults.

mod fault;
pub mod reader;
mod site;

pub use fault::{Fault, Faults, nearest, suggest};
pub use site::{
    Admin, AgentPlane, Boot, Delivery, DhcpMode, Enroll, EnrollPolicy, Http, Pool, Profile, Segment, Site, Transport,
    VfioSelector,
};
