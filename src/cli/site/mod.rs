//! Commands for the site as a whole.
//!
//! | module | commands |
//! | --- | --- |
//! | `init` | `meshd init` |
//! | `serve` | `meshd serve` |
//! | `reload` | `meshd reload` |
//! | `check` | `meshd check` |
//! | `status` | `meshd status` |
//! | `dhcp` | `meshd dhcp` |
//! | `doctor` | `meshd doctor` |
//! | `history` | `meshd events`, `meshd audit`, `meshd series` |
//! | `backup` | `meshd backup` |
//! | `activities` | `meshd activities` |
//! | `search` | `meshd search` |
//! | `support_bundle` | `meshd support-bundle` |
//! | `ui` | `meshd ui` |

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod dhcp;
pub(crate) mod doctor;
pub(crate) mod history;
pub(crate) mod init;
pub(crate) mod activities;
pub(crate) mod reload;
pub(crate) mod search;
pub(crate) mod serve;
pub(crate) mod status;
pub(crate) mod support_bundle;
pub(crate) mod ui;
