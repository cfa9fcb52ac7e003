//! Tests of the client against scripted servers.

use super::*;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::StatusCode;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{UnixListener, UnixStream},
};

/// A timeout that no test reaches.
const LONG: Duration = Duration::from_secs(20);

struct Server {
    folder: TempDir,
    listener: UnixListener,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("socket")).unwrap();
        Server { folder, listener }
    }

    fn client(&self, response: Duration) -> Client {
        let endpoint = Endpoint::Unix(self.folder.path().join("socket"));
        Client { endpoint, timeouts: Timeouts { connect: LONG, response } }
    }

    /// Reads one request and answers with `text`.
    async fn answer(&self, text: &str) -> UnixStream {
        let (mut stream, _) = self.listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }
}

fn request() -> Request<Empty<Bytes>> {
    Request::builder().uri("/").header("host", "localhost").body(Empty::new()).unwrap()
}

#[tokio::test]
async fn body_is_read_up_to_its_limit() {
    for (limit, fits) in [(5, true), (4, false)] {
        let server = Server::start();
        let client = server.client(LONG);
        let answer = server.answer("HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nhello");
        let (response, _stream) = tokio::join!(client.send(request()), answer);
        let response = response.unwrap();
        assert_eq!(
            response.status(),
            StatusCode::NOT_FOUND,
            "a response of any status is a success"
        );
        match collect(response.into_body(), limit).await {
            Ok(body) => assert!(fits && body == "hello"),
            Err(error) => {
                assert!(!fits && matches!(error, ClientError::TooLarge { limit: 4 }), "{error:?}")
            }
        }
    }
}

#[tokio::test]
async fn silent_server_is_a_timeout() {
    let server = Server::start();
    let client = server.client(Duration::from_millis(1));
    let error = client.send(request()).await.unwrap_err();
    assert!(matches!(error, ClientError::Timeout { stage: CallStage::Response, .. }), "{error:?}");
}

#[tokio::test]
async fn absent_server_is_a_connect_error() {
    let server = Server::start();
    let mut client = server.client(LONG);
    client.endpoint = Endpoint::Unix(server.folder.path().join("absent"));
    let error = client.send(request()).await.unwrap_err();
    let ClientError::Connect { source, .. } = &error else { panic!("{error:?}") };
    assert_eq!(source.kind(), std::io::ErrorKind::NotFound);
    assert!(error.tls_error().is_none());
}

#[tokio::test]
async fn dropped_body_closes_the_connection() {
    let server = Server::start();
    let client = server.client(LONG);
    let answer = server.answer("HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nhello");
    let (response, mut stream) = tokio::join!(client.send(request()), answer);
    let mut body = response.unwrap().into_body();
    assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "hello");
    drop(body);
    assert_eq!(stream.read(&mut [0; 8]).await.unwrap(), 0);
}

#[tokio::test]
async fn refused_web_socket_has_status_and_body() {
    use tokio_tungstenite::tungstenite::client::IntoClientRequest as _;
    let server = Server::start();
    let client = server.client(LONG);
    let answer = server.answer("HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\n\r\nno");
    let request = "ws://localhost/".into_client_request().unwrap();
    let (opened, _stream) =
        tokio::join!(client.web_socket(request, WebSocketConfig::default()), answer);
    let Err(ClientError::Rejected { status, body }) = opened else { panic!("{opened:?}") };
    assert_eq!((status, body), (StatusCode::FORBIDDEN, Bytes::from("no")));
}

#[test]
fn tls_error_is_found_below_other_errors() {
    let cause = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRevoked);
    let server = Endpoint::Unix("/run/socket".into());
    let error = ClientError::Tls { server, source: std::io::Error::other(cause.clone()) };
    assert_eq!(error.tls_error(), Some(&cause));
}
