//! Fetches ranges of a file from several servers, with one connection that stays open between
//! requests.

use super::{
    connection::{CONNECT_TIMEOUT, RequestError, read, read_head},
    response::ContentRange,
    url::HttpUrl,
};
use std::{
    io::{self, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Longest time without a byte.
const IDLE: Duration = Duration::from_secs(5);
/// Longest time for one range: a server that is slower is left for another.
const LONGEST: Duration = Duration::from_secs(30);

/// A range cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    #[error(transparent)]
    Request(#[from] RequestError),
    #[error("it answers with status {0}")]
    Status(u16),
    #[error("it sends another range than the one that was asked for")]
    Range,
    #[error("the connection failed after {received} of {length} bytes: {cause}")]
    Broken { received: usize, length: u64, cause: io::Error },
}

/// A file at several URLs.
pub struct RangeClient {
    urls: Vec<HttpUrl>,
    /// Size of the file in bytes.
    size: u64,
    /// The connection of the last answer, with the position of its URL.
    open: Option<(usize, TcpStream)>,
}

impl RangeClient {
    pub fn new(urls: Vec<HttpUrl>, size: u64) -> Self {
        RangeClient { urls, size, open: None }
    }

    pub fn url(&self, server: usize) -> &HttpUrl {
        &self.urls[server]
    }

    /// Fetches so many bytes, at least 1, from a position on.
    pub fn fetch(&mut self, server: usize, from: u64, length: u64) -> Result<Vec<u8>, RangeError> {
        if let Some((_, stream)) = self.open.take().filter(|(open, _)| *open == server) {
            match self.request(stream, server, from, length) {
                // The server closed the connection while it was not used.
                Err(RangeError::Request(RequestError::Send(_) | RequestError::Closed)) => {}
                outcome => return outcome,
            }
        }
        let address = SocketAddr::V4(self.urls[server].server());
        let stream =
            TcpStream::connect_timeout(&address, CONNECT_TIMEOUT).map_err(RequestError::Connect)?;
        let options = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(IDLE)))
            .and_then(|()| stream.set_write_timeout(Some(IDLE)));
        options.map_err(RequestError::Connect)?;
        self.request(stream, server, from, length)
    }

    fn request(
        &mut self,
        mut stream: TcpStream,
        server: usize,
        from: u64,
        length: u64,
    ) -> Result<Vec<u8>, RangeError> {
        let begin = Instant::now();
        let url = &self.urls[server];
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: meshd-stage1\r\nRange: bytes={from}-{}\r\n\r\n",
            url.path(),
            url.server(),
            from + length - 1,
        );
        stream.write_all(request.as_bytes()).map_err(RequestError::Send)?;
        let (head, mut bytes) = read_head(&mut stream)?;
        if head.status != 206 {
            return Err(RangeError::Status(head.status));
        }
        let expected = ContentRange { first: from, size: self.size };
        if head.range != Some(expected) || head.length != Some(length) {
            return Err(RangeError::Range);
        }
        let wanted = usize::try_from(length).map_err(|_| RangeError::Range)?;
        let mut received = bytes.len();
        if received > wanted {
            return Err(RangeError::Range);
        }
        bytes.resize(wanted, 0);
        while received < wanted {
            let broken = |cause| RangeError::Broken { received, length, cause };
            if begin.elapsed() > LONGEST {
                return Err(broken(io::ErrorKind::TimedOut.into()));
            }
            match read(&mut stream, &mut bytes[received..]) {
                Ok(0) => return Err(broken(io::ErrorKind::UnexpectedEof.into())),
                Ok(count) => received += count,
                Err(cause) => return Err(broken(cause)),
            }
        }
        self.open = Some((server, stream));
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead as _, BufReader},
        net::TcpListener,
        sync::mpsc,
        thread,
    };

    /// A server that answers so many requests for 4 of 10 bytes on each connection, with a head of
    /// the test. Returns its URL, and the heads of requests as they come.
    fn serve(
        connections: &'static [usize],
        head: &'static str,
    ) -> (HttpUrl, mpsc::Receiver<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            for requests in connections {
                let (mut stream, _) = listener.accept().expect("a client");
                let mut reader = BufReader::new(stream.try_clone().expect("cloned"));
                for _ in 0..*requests {
                    let mut request = String::new();
                    while !request.ends_with("\r\n\r\n") {
                        reader.read_line(&mut request).expect("a request");
                    }
                    // The test has ended without a listener.
                    let _ = sender.send(request);
                    let answer = format!("HTTP/1.1 {head}\r\nContent-Length: 4\r\n\r\n2345");
                    stream.write_all(answer.as_bytes()).expect("sent");
                }
            }
        });
        (format!("http://{address}/blob/a/root").parse().expect("a URL"), receiver)
    }

    const PART: &str = "206 Partial Content\r\nContent-Range: bytes 2-5/10";

    #[test]
    fn connection_is_used_again_and_replaced_when_the_server_closed_it() {
        let (url, requests) = serve(&[2, 1], PART);
        let mut client = RangeClient::new(vec![url], 10);
        for _ in 0..3 {
            assert_eq!(client.fetch(0, 2, 4).expect("fetched"), b"2345");
        }
        let ranges = requests.iter().filter(|head| head.contains("\r\nRange: bytes=2-5\r\n"));
        assert_eq!(ranges.count(), 3);
    }

    #[test]
    fn answer_with_another_range_or_status_is_refused() {
        for (head, cause) in [
            ("206 Partial Content\r\nContent-Range: bytes 1-4/10", "another range"),
            ("206 Partial Content\r\nContent-Range: bytes 2-5/11", "another range"),
            ("206 Partial Content", "another range"),
            ("200 OK", "status 200"),
            ("404 Not Found", "status 404"),
        ] {
            let (url, _requests) = serve(&[1], head);
            let error = RangeClient::new(vec![url], 10).fetch(0, 2, 4).expect_err(head);
            assert!(error.to_string().contains(cause), "{head}: {error}");
        }
        let (url, _requests) = serve(&[1], PART);
        assert!(RangeClient::new(vec![url], 10).fetch(0, 2, 3).is_err(), "longer");
    }
}
