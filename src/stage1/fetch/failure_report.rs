//! Reports a failed boot to the central node: `meshd events` and the page of the node show it.

use super::{
    connection::{Connection, RequestError},
    url::HttpUrl,
};
use meshd_types::BootSessionId;
use std::{fmt::Write as _, time::Duration};

/// Maximum length of a reported reason in bytes.
const MAX_REASON: usize = 400;
const TIMEOUT: Duration = Duration::from_secs(5);

/// Sends the reason. Returns the status of the response.
pub fn report_failure(
    url: &HttpUrl,
    session: BootSessionId,
    reason: &str,
) -> Result<u16, RequestError> {
    let connection = Connection::get(&url.with_query(&query(session, reason)), 0, TIMEOUT)?;
    Ok(connection.head.status)
}

/// Every byte of the reason is escaped, so that it stays one value.
fn query(session: BootSessionId, reason: &str) -> String {
    let mut query = format!("session={session}&reason=");
    for byte in reason.bytes().take(MAX_REASON) {
        let _ = write!(query, "%{byte:02x}");
    }
    query
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_is_escaped_and_bounded() {
        let session = "7cd57a24ea8a2b04d4dd1d1d".parse().expect("an ID");
        assert_eq!(
            query(session, "a&%\u{fc}\n"),
            format!("session={session}&reason=%61%26%25%c3%bc%0a")
        );
        assert_eq!(query(session, &"x".repeat(1000)).matches('%').count(), MAX_REASON);
    }
}
