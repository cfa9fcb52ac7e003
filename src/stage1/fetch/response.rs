//! The head of an HTTP response: status, length and range. Pure and total.

/// Maximum length of a head in bytes.
pub const MAX_HEAD: usize = 16 * 1024;
/// Maximum number of header lines.
const MAX_HEADERS: usize = 64;

/// The parts of a head that stage 1 needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHead {
    pub status: u16,
    /// Length of the body in bytes.
    pub length: Option<u64>,
    /// First byte and size of the whole file in bytes, of `Content-Range`.
    pub range: Option<ContentRange>,
}

/// `Content-Range: bytes FIRST-LAST/SIZE` (RFC 9110).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    pub first: u64,
    pub size: u64,
}

/// The response cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResponseError {
    #[error("its head has more than {MAX_HEAD} bytes")]
    Length,
    #[error("its head is malformed: {0}")]
    Malformed(String),
    #[error("it has a transfer encoding")]
    Encoding,
    #[error("header {0} is malformed")]
    Header(&'static str),
}

impl ResponseHead {
    /// Parses a head. Returns it with its length in bytes, or `None` while it is incomplete.
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, ResponseError> {
        let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut headers);
        let window = &bytes[..bytes.len().min(MAX_HEAD)];
        let parsed =
            response.parse(window).map_err(|error| ResponseError::Malformed(error.to_string()))?;
        let httparse::Status::Complete(end) = parsed else {
            return if bytes.len() >= MAX_HEAD { Err(ResponseError::Length) } else { Ok(None) };
        };
        let mut head =
            ResponseHead { status: response.code.unwrap_or_default(), length: None, range: None };
        for header in response.headers.iter() {
            let is = |name: &str| header.name.eq_ignore_ascii_case(name);
            if is("transfer-encoding") {
                return Err(ResponseError::Encoding);
            }
            if is("content-length") {
                let length = number(header.value).ok_or(ResponseError::Header("Content-Length"))?;
                if head.length.is_some_and(|other| other != length) {
                    return Err(ResponseError::Header("Content-Length"));
                }
                head.length = Some(length);
            }
            if is("content-range") && head.status == 206 {
                let range = content_range(header.value);
                head.range = Some(range.ok_or(ResponseError::Header("Content-Range"))?);
            }
        }
        Ok(Some((head, end)))
    }
}

fn number(value: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(value).ok()?.trim();
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok())?
}

fn content_range(value: &[u8]) -> Option<ContentRange> {
    let (range, size) = std::str::from_utf8(value).ok()?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = range.split_once('-')?;
    let first = number(first.as_bytes())?;
    let last = number(last.as_bytes())?;
    let size = number(size.as_bytes())?;
    (first <= last && last < size).then_some(ContentRange { first, size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Option<(ResponseHead, usize)>, ResponseError> {
        ResponseHead::parse(text.as_bytes())
    }

    #[test]
    fn head_of_a_range_is_read() {
        let text = "HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\ncontent-range: bytes 5-9/10\r\n\r\nhello";
        let head = ResponseHead {
            status: 206,
            length: Some(5),
            range: Some(ContentRange { first: 5, size: 10 }),
        };
        assert_eq!(parse(text), Ok(Some((head, text.len() - 5))));
        assert_eq!(parse(&text[..40]), Ok(None), "incomplete");
    }

    #[test]
    fn head_that_is_malformed_is_refused() {
        for text in [
            "SMTP\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "HTTP/1.1 206 OK\r\nContent-Range: bytes 9-5/10\r\n\r\n",
            "HTTP/1.1 206 OK\r\nContent-Range: bytes 5-9/*\r\n\r\n",
        ] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        let long = format!("HTTP/1.1 200 OK\r\nA: {}", "a".repeat(MAX_HEAD));
        assert_eq!(parse(&long), Err(ResponseError::Length));
    }

    proptest! {
        #[test]
        fn head_of_any_bytes_never_panics(
            bytes in "(HTTP/1.1 206 x\r\n)?(Content-Range: bytes )?[ -~\r\n]{0,200}"
        ) {
            if let Ok(Some((_, end))) = parse(&bytes) {
                prop_assert!(end <= bytes.len());
            }
        }
    }
}
