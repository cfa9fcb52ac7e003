//! HTTP of stage 1: GET without TLS from the boot API. What is fetched is verified by digest.
//!
//! | module | content |
//! | --- | --- |
//! | `url` | URLs with an IPv4 address |
//! | `response` | the head of a response: pure |
//! | `transfer` | position, size and digest of a file that arrives in several responses: pure |
//! | `retry` | order of URLs, delays, and when to give up: pure |
//! | `connection` | one request over TCP |
//! | `download` | fetches a file with resume and retries |
//! | `range_client` | fetches ranges of a file with one connection that stays open |
//! | `failure_report` | reports a failed boot to the central node |

mod url;
mod response;
mod transfer;
mod retry;
mod connection;
mod download;
mod range_client;
mod failure_report;

pub use download::{DownloadError, Observer, TryError, download};
pub use failure_report::report_failure;
pub use range_client::{RangeClient, RangeError};
pub use response::{ResponseError, ResponseHead};
pub use transfer::{Transfer, TransferError};
pub use url::{HttpUrl, UrlError};
