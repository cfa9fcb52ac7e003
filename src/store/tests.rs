//! Tests of the store: atomicity, durability and bounds.

use super::{change_log::ChangeLog as _, records::RecordIndex as _, *};
use meshd_model::fleet::{
    Actor, AuditContext, AuditSeq, BootSession, EventKind, Fingerprint, IdempotencyRecord, Lease,
    Node, PhaseChange, Principal, Stage, StoredResponse, Verb,
};
use meshd_model::operations::{LoginAttempt, MAX_LOGIN_ATTEMPTS};
use meshd_types::{Basis, BootSessionId, CorrelationId, Digest, Hint as _, MacAddr, Timestamp};

fn mac(n: u16) -> MacAddr {
    let [high, low] = n.to_be_bytes();
    MacAddr([2, 0, 0, 0, high, low])
}

fn node(n: u16) -> Node {
    Node::discovered(Basis::Mac(mac(n)), Fingerprint::default(), mac(n), Timestamp::from_millis(1))
}

fn event(detail: &str) -> Event {
    Event::new(Timestamp::from_millis(1), Actor::Central, EventKind::Discovered, detail)
}

fn session(n: u8, of: u16, at: i64) -> BootSession {
    BootSession::open(BootSessionId([n; 12]), mac(of), Stage::Dhcp, Timestamp::from_millis(at))
}

async fn put_node(store: &Store, node: Node) {
    let put = store.commit(|tx| {
        tx.put_node(node);
        tx.event(event("put"));
        Ok::<_, StoreError>(())
    });
    put.await.unwrap();
}

#[tokio::test]
async fn committed_change_exists_after_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    put_node(&store, node(1)).await;
    let lease = Lease {
        mac: mac(1),
        address: [10, 0, 0, 9].into(),
        expires_at: Timestamp::from_millis(7),
        vm: None,
    };
    let put = store.commit(|tx| {
        tx.put_lease(lease.clone());
        tx.put_session(session(1, 1, 5));
        Ok::<_, StoreError>(())
    });
    put.await.unwrap();
    drop(store);

    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.read(|model| model.node_of_mac(mac(1)).cloned()), Some(node(1)));
    assert_eq!(store.read(|model| model.leases().cloned().collect::<Vec<_>>()), [lease]);
    let stored = BootSession { order: 1, ..session(1, 1, 5) };
    assert_eq!(store.read(|model| model.newest_session(mac(1)).cloned()), Some(stored));
    let events = store.events(EventFilter { limit: 10, ..EventFilter::default() }).unwrap();
    assert_eq!(events.len(), 1);
    put_node(&store, node(2)).await;
    let events = store
        .events(EventFilter { after: Some(events[0].0), limit: 10, ..EventFilter::default() })
        .unwrap();
    assert_eq!(events[0].0, EventSeq(1), "numbers go on where they stopped");
}

#[tokio::test]
async fn refused_change_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let refused = store.commit(|tx| {
        tx.put_node(node(1));
        tx.event(event("never"));
        Err::<(), _>(StoreError::UnknownKey { key: "no".into() })
    });
    assert!(refused.await.is_err());
    assert_eq!(store.read(|model| model.nodes().count()), 0);
    assert!(store.events(EventFilter { limit: 10, ..EventFilter::default() }).unwrap().is_empty());
}

#[tokio::test]
async fn nic_moves_between_nodes_in_one_change_in_either_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut one = node(1);
    let mut two = node(2);
    put_node(&store, one.clone()).await;
    put_node(&store, two.clone()).await;
    let owner = |n: u16| store.read(|model| model.node_of_mac(mac(n)).map(|node| node.id));
    for _ in 0..2 {
        // To the other one, and back.
        let nic_mac = *one.fingerprint.macs.iter().next().expect("a NIC");
        one.fingerprint.macs.remove(&nic_mac);
        two.fingerprint.macs.insert(nic_mac);
        let moved = store.commit(|tx| {
            tx.put_node(one.clone());
            tx.put_node(two.clone());
            Ok::<_, StoreError>(())
        });
        moved.await.unwrap();
        assert_eq!(owner(nic_mac.0[5].into()), Some(two.id));
        std::mem::swap(&mut one, &mut two);
    }
    two.former = vec![one.id];
    put_node(&store, two.clone()).await;
    assert_eq!(store.read(|model| model.current_node(one.id).map(|node| node.id)), Some(two.id));
    two.remove(Timestamp::from_millis(3)).unwrap();
    put_node(&store, two.clone()).await;
    assert!(two.fingerprint.macs.iter().all(|nic_mac| owner(nic_mac.0[5].into()) != Some(two.id)));
    assert_eq!(store.read(|model| model.current_node(one.id).map(|node| node.id)), Some(one.id));
}

#[tokio::test]
async fn sessions_of_a_mac_are_bounded_to_the_newest() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for n in 0..20u8 {
        let put = store.commit(|tx| {
            tx.put_session(session(n, 1, i64::from(n)));
            Ok::<_, StoreError>(())
        });
        put.await.unwrap();
    }
    let (count, newest) = store.read(|model| {
        (
            (0..20).filter(|n| model.session(BootSessionId([*n; 12])).is_some()).count(),
            model.newest_session(mac(1)).cloned(),
        )
    });
    assert_eq!(count, MAX_SESSIONS_PER_MAC);
    assert_eq!(newest.map(|session| session.id), Some(BootSessionId([19; 12])));
}

#[tokio::test]
async fn newest_session_is_last_added_despite_clock_set_back() {
    let dir = tempfile::tempdir().unwrap();
    for (n, at) in [(0u8, 9_000_000), (1, 5), (2, 4), (3, 9_000_001), (4, 3)] {
        let store = Store::open(dir.path()).unwrap();
        let put = store.commit(|tx| {
            tx.put_session(session(n, 1, at));
            Ok::<_, StoreError>(())
        });
        put.await.unwrap();
        let newest = store.read(|model| model.newest_session(mac(1)).map(|session| session.id));
        assert_eq!(newest, Some(BootSessionId([n; 12])), "also over restarts");
    }
}

#[tokio::test]
async fn unknown_machine_flood_evicts_no_admitted_node() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let mut known = node(u16::MAX);
    known.change(PhaseChange::Approve).unwrap();
    let flood = u16::try_from(MAX_UNKNOWN_NODES).unwrap() + 10;
    put_node(&store, known.clone()).await;
    let far = Timestamp::from_millis(4_000_000_000_000);
    let ahead = Node { last_seen: far, ..node(u16::MAX - 1) };
    put_node(&store, ahead.clone()).await;
    for chunk in (0..flood).collect::<Vec<_>>().chunks(1000) {
        let put = store.commit(|tx| {
            for n in chunk {
                tx.put_node(Node { last_seen: Timestamp::from_millis(i64::from(*n)), ..node(*n) });
            }
            Ok::<_, StoreError>(())
        });
        put.await.unwrap();
    }
    // Within one transaction the bound is that of its beginning; one machine after the other goes
    // by it exactly.
    for n in 0..10 {
        put_node(&store, Node { last_seen: Timestamp::from_millis(100_000), ..node(flood + n) })
            .await;
    }
    let (unapproved_nodes, first, kept) = store.read(|model| {
        (model.unknown_count(), model.node_of_mac(mac(0)).is_some(), model.node(known.id).is_some())
    });
    assert!(unapproved_nodes <= MAX_UNKNOWN_NODES + 10, "{unapproved_nodes}");
    assert!(!first && kept);
    assert!(store.read(|model| model.node(ahead.id).is_none()), "its clock was in the future");
}

fn open_session(n: u32, stage: Stage) -> BootSession {
    let [a, b, c, d] = n.to_be_bytes();
    let name = BootSessionId(std::array::from_fn(|at| n.to_be_bytes()[at % 4]));
    BootSession::open(
        name,
        MacAddr([2, 1, a, b, c, d]),
        stage,
        Timestamp::from_millis(i64::from(n)),
    )
}

#[test]
fn sessions_of_one_change_respect_the_total_bound() {
    let mut model = Model::default();
    let mut known = node(1);
    known.change(PhaseChange::Approve).unwrap();
    model.put_record(known.id, known.clone());
    let open = |n: u32| BootSession { node: Some(known.id), ..open_session(n, Stage::Online) };
    let full = u32::try_from(MAX_SESSIONS).unwrap();
    (0..full - 5).for_each(|n| drop(model.put_record(open(n).id, open(n))));
    let mut tx = Tx::new(&model);
    (full..full + 20).for_each(|n| tx.put_session(open(n)));
    let staged = tx.into_staged();
    model.apply(staged.records);
    assert_eq!(model.sessions.len(), MAX_SESSIONS);
    let is_kept = |n: u32| model.session(open(n).id).is_some();
    assert!(!is_kept(14) && is_kept(15), "the oldest went");
}

#[test]
fn unknown_mac_flood_evicts_no_boot_session_of_others() {
    let mut model = Model::default();
    let mut known = node(1);
    known.change(PhaseChange::Approve).unwrap();
    model.put_record(known.id, known);
    let put = |model: &mut Model, sessions: &[BootSession]| {
        let mut tx = Tx::new(model);
        sessions.iter().for_each(|session| tx.put_session(session.clone()));
        let staged = tx.into_staged();
        model.apply(staged.records);
    };
    let of_node = session(1, 1, 0);
    let of_new = open_session(u32::MAX, Stage::Script);
    put(&mut model, &[of_node.clone(), of_new.clone()]);
    for n in 0..300 {
        let flood: Vec<_> =
            (n * 100..(n + 1) * 100).map(|n| open_session(n, Stage::Dhcp)).collect();
        put(&mut model, &flood);
    }
    assert!(
        model.session(of_node.id).is_some(),
        "a node that was let in, though it has only begun"
    );
    assert!(model.session(of_new.id).is_some(), "a new machine that boots");
    assert_eq!(model.session_count(), MAX_DHCP_ONLY_SESSIONS + 2);
    assert_eq!(model.sessions_by_mac.len(), MAX_DHCP_ONLY_SESSIONS + 2);
    assert_eq!(
        (model.dhcp_only_sessions.len(), model.unapproved_sessions.len()),
        (MAX_DHCP_ONLY_SESSIONS, MAX_DHCP_ONLY_SESSIONS + 1)
    );
    for n in 0..450 {
        let flood: Vec<_> =
            (n * 100..(n + 1) * 100).map(|n| open_session(1 << 25 | n, Stage::Script)).collect();
        put(&mut model, &flood);
    }
    assert!(model.session(of_node.id).is_some());
    assert_eq!(
        (model.dhcp_only_sessions.len(), model.unapproved_sessions.len()),
        (0, MAX_UNAPPROVED_SESSIONS)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_commits_are_stored_and_published_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let store = std::sync::Arc::new(Store::open(dir.path()).unwrap());
    let mut heard = store.subscribe();
    let writers: Vec<_> = (0..200u16)
        .map(|n| {
            let store = store.clone();
            tokio::spawn(async move { put_node(&store, node(n)).await })
        })
        .collect();
    for writer in writers {
        writer.await.unwrap();
    }
    for seq in 0..200 {
        assert_eq!(
            heard.recv().await.unwrap().0,
            EventSeq(seq),
            "subscribers hear everything, in its order"
        );
    }
    store.close().await.unwrap();
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(store.read(|model| model.nodes().count()), 200);
}

#[tokio::test]
async fn unreadable_or_unknown_record_is_refused_with_its_key() {
    for (key, value) in [("node/00000000", "{"), ("moon/1", "{}")] {
        let dir = tempfile::tempdir().unwrap();
        let raw = journal::Journal::open(&dir.path().join(FOLDER)).unwrap();
        let mut batch = journal::Batch::default();
        batch.insert(key, value);
        raw.append(vec![batch]).unwrap();
        raw.close().unwrap();
        drop(raw);
        let error = Store::open(dir.path()).err().expect("refused").to_string();
        assert!(error.contains(key), "{error}");
    }
}

#[tokio::test]
async fn missing_store_next_to_an_authority_is_refused_until_confirmed() {
    let dir = tempfile::tempdir().unwrap();
    drop(Store::open(dir.path()).unwrap());
    std::fs::create_dir(dir.path().join("ca")).unwrap();
    std::fs::write(dir.path().join("ca/ca.pem"), "the authority").unwrap();
    drop(Store::open(dir.path()).unwrap());
    std::fs::remove_dir_all(dir.path().join(FOLDER)).unwrap();
    let refused = || Store::open(dir.path()).err().expect("refused");
    assert!(matches!(refused(), StoreError::Missing { .. }), "{}", refused());
    assert!(refused().hint().is_some_and(|hint| hint.contains("meshd backup restore")));
    assert!(!dir.path().join(FOLDER).exists(), "nothing was changed");
    std::fs::create_dir(dir.path().join(FOLDER)).unwrap();
    assert!(refused().hint().is_some_and(|hint| hint.contains("confirm-new-store")));
    std::fs::write(dir.path().join("confirm-new-store"), "").unwrap();
    drop(Store::open(dir.path()).unwrap());
    assert!(!dir.path().join("confirm-new-store").exists(), "it is confirmed once");
    Store::open(dir.path()).unwrap();
}

#[tokio::test]
async fn store_opened_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let _first = Store::open(dir.path()).unwrap();
    let second = Store::open(dir.path()).err().expect("refused").to_string();
    assert!(second.contains("another meshd"), "{second}");
}

#[tokio::test]
async fn order_writes_one_audit_line_in_its_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let by = AuditContext::new(Principal::Operator(5), Verb::Approve, CorrelationId([3; 8]));
    let store = Store::open(dir.path()).unwrap();
    let at = Timestamp::from_millis(1);
    let ordered = store.commit(|tx| {
        tx.put_node(node(1));
        for detail in ["discovered -> approved", "cleared"] {
            tx.event(Event::new(at, &by, EventKind::Discovered, detail).of_node(node(1).id));
        }
        tx.event(event("came of no order"));
        Ok::<_, StoreError>(())
    });
    ordered.await.unwrap();
    let refused = store.commit(|tx| {
        tx.event(Event::new(at, &by, EventKind::Discovered, "never"));
        Err::<(), _>(StoreError::UnknownKey { key: "refused".into() })
    });
    refused.await.unwrap_err();
    drop(store);

    let store = Store::open(dir.path()).unwrap();
    let all = AuditFilter { limit: 10, ..AuditFilter::default() };
    let lines = store.audit(&all).unwrap();
    let [(AuditSeq(0), line)] = &lines[..] else { panic!("{lines:?}") };
    assert_eq!(
        (&line.by, line.node, line.detail.as_str()),
        (&by, Some(node(1).id), "discovered -> approved; cleared")
    );
    assert_eq!(store.read(|model| model.audit_log.next()), 1, "numbers go on where they stopped");
    for (other, found) in [
        (AuditFilter { principal: Some(Principal::Operator(6)), ..all.clone() }, 0),
        (AuditFilter { principal: Some(Principal::Operator(5)), ..all.clone() }, 1),
        (AuditFilter { node: Some(node(2).id), ..all.clone() }, 0),
        (AuditFilter { correlation: Some(CorrelationId([4; 8])), ..all.clone() }, 0),
        (AuditFilter { from: AuditSeq(1), ..all }, 0),
    ] {
        assert_eq!(store.audit(&other).unwrap().len(), found, "{other:?}");
    }
}

#[test]
fn idempotency_keys_are_bounded_by_number_and_age() {
    let now =
        Timestamp::from_millis(i64::try_from(IDEMPOTENCY_KEY_LIFETIME.as_millis()).unwrap() * 2);
    let record = |at| IdempotencyRecord { request: Digest([0; 32]), at, answer: None };
    let key = |n: u16| Digest::of(&n.to_be_bytes());
    let mut model = Model::default();
    model.idempotency_records.insert(key(0), record(Timestamp::from_millis(1)));
    assert_eq!(model.surplus_idempotency_keys(now), [key(0)], "its time is over");
    model.idempotency_records.clear();
    for n in 0..u16::try_from(MAX_IDEMPOTENCY_KEYS).unwrap() {
        model
            .idempotency_records
            .insert(key(n), record(Timestamp::from_millis(now.millis() - 1000 + i64::from(n))));
    }
    assert_eq!(model.surplus_idempotency_keys(now), [key(0)], "the oldest of too many");
    assert_eq!(model.surplus_answers(), []);
    for n in 0..u16::try_from(MAX_ANSWERS).unwrap() {
        let answer = Some(StoredResponse { status: 200, body: Some("{}".to_owned()) });
        model.idempotency_records.get_mut(&key(n)).unwrap().answer = answer;
    }
    let kept = IdempotencyRecord {
        answer: Some(StoredResponse { status: 200, body: None }),
        ..record(model.idempotency_records[&key(0)].at)
    };
    assert_eq!(model.surplus_answers(), [(key(0), kept)], "that it was followed stays known");
}

#[tokio::test]
async fn login_attempts_are_bounded_by_number_and_no_clock_removes_them() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let at = |seconds: i64| Timestamp::from_millis(seconds * 1000);
    let key = |number: usize| Digest::of(&number.to_be_bytes());
    let attempt = |now| LoginAttempt::refused(Digest([1; 32]), now);
    let put = async |from: usize, to: usize, now: Timestamp| {
        let stored = store.commit(|tx| {
            (from..to).for_each(|number| tx.put_login_attempt(key(number), attempt(now)));
            Ok::<_, StoreError>(())
        });
        stored.await.unwrap();
    };
    let count = || store.read(|model| model.bmc_logins.len());
    put(0, 1, at(1000)).await;
    put(1, MAX_LOGIN_ATTEMPTS, at(1001)).await;
    put(MAX_LOGIN_ATTEMPTS, MAX_LOGIN_ATTEMPTS + 1, at(1002)).await;
    assert_eq!(count(), MAX_LOGIN_ATTEMPTS);
    assert!(store.read(|model| model.login_attempt(key(0)).is_none()), "the oldest one goes");
    drop(store);
    let store = Store::open(dir.path()).unwrap();
    let stored = store.read(|model| model.login_attempt(key(1)).cloned());
    assert_eq!(stored, Some(attempt(at(1001))), "a restart keeps it");
    let later = store.commit(|tx| {
        tx.put_login_attempt(key(1), attempt(at(1_000_000)));
        Ok::<_, StoreError>(())
    });
    later.await.unwrap();
    let count = store.read(|model| model.bmc_logins.len());
    assert_eq!(count, MAX_LOGIN_ATTEMPTS, "a wrong clock ends no hold");
}
