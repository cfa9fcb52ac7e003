//! Containers: their pages for each role, the form, confirmations, logs and shells.

use super::{Browser, FakeApi, HOSTILE};
use axum::{
    http::StatusCode,
    response::{IntoResponse as _, Response},
};
use serde_json::{Value, json};

const AT: &str = "2026-01-01T00:00:00Z";
const DIGEST: &str = "3333333333333333333333333333333333333333333333333333333333333333";

/// A container whose second replica has no node.
fn web() -> Value {
    json!({
        "name": "web", "desired_state": "run", "running": 1, "image": "nginx", "digest": DIGEST,
        "argv": ["/bin/server", HOSTILE], "env": ["TOKEN"], "working_dir": "/srv", "uid": 33, "gid": 34,
        "cpu_millis": 1500, "memory_mib": 256, "scratch_mib": 64, "ports": [{ "node": 8080, "container": 80 }],
        "restart": { "when": "on_failure", "max": 1 }, "stop_seconds": 10, "owner": "token:ada", "created_at": AT,
        "health": { "probe": "http", "port": 80, "path": "/up", "interval_seconds": 10, "timeout_seconds": 5,
            "failures": 3, "start_seconds": 0 },
        "replicas": [
            { "id": "web.0", "phase": "healthy", "node": "3f9a1c0e", "run": 1, "restarts": 2, "since": AT },
            { "id": "web.1", "phase": "unplaced", "run": 1, "restarts": 0, "detail": HOSTILE },
        ],
    })
}

/// The answer of the API; `None` for a path of another test.
pub fn answer(path: &str, query: &str) -> Option<Value> {
    Some(match path {
        "/v1/containers" if query.contains("state=failed") => json!([]),
        // The order to run one: lists have parameters.
        "/v1/containers" if query.is_empty() => web(),
        "/v1/containers" => json!([web()]),
        "/v1/containers/web.0/logs" => json!(format!("started {HOSTILE}")),
        path if path.starts_with("/v1/containers/web") => web(),
        "/v1/search" => json!({ "total": 1, "hits": [
            { "kind": "container", "id": "web", "name": "web", "state": "1/2 run", "field": "name", "value": "web" }
        ] }),
        _ => return None,
    })
}

/// Endless pages of events. Those of this container are on the second page and the third.
pub fn events(query: &str) -> Response {
    let page: u32 = query.split_once("after=c").map_or(0, |(_, page)| page.parse().expect("ours"));
    let event = |detail: String| json!({ "seq": page, "at": AT, "kind": "container", "node": null, "session": null, "actor": "node", "detail": detail });
    let own = if (1..3).contains(&page) { "web.0" } else { "web.prod.0" };
    let lines =
        [event(format!("container {own}: page {page}")), event(format!("container web2: {page}"))];
    let lines = lines.map(|line| format!("{line}\n")).concat();
    ([("x-next-cursor", format!("c{}", page + 1))], lines).into_response()
}

fn last(api: &FakeApi) -> (String, Value) {
    api.requests.lock().expect("no panic").last().cloned().expect("a request")
}

async fn page(role: &'static str, path: &str) -> String {
    let page = Browser::signed_in(&FakeApi::new(role)).await.get(path).await;
    assert!(page.status.is_success(), "{path}: {}", page.text);
    page.text
}

#[tokio::test]
async fn container_page_shows_spec_and_replicas_and_escapes_their_texts() {
    let shown = page("viewer", "/ui/containers/web").await;
    for part in [
        "1 of 2 runs</span>",
        "<code>/bin/server</code>",
        "TOKEN<span class=\"quiet\"> (values are not shown)",
        "<dd>1.5</dd>",
        "<dd>256.0 MiB</dd>",
        "<dd>8080:80</dd>",
        "on failure, once",
        "<code>http:80/up</code> every 10 s, timeout 5 s, unhealthy after 3 failures",
        "href=\"/ui/nodes/3f9a1c0e\"",
        ">healthy</span>",
        ">unplaced</span>",
    ] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let is_plain = !shown.contains("<script>") && !shown.contains("<img");
    assert!(is_plain && shown.contains("&lt;script&gt;") && !shown.contains('\u{1b}'), "{shown}");
}

#[tokio::test]
async fn container_page_offers_what_the_role_permits() {
    let log = "href=\"/ui/containers/web.0/log\"";
    let shell = "href=\"/ui/containers/web.0/shell\"";
    let orders = ["action=\"/ui/containers/web/start\"", "href=\"/ui/containers/web/delete\""];
    for (role, orders_shown, shell_shown) in
        [("viewer", false, false), ("operator", true, false), ("admin", true, true)]
    {
        let shown = page(role, "/ui/containers/web").await;
        for part in orders.into_iter().chain([log]) {
            assert_eq!(shown.contains(part), orders_shown, "{role}: {part}");
        }
        assert_eq!(shown.contains(shell), shell_shown, "{role}");
        assert!(!shown.contains("/ui/containers/web.1/"), "a replica without a node has no log");
        let list = page(role, "/ui/containers").await;
        assert_eq!(list.contains("/ui/run-container"), orders_shown, "{role}");
        let form = page(role, "/ui/run-container").await;
        assert_eq!(form.contains("name=\"argv\""), orders_shown, "{role}");
        let confirmation = page(role, "/ui/containers/web/stop").await;
        assert_eq!(confirmation.contains("button class=\"danger\""), orders_shown, "{role}");
    }
}

#[tokio::test]
async fn container_list_has_filters_and_a_problem() {
    let list = page("viewer", "/ui/containers?q=web&node=n1").await;
    for part in ["1 container</p>", "href=\"/ui/containers/web\"", "web.1: &lt;script", "8080:80"] {
        assert!(list.contains(part), "{part}: {list}");
    }
    assert!(list.contains("name=\"node\" value=\"n1\""), "{list}");
    let none = page("viewer", "/ui/containers?state=failed").await;
    assert!(none.contains("There is no container.") && none.contains("\"failed\" selected"));
    let list = page("viewer", "/ui/containers?image=nginx").await;
    assert!(list.contains("value=\"nginx\" selected"), "a known image is chosen: {list}");
    assert!(!list.contains("value=\"free\""), "a disk of a VM is no image: {list}");
    let digest = page("viewer", &format!("/ui/containers?image={DIGEST}")).await;
    assert!(digest.contains(&format!("value=\"{DIGEST}\" selected")), "{digest}");
}

#[tokio::test]
async fn container_is_linked_where_its_node_and_its_image_are() {
    let link = "href=\"/ui/containers/web\"";
    for path in ["/ui/nodes/3f9a1c0e?tab=work", "/ui/volumes", "/ui/search?q=web"] {
        let shown = page("operator", path).await;
        assert!(shown.contains(link), "{path}: {shown}");
    }
    let overview = page("viewer", "/ui/").await;
    let chip = "class=\"count warn\" href=\"/ui/containers\"><strong>1/2</strong> replicas run";
    assert!(overview.contains(chip), "{overview}");
    let shown = page("operator", "/ui/nodes/3f9a1c0e?tab=work").await;
    assert!(!shown.contains("web.1"), "it is not on this node: {shown}");
}

#[tokio::test]
async fn container_form_sends_the_order_and_never_sends_variables_back() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    let form = browser.get("/ui/run-container").await.text;
    for part in [
        "name=\"key\"",
        "name=\"memory\" value=\"256M\"",
        &format!("value=\"{DIGEST}\""),
        "name=\"restart\" value=\"always\"",
    ] {
        assert!(form.contains(part), "{part}: {form}");
    }
    let fields = format!(
        "key=k&name=web&image={DIGEST}&replicas=2&memory=1G&cpus=0.5&ports=8080:80+53:53&health=tcp:80\
         &health_interval=7&env=A%3D1%0D%0A%0D%0ATOKEN%3Ds3cr3t%3D++%0D%0A&argv=/bin/x%0D%0A-a+b&restart=never&stop_seconds=3"
    );
    let done = browser.post("/ui/containers", &fields).await;
    assert_eq!(done.location(), "/ui/containers/web", "{}", done.text);
    let order = json!({
        "name": "web", "image": DIGEST, "replicas": 2, "argv": ["/bin/x", "-a b"],
        "env": { "A": "1", "TOKEN": "s3cr3t=  " }, "cpu_millis": 500, "memory_mib": 1024,
        "ports": [{ "node": 8080, "container": 80 }, { "node": 53, "container": 53 }],
        "restart": { "when": "never" }, "stop_seconds": 3,
        "health": { "probe": "tcp", "port": 80, "interval_seconds": 7, "timeout_seconds": 5, "failures": 3, "start_seconds": 0 },
    });
    assert_eq!(last(&api), ("/v1/containers".to_owned(), order));
    for (wrong, text) in [
        ("ports=80:x", "published port is not valid"),
        ("cpus=many", "number of CPUs is not valid"),
        ("replicas=x", "number of replicas is not valid"),
        ("memory=much", "memory is not valid"),
        ("health=udp:1", "health check is not valid"),
        ("restart=sometimes", "restart is not valid"),
        ("user=root", "user is not valid"),
        ("name=A+B", "name is not valid"),
    ] {
        let fields = format!("name=web&image={DIGEST}&argv=/bin/y%26&env=TOKEN%3Ds3cr3t&{wrong}");
        let fields =
            if wrong.starts_with("name") { fields.replacen("name=web&", "", 1) } else { fields };
        let refused = browser.post("/ui/containers", &fields).await;
        assert_eq!(refused.status, StatusCode::BAD_REQUEST, "{wrong}");
        assert!(refused.text.contains(text), "{text}: {}", refused.text);
        assert!(refused.text.contains("/bin/y&amp;"), "the other fields are kept");
        assert!(!refused.text.contains("s3cr3t"), "{wrong}: {}", refused.text);
        assert!(refused.text.contains("Type the variables again"), "{wrong}");
    }
}

#[tokio::test]
async fn order_that_ends_processes_is_confirmed_with_their_names() {
    let api = FakeApi::new("operator");
    let mut browser = Browser::signed_in(&api).await;
    for (verb, effect) in [("stop", "keep the logs"), ("delete", "delete the logs")] {
        let shown = browser.get(&format!("/ui/containers/web/{verb}")).await.text;
        for part in ["1 replica ends", "web.0 (healthy) on ", "SIGKILL after 10 s", effect] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(shown.contains("name=\"key\"") && !shown.contains("web.1"), "{shown}");
    }
    for (verb, to) in [
        ("start", "/ui/containers/web"),
        ("stop", "/ui/containers/web"),
        ("delete", "/ui/containers"),
    ] {
        let done = browser.post(&format!("/ui/containers/web/{verb}"), "key=k&reason=old").await;
        assert_eq!(done.location(), to, "{}", done.text);
        assert_eq!(last(&api), (format!("/v1/containers/web/{verb}"), Value::Null));
    }
    assert_eq!(browser.get("/ui/containers/web/erase").await.status, StatusCode::NOT_FOUND);
    assert_eq!(browser.post("/ui/containers/web/erase", "").await.status, StatusCode::NOT_FOUND);
    let drain = "action=drain&node=3f9a1c0e~r1~n1";
    let preview = browser.post("/ui/actions/preview", drain).await.text;
    let part = "replica <a href=\"/ui/containers/web\">web.0</a> (healthy)";
    assert!(preview.contains(part) && preview.contains("1 replica, "), "{preview}");
}

#[tokio::test]
async fn log_of_a_replica_is_live_and_escaped() {
    let shown = page("operator", "/ui/containers/web.0/log").await;
    assert!(
        shown.contains("id=\"log\" data-live") && shown.contains("started &lt;script"),
        "{shown}"
    );
    assert!(shown.contains("href=\"/ui/containers/web.1/log\""), "the other replica: {shown}");
    let mut browser = Browser::signed_in(&FakeApi::new("operator")).await;
    for replica in ["web", "web.7", "web.00"] {
        let shown = browser.get(&format!("/ui/containers/{replica}/log")).await;
        assert_eq!(shown.status, StatusCode::NOT_FOUND, "{replica}: {}", shown.text);
    }
}

#[tokio::test]
async fn container_page_searches_further_pages_for_its_events() {
    let api = FakeApi::new("viewer");
    let shown = Browser::signed_in(&api).await.get("/ui/containers/web").await.text;
    for part in ["web.0: page 1", "web.0: page 2"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(!shown.contains("web.prod.0") && !shown.contains("web2"), "{shown}");
    let requests = api.requests.lock().expect("no panic");
    let pages = requests.iter().filter(|(path, _)| path == "/v1/events").count();
    assert_eq!(pages, 10, "the search has an end");
}
