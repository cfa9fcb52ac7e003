//! Commands for what happened at the site.
//!
//! | module | commands |
//! | --- | --- |
//! | `audit` | `meshd audit` |
//! | `events` | `meshd events` |
//! | `series` | `meshd series` |

pub(crate) mod audit;
pub(crate) mod events;
pub(crate) mod series;
