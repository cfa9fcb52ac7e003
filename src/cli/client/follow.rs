//! Following a record that changes until it has ended.

use super::AdminClient;
use crate::cli::Failure;
use meshd_api::routes::{GetPath, Json};
use serde::de::DeserializeOwned;
use std::time::{Duration, Instant};

/// Interval in which the record is read.
const INTERVAL: Duration = Duration::from_millis(500);
/// Time for which it is read again after a failure: it goes on after a restart of meshd.
const RETRY_FOR: Duration = Duration::from_secs(60);

/// What a followed record says.
pub(in crate::cli) struct RecordProgress {
    /// Printed when it changes.
    pub line: String,
    pub is_over: bool,
}

/// Prints the progress of a record whenever it changes, and returns the record that has ended.
///
/// # Errors
/// It cannot be read the first time, it is refused, or meshd does not answer for [`RETRY_FOR`].
pub(in crate::cli) async fn follow_record<R>(
    client: &AdminClient,
    path: impl Fn() -> GetPath<R>,
    progress: impl Fn(&R::Value) -> RecordProgress,
) -> Result<R::Value, Failure>
where
    R: Json<Value: DeserializeOwned>,
{
    let mut shown = None;
    let mut answered_at = Instant::now();
    loop {
        match client.get(path()).await {
            Ok(record) => {
                answered_at = Instant::now();
                let RecordProgress { line, is_over } = progress(&record);
                if shown.as_ref() != Some(&line) {
                    message!("{line}");
                    shown = Some(line);
                }
                if is_over {
                    return Ok(record);
                }
            }
            Err(failure)
                if shown.is_some()
                    && failure.is_temporary()
                    && answered_at.elapsed() < RETRY_FOR => {}
            Err(failure) => return Err(failure),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}
