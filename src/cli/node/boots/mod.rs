//! The boots of a node with their times.
//!
//! | module | content |
//! | --- | --- |
//! | `boot_times` | `meshd boot-times`: the steps of a boot, compared with other boots |
//! | `timeline` | `meshd node timeline`: the stages of one boot, and a summary of earlier boots |

pub(crate) mod boot_times;
pub(crate) mod timeline;
