//! Tests of orders: audit lines and idempotency keys.

use super::*;
use crate::admin::transport::caller::Caller;
use meshd_api::REASON_HEADER;
use meshd_model::fleet::{Audit, AuditOutcome, IdempotencyRecord, Phase, Principal, Verb};
use meshd_store::{AuditFilter, EventFilter};
use meshd_types::Digest;
use serde_json::{Value, json};

fn log(fixture: &Fixture) -> Vec<Audit> {
    let all = AuditFilter { limit: 100, ..AuditFilter::default() };
    fixture.central.store().audit(&all).expect("read").into_iter().map(|(_, line)| line).collect()
}

fn own_uid() -> Principal {
    Principal::Operator(rustix::process::getuid().as_raw())
}

#[tokio::test]
async fn requests_are_audited_with_actor_verb_reason_and_outcome() {
    let fixture = Fixture::start().await;
    let node = fixture.node;
    let path = |verb: &str| format!("/v1/nodes/{node}/{verb}");
    let why = [(REASON_HEADER, "Umzug ins Rack 7, Größe L")];
    assert_eq!(fixture.order(&path("approve"), "null", &why).await.0, 200);
    // A second approval changes nothing and records no event.
    assert_eq!(fixture.order(&path("approve"), "null", &[]).await.0, 200);
    assert_eq!(fixture.order(&path("release"), "null", &[]).await.0, 409);
    assert_eq!(fixture.order("/v1/nodes/nobody/reboot", "null", &[]).await.0, 404);
    assert_eq!(fixture.order(&path("assign-profile"), "{", &[]).await.0, 400);
    let lines = log(&fixture);
    let seen: Vec<_> = lines
        .iter()
        .map(|line| (line.by.verb, line.outcome.code(), line.target.as_deref()))
        .collect();
    let own = node.to_string();
    assert_eq!(
        seen,
        [
            (Verb::Approve, "done", Some(&*own)),
            (Verb::Approve, "done", Some(&*own)),
            (Verb::Release, "unlawful", Some(&*own)),
            (Verb::Reboot, "no_node", Some("nobody")),
            (Verb::AssignProfile, "bad_request", Some(&*own)),
        ]
    );
    assert!(lines.iter().all(|line| line.by.principal == own_uid()), "{lines:?}");
    assert_eq!(lines[0].by.reason.as_deref(), Some(why[0].1));
    assert_eq!(lines[0].detail, "discovered -> approved");
    let events = fixture
        .central
        .store()
        .events(EventFilter { limit: 10, ..EventFilter::default() })
        .expect("read");
    let of = events
        .iter()
        .find_map(|(_, event)| event.by.as_ref())
        .expect("the change of phase came of an order");
    assert_eq!(*of, lines[0].by, "event and audit log say the same, with one correlation ID");
    let (_, seen) =
        fixture.get::<Value>("GET", &format!("/v1/audit?node={node}&limit=2"), "").await;
    assert_eq!(
        (seen.as_array().map(Vec::len), &seen[1]["verb"]),
        (Some(2), &"assign-profile".into())
    );
    assert_eq!(seen[1]["outcome"]["refused"], "bad_request");
    let (_, none) = fixture.get::<Value>("GET", "/v1/audit?actor=token:nobody", "").await;
    assert_eq!(none, json!([]));
    let long = "x".repeat(501);
    assert_eq!(
        fixture.order(&path("approve"), "null", &[(REASON_HEADER, &long)]).await.0,
        400,
        "a reason is bounded"
    );
}

#[tokio::test]
async fn refused_attempt_to_open_a_shell_is_recorded() {
    let fixture = Fixture::start().await;
    let node = fixture.node.to_string();
    for query in ["", "?unknown=1"] {
        let path = format!("/v1/nodes/{node}/shell{query}");
        assert_eq!(fixture.send("GET", &path, "").await.status(), 400, "{path}");
    }
    let lines = log(&fixture);
    assert_eq!(lines.len(), 2, "{lines:?}");
    for line in lines {
        assert_eq!((line.by.verb, line.target.as_deref()), (Verb::NodeShell, Some(&*node)));
        assert!(matches!(line.outcome, AuditOutcome::Refused(_)), "{line:?}");
    }
}

#[tokio::test]
async fn repeated_request_with_idempotency_key_runs_once() {
    let fixture = Fixture::start().await;
    let path = format!("/v1/nodes/{}/vars", fixture.node);
    let key = [(KEY_HEADER, "0b6f")];
    let order = || fixture.order(&path, r#"{"set":{"mpi_slots":8}}"#, &key);
    let (first, second, third) = tokio::join!(order(), order(), order());
    let done = [&first, &second, &third]
        .into_iter()
        .filter(|(status, again, _)| *status == 200 && !again)
        .count();
    assert_eq!(done, 1, "{first:?} {second:?} {third:?}");
    let (status, again, body) = order().await;
    assert_eq!((status, again, &body["vars"]["mpi_slots"]), (200, true, &8.into()));
    let changes =
        log(&fixture).into_iter().filter(|line| line.detail.contains("mpi_slots")).count();
    assert_eq!(changes, 1, "one transaction changed it");
    let (status, _, refused) = fixture.order(&path, r#"{"set":{"mpi_slots":9}}"#, &key).await;
    assert_eq!((status, &refused["code"]), (409, &"key_reused".into()));
    // A refusal is remembered as well.
    let unknown = format!("/v1/nodes/{}/release", fixture.node);
    for again in [false, true] {
        let answer = fixture.order(&unknown, "null", &[(KEY_HEADER, "2")]).await;
        assert_eq!((answer.0, answer.1, &answer.2["code"]), (409, again, &"unlawful".into()));
    }
    assert_eq!(fixture.order(&path, "{}", &[(KEY_HEADER, "")]).await.0, 400);
}

#[tokio::test]
async fn request_interrupted_by_crash_is_never_executed_again() {
    let fixture = Fixture::start().await;
    let path = format!("/v1/nodes/{}/approve", fixture.node);
    // The stored state of a crash between the key and the execution.
    let slot = Digest::of_fields([own_uid().to_string().as_bytes(), b"k".as_slice()]);
    let request = Digest::of_fields([b"POST".as_slice(), path.as_bytes(), b"null"]);
    let now = fixture.central.now();
    let begun = fixture.central.store().commit(|tx| {
        tx.put_idempotency_record(slot, IdempotencyRecord { request, at: now, answer: None });
        Ok::<_, StoreError>(())
    });
    begun.await.expect("stored");
    let (status, _, refused) = fixture.order(&path, "null", &[(KEY_HEADER, "k")]).await;
    assert_eq!((status, &refused["code"]), (409, &"outcome_unknown".into()));
    assert!(matches!(log(&fixture)[0].outcome, AuditOutcome::Refused(_)));
    assert_eq!(
        fixture.order(&path, "null", &[(KEY_HEADER, "l")]).await.0,
        200,
        "a new key is a new order"
    );
}

#[tokio::test]
async fn token_secret_is_shown_once_despite_repeated_request() {
    let fixture = Fixture::start().await;
    let order = r#"{"name":"ci","role":"viewer","expires_in":60}"#;
    let (status, _, made) =
        fixture.order("/v1/api-tokens/create", order, &[(KEY_HEADER, "t")]).await;
    let secret = made["secret"].as_str().expect("its text").to_owned();
    assert_eq!((status, &made["token"]["name"]), (200, &"ci".into()));
    let (status, _, again) =
        fixture.order("/v1/api-tokens/create", order, &[(KEY_HEADER, "t")]).await;
    assert_eq!((status, &again["code"]), (409, &"answer_not_kept".into()));
    let (status, _, taken) = fixture.order("/v1/api-tokens/create", order, &[]).await;
    assert_eq!((status, &taken["code"]), (409, &"bad_token".into()));
    assert!(fixture.central.admin.api_token(&secret).is_some());
    let (_, listed) = fixture.get::<Value>("GET", "/v1/api-tokens", "").await;
    assert!(!listed.to_string().contains(&secret) && listed[0]["role"] == "viewer", "{listed}");
    assert_eq!(fixture.order("/v1/api-tokens/ci/revoke", "null", &[]).await.0, 200);
    assert!(fixture.central.admin.api_token(&secret).is_none());
    assert_eq!(fixture.order("/v1/api-tokens/ci/revoke", "null", &[]).await.0, 404);
}

#[tokio::test]
async fn token_with_name_of_revoked_token_is_another_caller() {
    let fixture = Fixture::start().await;
    let made = async || {
        let order = r#"{"name":"ci","role":"viewer"}"#;
        let (_, _, made) = fixture.order("/v1/api-tokens/create", order, &[]).await;
        Caller::with(
            fixture
                .central
                .admin
                .api_token(made["secret"].as_str().expect("its text"))
                .expect("honoured"),
        )
    };
    let first = made().await;
    assert!(first.still_may(&fixture.central));
    assert_eq!(fixture.order("/v1/api-tokens/ci/revoke", "null", &[]).await.0, 200);
    let second = made().await;
    assert!(
        !first.still_may(&fixture.central) && second.still_may(&fixture.central),
        "a stream of the first one ends"
    );
    assert_ne!(first.identity(), second.identity(), "it is not answered what the other one asked");
}

#[tokio::test]
async fn bulk_request_with_stale_revision_changes_nothing() {
    let fixture = Fixture::start().await;
    let other = {
        let mac = MacAddr([2, 0, 0, 0, 0, 9]);
        let node = Node::discovered(Basis::Mac(mac), Fingerprint::default(), mac, at(1_000));
        let id = node.id;
        let stored = fixture.central.store().commit(|tx| {
            tx.put_node(node);
            Ok::<_, StoreError>(())
        });
        stored.await.expect("stored");
        id
    };
    let seen = async || {
        let (_, nodes) = fixture.get::<Vec<NodeView>>("GET", "/v1/nodes", "").await;
        nodes
            .iter()
            .map(|node| json!({ "id": node.id, "revision": node.revision }))
            .collect::<Vec<_>>()
    };
    let bulk = async |verb: &str, nodes: &[Value], order: Value| {
        let body = json!({ "nodes": nodes, "order": order }).to_string();
        fixture.order(&format!("/v1/bulk/nodes/{verb}"), &body, &[]).await
    };
    let before = seen().await;
    assert_eq!(fixture.order(&format!("/v1/nodes/{other}/approve"), "null", &[]).await.0, 200);
    let (status, _, refused) = bulk("label", &before, json!({ "set": { "rack": "a" } })).await;
    assert_eq!((status, &refused["code"]), (409, &"changed_since".into()), "{refused}");
    assert!(
        refused["message"].as_str().is_some_and(|text| text.contains(&other.to_string())),
        "{refused}"
    );
    let phases = |id| {
        fixture
            .central
            .store()
            .read(|model| model.node(id).map(|node| (node.phase, node.labels.len())))
    };
    assert_eq!(phases(fixture.node), Some((Phase::Discovered, 0)), "nothing was changed");
    let (status, _, done) = bulk("label", &seen().await, json!({ "set": { "rack": "a" } })).await;
    assert_eq!((status, &done["failed"]), (200, &0.into()), "{done}");
    // One node refuses the order: the other one follows it.
    let (status, _, done) = bulk("maintenance", &seen().await, Value::Null).await;
    assert_eq!((status, &done["failed"]), (200, &2.into()), "{done}");
    let now = seen().await;
    let twice = [now[0].clone(), now[0].clone()];
    for (nodes, order) in [(&now[..0], "null"), (&twice[..], "null"), (&now[..], "5")] {
        let order = serde_json::from_str(order).expect("JSON");
        let (status, _, refused) = bulk("drain", nodes, order).await;
        assert_eq!(status, 400, "{refused}");
    }
    let (status, _, refused) = fixture.order("/v1/bulk/nodes/fence", "{}", &[]).await;
    assert_eq!((status, &refused["code"]), (404, &"not_found".into()), "fencing is one node's");
}

#[tokio::test]
async fn orders_for_an_offline_node_are_refused_or_accepted_as_documented() {
    let fixture = Fixture::start().await;
    let node = fixture.node;
    let set_phase = async |phase: Phase| {
        let stored = fixture.central.store().commit(|tx| {
            tx.edit_node(node, |node| (node.phase, node.drains) = (phase, false));
            Ok::<_, StoreError>(())
        });
        stored.await.expect("stored");
    };
    set_phase(Phase::Offline).await;
    let path = |verb: &str| format!("/v1/nodes/{node}/{verb}");
    let (status, _, error) = fixture.order(&path("doctor"), "null", &[]).await;
    let message = error["message"].as_str().expect("a message");
    assert!(status == 409 && message.contains("cannot run the checks of node"), "{error}");
    let (_, _, error) = fixture.order(&path("reboot"), "null", &[]).await;
    assert!(
        error["message"].as_str().is_some_and(|text| text.contains("cannot reboot node")),
        "{error}"
    );
    let (status, _, drained) = fixture.order(&path("drain"), "null", &[]).await;
    assert_eq!(
        (status, &drained["phase"]),
        (200, &"maintenance".into()),
        "nothing runs there: {drained}"
    );
}

#[tokio::test]
async fn node_is_not_given_a_reserved_name() {
    let fixture = Fixture::start().await;
    let path = format!("/v1/nodes/{}/rename", fixture.node);
    let own = fixture.node.to_string();
    for name in
        ["localhost", "ip6-loopback", "2130706433", "0x7f000001", "0123abcd", "node-0123abcd"]
    {
        let (status, _, error) =
            fixture.order(&path, &json!({ "name": name }).to_string(), &[]).await;
        let message = error["message"].as_str().expect("a message");
        assert!(
            status == 400 && message.contains(&format!("`{name}` is reserved")),
            "{name}: {error}"
        );
    }
    for name in [own.clone(), format!("node-{own}"), "localhost-1".to_owned()] {
        assert_eq!(
            fixture.order(&path, &json!({ "name": name }).to_string(), &[]).await.0,
            200,
            "{name}"
        );
    }
}

#[tokio::test]
async fn events_of_orders_nodes_and_timers_have_reason_and_correlation_id() {
    let fixture = Fixture::start().await;
    let node = fixture.node;
    let session = BootSessionId([7; 12]);
    let stored = fixture.central.store().commit(|tx| {
        for (actor, from, to) in [
            (Actor::Node, Phase::Degraded, Phase::Online),
            (Actor::Central, Phase::Online, Phase::Offline),
        ] {
            tx.event(
                Event::new(at(5_000), actor, EventKind::Phase { from, to }, "")
                    .of_node(node)
                    .in_session(session),
            );
        }
        Ok::<_, StoreError>(())
    });
    stored.await.expect("stored");
    let order = fixture
        .order(&format!("/v1/nodes/{node}/approve"), "null", &[(REASON_HEADER, "moved in")])
        .await;
    assert_eq!(order.0, 200, "{}", order.2);
    let response = fixture.send("GET", "/v1/events?kind=phase", "").await;
    let bytes = response.into_body().collect().await.expect("a whole body").to_bytes();
    let lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let events: Vec<EventView> =
        lines.map(|line| serde_json::from_slice(line).expect("an event")).collect();
    let reasons: Vec<&str> =
        events.iter().map(|event| event.reason.as_deref().expect("a reason")).collect();
    assert_eq!(
        reasons,
        ["all readiness checks pass", "no message came within [agent].offline_after", "moved in"]
    );
    for event in &events[..2] {
        assert_eq!(event.correlation_id, Some(session.to_string()));
    }
    let by = events[2].by.as_ref().expect("an order").correlation_id.to_string();
    assert_eq!(events[2].correlation_id, Some(by));
}

#[tokio::test]
async fn vm_of_an_api_user_is_completed_by_its_template() {
    let fixture = Fixture::start().await;
    let create =
        async |vm: Value| fixture.order("/v1/vms", &json!({ "vm": vm }).to_string(), &[]).await;
    let refusal = async |vm: Value| {
        let (status, _, error) = create(vm).await;
        (status, error["message"].as_str().expect("a message").to_owned())
    };
    // No node of this rack runs VMs, so a valid VM reaches the placement and is refused there.
    let (status, message) = refusal(json!({ "name": "a" })).await;
    assert!(
        status == 409 && message.contains("no node"),
        "the template `default` has all settings: {message}"
    );
    for (more, fault) in [
        (json!({ "template": "large" }), "template: the site has no template `large`"),
        (json!({ "settings": { "vcpus": 0 } }), "vcpus: 0 is out of range"),
        (json!({ "units": { "each": vec!["any"; 33] } }), "units: 33 units"),
    ] {
        let mut vm = json!({ "name": "a" });
        vm.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let (status, message) = refusal(vm).await;
        assert!(status == 400 && message.contains(fault), "{fault}: {message}");
    }
    let (status, message) = refusal(json!({ "name": "a", "settings": { "vcpu": 1 } })).await;
    assert!(status == 400 && message.contains("vcpu"), "an unknown setting: {message}");
}
