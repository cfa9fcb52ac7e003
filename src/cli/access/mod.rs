//! Commands for credentials.
//!
//! | module | commands |
//! | --- | --- |
//! | `api_token` | `meshd api-token`: access to the admin API |
//! | `token` | `meshd token`: enrolment tickets |
//! | `ca` | `meshd ca`: the certificate authority |

pub(crate) mod api_token;
pub(crate) mod ca;
pub(crate) mod token;
