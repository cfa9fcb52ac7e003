//! What firmware needs that tries IPv6 before IPv4.
//!
//! | module | content |
//! | --- | --- |
//! | `dhcpv6` | observes firmware that tries to boot by IPv6 |
//! | `ndp` | answers IPv6 router solicitations |

pub mod dhcpv6;
pub mod ndp;
