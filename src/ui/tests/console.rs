//! The console page over a guest, or a shell, that greets and then echoes in upper case.

use super::*;
use crate::{OpenSocket, Opening, SocketRefusal};
use axum::http::Extensions;
use futures_util::{SinkExt as _, StreamExt as _};
use meshd_api::ErrorView;
use tokio_tungstenite::{accept_async, client_async, tungstenite::Message};

const VM: &str = "0b1f6bd0-8c4d-4c0c-9d1e-3c5a1f0e7a11";
const CONSOLE: &str = "/ui/vms/0b1f6bd0-8c4d-4c0c-9d1e-3c5a1f0e7a11/console";

/// Opens consoles for requests with the token.
pub(super) fn guest() -> OpenSocket {
    Arc::new(|request: axum::http::Request<()>, _: Extensions| -> Opening {
        Box::pin(async move {
            let is_known = request
                .headers()
                .get(AUTHORIZATION)
                .is_some_and(|it| it == &format!("Bearer {TOKEN}"));
            let opens = [
                format!("/v1/vms/{VM}/console"),
                format!("/v1/vms/{VM}/shell"),
                "/v1/nodes/3f9a1c0e/shell".to_owned(),
                "/v1/containers/web.0/exec".to_owned(),
            ];
            if !is_known || !opens.iter().any(|path| request.uri().path() == path) {
                let [code, message, hint, correlation_id] =
                    ["forbidden", "no console", "", "c"].map(str::to_owned);
                let refusal: SocketRefusal =
                    (StatusCode::FORBIDDEN, ErrorView { code, message, hint, correlation_id });
                return Err(refusal);
            }
            let query = request.uri().query().unwrap_or_default();
            let program = query.split_once("argv=").map(|(_, argv)| argv.to_owned());
            let (near, far) = tokio::io::duplex(4096);
            tokio::spawn(async move {
                let mut socket = accept_async(far).await.expect("a WebSocket");
                socket
                    .send(Message::Binary("login: <b>\u{1b}[31mred\u{1b}[0m ".into()))
                    .await
                    .expect("sent");
                if let Some(program) = program {
                    let ends = program.contains("false");
                    socket.send(Message::Binary(program.into())).await.expect("sent");
                    if ends {
                        let note = r#"{"note":"exited","code":1}"#;
                        socket.send(Message::Text(note.into())).await.expect("sent");
                        return;
                    }
                }
                while let Some(Ok(Message::Binary(typed))) = socket.next().await {
                    if typed.as_ref() == b"exit\r" {
                        let note = r#"{"note":"exited","code":3}"#;
                        socket.send(Message::Text(note.into())).await.expect("sent");
                        break;
                    }
                    let echo = typed.to_ascii_uppercase();
                    if socket.send(Message::Binary(echo.into())).await.is_err() {
                        break;
                    }
                }
            });
            let near: Box<dyn meshd_client::Stream> = Box::new(near);
            Ok(client_async(request, near).await.expect("a WebSocket").0)
        })
    })
}

/// A VM; only one name has the UUID of the guest.
pub(super) fn vm(path: &str) -> Value {
    let uuid = if path.ends_with(VM) { VM } else { "0b1f6bd0-8c4d-4c0c-9d1e-000000000000" };
    json!({
        "uuid": uuid, "name": "web-1", "state": "running", "node": null, "since": null, "restarts": 0, "vcpus": 1,
        "memory": "1G", "units": [], "unit_selectors": [], "volumes": [], "nics": [], "on_node_loss": "wait", "start": 1,
        "created_at": null, "desired_state": "run"
    })
}

/// Asks for screens until one has a text.
async fn screen_with(browser: &mut Browser, text: &str) -> String {
    screen_of(browser, CONSOLE, text).await
}

async fn screen_of(browser: &mut Browser, page: &str, text: &str) -> String {
    let mut after = "0".to_owned();
    loop {
        let shown = browser.get(&format!("{page}/screen?after={after}")).await;
        assert_eq!(shown.status, StatusCode::OK, "{}", shown.text);
        after = shown.headers["x-screen"].to_str().expect("text").to_owned();
        if shown.text.contains(text) {
            return shown.text;
        }
    }
}

/// Asks for screens until the console has ended; returns the reason.
async fn end_of(browser: &mut Browser, page: &str) -> String {
    let mut after = "0".to_owned();
    loop {
        let shown = browser.get(&format!("{page}/screen?after={after}")).await;
        assert_eq!(shown.status, StatusCode::OK, "{}", shown.text);
        after = shown.headers["x-screen"].to_str().expect("text").to_owned();
        let why = shown.headers["x-ended"].to_str().expect("text").to_owned();
        if !why.is_empty() {
            return why;
        }
    }
}

#[tokio::test]
async fn console_input_reaches_guest_and_screen_is_escaped() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let page = browser.get(CONSOLE).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    assert!(page.text.contains("data-console") && page.text.contains("Shift+Tab"), "{}", page.text);
    let screen = screen_with(&mut browser, "login:").await;
    assert!(screen.contains("&lt;b&gt;<span class=\"f1\">red</span>"), "{screen}");
    assert_eq!(
        browser.post(&format!("{CONSOLE}/input"), "root").await.status,
        StatusCode::NO_CONTENT
    );
    screen_with(&mut browser, "ROOT").await;
    let typed = browser.post(&format!("{CONSOLE}/line"), "line=ls+-l").await;
    assert_eq!((typed.status, typed.location()), (StatusCode::SEE_OTHER, CONSOLE));
    screen_with(&mut browser, "LS -L").await;
    // Somebody who comes later sees the screen at once.
    assert!(browser.get(CONSOLE).await.text.contains("ROOTLS -L"));
}

#[tokio::test]
async fn console_is_bound_to_its_session() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    assert_eq!(
        browser.get(&format!("{CONSOLE}/screen")).await.status,
        StatusCode::GONE,
        "not opened yet"
    );
    browser.get(CONSOLE).await;
    screen_with(&mut browser, "login:").await;
    let foreign = browser
        .send(Method::POST, &format!("{CONSOLE}/input"), Some("https://evil.example"), "x")
        .await;
    assert_eq!(foreign.status, StatusCode::FORBIDDEN);
    let cookie = browser.cookie.clone();
    browser.post("/ui/sign-out", "").await;
    browser.cookie = cookie;
    let answer = browser.get(&format!("{CONSOLE}/screen?after=0")).await;
    assert_eq!((answer.status, answer.location()), (StatusCode::SEE_OTHER, "/ui/sign-in"));
}

#[tokio::test]
async fn console_refusal_of_api_is_shown_as_page() {
    let api = FakeApi::new("viewer");
    let mut browser = Browser::signed_in(&api).await;
    let page = browser.get("/ui/vms/another/console").await;
    assert_eq!(page.status, StatusCode::FORBIDDEN);
    assert!(page.text.contains("no console"), "{}", page.text);
}

#[tokio::test]
async fn shell_page_types_into_a_node_and_shows_its_exit_code() {
    const SHELL: &str = "/ui/nodes/3f9a1c0e/shell";
    let api = FakeApi::new("admin");
    let mut browser = Browser::signed_in(&api).await;
    assert!(browser.get("/ui/nodes/3f9a1c0e").await.text.contains(SHELL), "the node has a button");
    let opened = browser.post(SHELL, "").await;
    assert_eq!((opened.status, opened.location()), (StatusCode::SEE_OTHER, SHELL));
    let page = browser.get(SHELL).await;
    assert_eq!(page.status, StatusCode::OK, "{}", page.text);
    assert!(page.text.contains("Shell of") && page.text.contains("root"), "{}", page.text);
    screen_of(&mut browser, SHELL, "login:").await;
    let typed = browser.post(&format!("{SHELL}/line"), "line=ls+-l").await;
    assert_eq!((typed.status, typed.location()), (StatusCode::SEE_OTHER, SHELL));
    screen_of(&mut browser, SHELL, "LS -L").await;
    browser.post(&format!("{SHELL}/line"), "line=exit").await;
    let why = end_of(&mut browser, SHELL).await;
    assert_eq!(why, "exit code 3");
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    assert!(!browser.get("/ui/nodes/3f9a1c0e").await.text.contains(SHELL), "admins only");
}

#[tokio::test]
async fn shell_of_guest_is_beside_its_console_for_admins() {
    let page = format!("/ui/vms/{VM}");
    let shell = format!("/ui/vms/{VM}/shell");
    for (role, has_button) in [("operator", false), ("admin", true)] {
        let mut browser = Browser::signed_in(&FakeApi::new(role)).await;
        let shown = browser.get(&page).await;
        assert_eq!(shown.text.contains(&shell), has_button, "{role}: {}", shown.text);
    }
}

#[tokio::test]
async fn shell_is_opened_by_its_form_alone_and_never_by_a_visit() {
    let guest = format!("/ui/vms/{VM}/shell");
    for shell in ["/ui/nodes/3f9a1c0e/shell", &guest, REPLICA] {
        is_opened_by_its_form_alone(shell).await;
    }
}

const REPLICA: &str = "/ui/containers/web.0/shell";

#[tokio::test]
async fn shell_of_a_replica_runs_the_program_of_its_form() {
    for (form, argv) in
        [("", "%5B%22%2Fbin%2Fsh%22%5D"), ("program=ash+-l", "%5B%22ash%22%2C%22-l%22%5D")]
    {
        let mut browser = Browser::signed_in(&FakeApi::new("admin")).await;
        let page = browser.get(REPLICA).await.text;
        assert!(page.contains("name=\"program\" value=\"/bin/sh\""), "{page}");
        assert!(page.contains("href=\"/ui/containers/web\">web.0</a>"), "{page}");
        browser.post(REPLICA, form).await;
        screen_of(&mut browser, REPLICA, argv).await;
    }
}

#[tokio::test]
async fn program_that_ends_at_once_leaves_its_output_and_exit_code() {
    let mut browser = Browser::signed_in(&FakeApi::new("admin")).await;
    browser.post(REPLICA, "program=/bin/false").await;
    assert_eq!(end_of(&mut browser, REPLICA).await, "exit code 1");
    let page = browser.get(REPLICA).await.text;
    for part in ["%2Fbin%2Ffalse", "The program ended: exit code 1.", "name=\"program\""] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(!page.contains("console.js"), "nothing changes any more: {page}");
    browser.post(REPLICA, "program=ash").await;
    let page = browser.get(REPLICA).await.text;
    assert!(page.contains("console.js") && !page.contains("exit code"), "{page}");
}

#[tokio::test]
async fn shell_form_sent_twice_starts_one_program_and_refuses_another() {
    let count = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let api = FakeApi::new("admin");
    let counted = count.clone();
    let open_socket: OpenSocket = Arc::new(move |request, origin| {
        counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        guest()(request, origin)
    });
    let environment = Environment { open_socket, ..environment(api.router(), SignIn::Token) };
    let ui = router(environment);
    let mut first = Browser { host: "meshd.example:8443", ui, cookie: None };
    first.post("/ui/sign-in", &format!("token={TOKEN}")).await;
    let mut second =
        Browser { host: first.host, ui: first.ui.clone(), cookie: first.cookie.clone() };
    let form = "program=ash+-l";
    let (one, two) = tokio::join!(first.post(REPLICA, form), second.post(REPLICA, form));
    for sent in [one, two, first.post(REPLICA, form).await] {
        assert_eq!(sent.location(), REPLICA, "{}", sent.text);
    }
    assert_eq!(count.load(std::sync::atomic::Ordering::Relaxed), 1);
    let refused = first.post(REPLICA, "program=/bin/sh").await;
    assert_eq!(refused.status, StatusCode::CONFLICT, "{}", refused.text);
    assert!(refused.text.contains("another program runs"), "{}", refused.text);
}

async fn is_opened_by_its_form_alone(shell: &str) {
    let api = FakeApi::new("admin");
    let mut browser = Browser::signed_in(&api).await;
    let is_open = async |browser: &mut Browser| {
        let screen = browser.get(&format!("{shell}/screen?after=0")).await;
        screen.status != StatusCode::GONE
    };
    for _ in 0..2 {
        let page = browser.get(shell).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.text);
        assert!(!page.text.contains("data-console") && page.text.contains("Open shell"));
        assert!(!is_open(&mut browser).await, "a visit opens nothing");
    }
    for origin in [Some("https://evil.example"), None] {
        let foreign = browser.send(Method::POST, shell, origin, "").await;
        assert_eq!(foreign.status, StatusCode::FORBIDDEN, "{origin:?}");
    }
    assert!(!is_open(&mut browser).await, "the form of another site opens nothing");
    for (part, typed, text) in [("line", "line=ls", "LS"), ("input", "df", "DF")] {
        let opened = browser.post(shell, "").await;
        assert_eq!((opened.status, opened.location()), (StatusCode::SEE_OTHER, shell));
        browser.post(&format!("{shell}/{part}"), typed).await;
        screen_of(&mut browser, shell, text).await;
    }
    let screen = screen_of(&mut browser, shell, "DF").await;
    assert!(screen.contains("LS"), "a form that is sent again keeps the shell: {screen}");
    browser.post(&format!("{shell}/line"), "line=exit").await;
    assert_eq!(end_of(&mut browser, shell).await, "exit code 3");
    let page = browser.get(shell).await;
    assert!(!page.text.contains("data-console"), "a reload opens no other shell: {}", page.text);
}
