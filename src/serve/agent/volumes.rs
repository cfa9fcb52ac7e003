//! Serves byte ranges of volume files. Each range must finish within the request timeout, and each
//! request is authorised again.

use super::node_connections::NodePermit;
use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use std::{io, path::Path};
use tokio::{
    fs::File,
    io::{AsyncReadExt as _, AsyncSeekExt as _},
};

/// Maximum number of bytes per response.
const MAX_PIECE: u64 = 16 << 20;
/// Number of bytes per read.
const READ: u64 = 256 * 1024;

/// Returns a response with the requested range.
pub(super) async fn piece(
    path: &Path,
    headers: &HeaderMap,
    permit: NodePermit,
) -> io::Result<Response> {
    let mut file = File::open(path).await?;
    let size = file.metadata().await?.len();
    let requested = headers.get(header::RANGE).and_then(|value| value.to_str().ok());
    let (first, last) = range(requested.unwrap_or("bytes=0-")).unwrap_or((0, u64::MAX));
    if first >= size {
        let whole = [(header::CONTENT_RANGE, format!("bytes */{size}"))];
        return Ok((StatusCode::RANGE_NOT_SATISFIABLE, whole).into_response());
    }
    let length = (size - first).min(MAX_PIECE).min(last.saturating_sub(first).saturating_add(1));
    file.seek(io::SeekFrom::Start(first)).await?;
    let headers = [
        (header::CONTENT_RANGE, format!("bytes {first}-{}/{size}", first + length - 1)),
        (header::CONTENT_LENGTH, length.to_string()),
        (header::CONTENT_TYPE, "application/octet-stream".to_owned()),
    ];
    let body = futures_util::stream::unfold(
        (file, length, permit),
        |(mut file, left, permit)| async move {
            if left == 0 {
                return None;
            }
            let mut bytes = vec![0; usize::try_from(left.min(READ)).unwrap_or_default()];
            match file.read_exact(&mut bytes).await {
                Ok(_) => {
                    let left = left - bytes.len() as u64;
                    Some((Ok(Bytes::from(bytes)), (file, left, permit)))
                }
                // The node detects the aborted response.
                Err(error) => Some((Err(error), (file, 0, permit))),
            }
        },
    );
    Ok((StatusCode::PARTIAL_CONTENT, headers, Body::from_stream(body)).into_response())
}

/// Parses `bytes=5-9` or `bytes=5-`; `None` for any other input.
fn range(text: &str) -> Option<(u64, u64)> {
    let (first, last) = text.strip_prefix("bytes=")?.split_once('-')?;
    let last = if last.is_empty() { u64::MAX } else { last.parse().ok()? };
    Some((first.parse().ok()?, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_range_is_parsed_or_refused() {
        assert_eq!((range("bytes=5-9"), range("bytes=5-")), (Some((5, 9)), Some((5, u64::MAX))));
        for text in ["", "bytes=-5", "bytes=a-b", "bytes=1-2,4-5", "5-9"] {
            assert_eq!(range(text), None, "{text}");
        }
    }
}
