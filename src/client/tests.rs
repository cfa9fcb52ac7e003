//! Tests of the client against scripted servers.

use super::*;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::StatusCode;
use std::net::Ipv4Addr;
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
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

/// A connection that is dropped with unread bytes is reset. The server then fails to answer a ping,
/// before it reads what comes after the ping.
#[tokio::test]
async fn last_message_is_read_though_a_ping_of_the_server_was_not() {
    use futures_util::{SinkExt as _, StreamExt as _};
    use tokio_tungstenite::tungstenite::{Message, protocol::Role};
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    let mut server = WebSocketStream::from_raw_socket(far, Role::Server, None).await;
    server.send(Message::Ping(Bytes::new())).await.unwrap();
    near.readable().await.unwrap();
    let stream: Box<dyn Stream> = Box::new(near);
    let client = WebSocketStream::from_raw_socket(stream, Role::Client, None).await;
    let ending = async {
        let (mut out, mut incoming) = client.split();
        // The pong to it meets the reset.
        out.send(Message::Ping(Bytes::new())).await.unwrap();
        out.send(Message::Text("the reason".into())).await.unwrap();
        close(&mut out, &mut incoming).await;
    };
    let reading = async {
        let mut texts = Vec::new();
        while let Some(message) = server.next().await {
            match message.expect("no reset") {
                Message::Text(text) => texts.push(text.to_string()),
                Message::Close(_) => break,
                _ => {}
            }
        }
        drop(server);
        texts
    };
    let ((), texts) = tokio::join!(ending, reading);
    assert_eq!(texts, ["the reason"]);
}

#[test]
fn tls_error_is_found_below_other_errors() {
    let cause = rustls::Error::AlertReceived(rustls::AlertDescription::CertificateRevoked);
    let server = Endpoint::Unix("/run/socket".into());
    let error = ClientError::Tls { server, source: std::io::Error::other(cause.clone()) };
    assert_eq!(error.tls_error(), Some(&cause));
}
