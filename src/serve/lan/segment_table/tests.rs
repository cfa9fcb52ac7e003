//! Connections of machines and strangers, from their SYN to their end.

use super::*;

const MACHINE: MacAddr = MacAddr([2, 0, 0, 0, 0, 7]);
const STRANGER: MacAddr = MacAddr([2, 0, 0, 0, 0, 9]);
const START: Duration = Duration::ZERO;

fn ends(port: u16) -> Ends {
    let client = SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 9), port);
    Ends { client, server: SocketAddrV4::new(Ipv4Addr::new(10, 0, 0, 1), 8080) }
}

fn segment(port: u16, opens: bool) -> Seen {
    Seen::Segment { ends: ends(port), opens }
}

fn anybody(_: Ipv4Addr) -> Expected {
    Expected::Machine(None)
}

#[test]
fn second_source_in_a_connection_is_foreign_and_reported_once() {
    let mut table = SegmentTable::default();
    assert!(table.observe(START, segment(1, true), MACHINE, anybody).is_empty());
    let fate = table.accept(ends(1));
    assert!(table.observe(START, segment(1, false), MACHINE, anybody).is_empty());
    assert_eq!(table.sources(&ends(1)), (vec![MACHINE], true));
    let foreign = table.observe(START, segment(1, false), STRANGER, anybody);
    let [ForeignSegment { source: STRANGER, expected: Some(MACHINE), fate: reported, .. }] =
        &foreign[..]
    else {
        panic!("{foreign:?}")
    };
    assert!(Arc::ptr_eq(reported, &fate) && reported.claim_alarm(None) && !fate.claim_alarm(None));
    assert!(table.observe(START, segment(1, false), STRANGER, anybody).is_empty(), "reported once");
    assert_eq!(table.sources(&ends(1)).0, [MACHINE, STRANGER]);
}

#[test]
fn fragment_makes_sources_of_its_client_uncertain_and_ends_no_connection() {
    let mut table = SegmentTable::default();
    table.observe(START, segment(1, true), MACHINE, anybody);
    let fate = table.accept(ends(1));
    let machine = |_: Ipv4Addr| Expected::Machine(Some(MACHINE));
    let fragment = Seen::Fragment { client: *ends(1).client.ip() };
    let foreign = table.observe(START, fragment, STRANGER, machine);
    assert!(
        foreign.len() == 1 && !Arc::ptr_eq(&foreign[0].fate, &fate),
        "one alarm, and no connection ends"
    );
    assert!(table.observe(START, fragment, STRANGER, machine).is_empty(), "reported once");
    assert_eq!(table.sources(&ends(1)), (vec![MACHINE, STRANGER], false));
    table.observe(START, segment(2, true), MACHINE, anybody);
    assert_eq!(table.sources(&ends(2)), (vec![MACHINE], true), "a connection after the fragment");
}

#[test]
fn sender_of_fragments_is_named_also_if_they_began_before_the_lease() {
    let mut table = SegmentTable::default();
    let fragment = Seen::Fragment { client: *ends(1).client.ip() };
    // Nobody is known to have the address, so the fragment is not foreign.
    assert!(table.observe(START, fragment, STRANGER, anybody).is_empty());
    let machine = |_: Ipv4Addr| Expected::Machine(Some(MACHINE));
    table.observe(START, segment(1, true), MACHINE, machine);
    table.accept(ends(1));
    table.observe(START, fragment, STRANGER, machine);
    assert_eq!(table.sources(&ends(1)), (vec![MACHINE, STRANGER], false));
}

#[test]
fn fragments_are_recorded_only_while_their_client_has_a_connection() {
    let mut table = SegmentTable::default();
    table.observe(START, segment(1, true), MACHINE, anybody);
    table.accept(ends(1));
    for client in 0..10_000 {
        table.observe(START, Seen::Fragment { client: Ipv4Addr::from(client) }, STRANGER, anybody);
    }
    assert_eq!((table.fragments_of.len(), table.sources(&ends(1))), (0, (vec![MACHINE], true)));
    let fragment = Seen::Fragment { client: *ends(1).client.ip() };
    table.observe(START, fragment, STRANGER, anybody);
    // The client uses its port again before the server notices the end of the first connection.
    table.observe(START, segment(1, true), MACHINE, anybody);
    table.close(START, ends(1));
    assert_eq!((table.fragments_of.len(), table.sources(&ends(1)).1), (1, false));
    table.accept(ends(1));
    table.close(START, ends(1));
    table.observe(START, segment(2, true), MACHINE, anybody);
    table.observe(START, fragment, STRANGER, anybody);
    assert_eq!(table.fragments_of.len(), 1);
    table.observe(HANDSHAKE * 2, segment(3, true), MACHINE, anybody);
    assert_eq!(table.fragments_of.len(), 0, "no server accepted the second connection");
}

#[test]
fn syn_of_another_machine_does_not_spoil_the_next_connection() {
    let mut table = SegmentTable::default();
    table.observe(START, segment(1, true), STRANGER, anybody);
    assert!(table.observe(START, segment(1, true), MACHINE, anybody).is_empty());
    assert_eq!(table.sources(&ends(1)), (vec![MACHINE], true));
    assert_eq!(
        table.observe(START, segment(1, false), STRANGER, anybody).len(),
        1,
        "a segment of the first one"
    );
}

#[test]
fn syn_of_the_machine_does_not_hide_segments_of_another_one_before_the_accept() {
    let mut table = SegmentTable::default();
    // The kernel has established the stranger's connection, with its request, when the machine uses
    // the same port.
    table.observe(START, segment(1, true), STRANGER, anybody);
    table.observe(START, segment(1, false), STRANGER, anybody);
    assert_eq!(table.observe(START, segment(1, true), MACHINE, anybody).len(), 1);
    table.accept(ends(1));
    assert_eq!(table.sources(&ends(1)).0, [STRANGER, MACHINE]);
}

#[test]
fn reused_port_is_observed_until_its_own_end() {
    let mut table = SegmentTable::default();
    let later = HANDSHAKE + Duration::from_secs(1);
    table.observe(START, segment(1, true), MACHINE, anybody);
    table.accept(ends(1));
    table.close(START, ends(1));
    table.observe(HANDSHAKE, segment(1, true), MACHINE, anybody);
    table.observe(later, segment(2, true), MACHINE, anybody);
    assert_eq!(
        table.sources(&ends(1)),
        (vec![MACHINE], true),
        "the entry of the former connection has expired"
    );
    // The machine was reset: the server accepts its next connection before it notices the end of
    // the former one.
    table.accept(ends(1));
    table.observe(later, segment(1, true), MACHINE, anybody);
    let fate = table.accept(ends(1));
    table.close(later, ends(1));
    table.observe(later * 3, segment(3, true), MACHINE, anybody);
    let foreign = table.observe(later * 3, segment(1, false), STRANGER, anybody);
    assert!(
        foreign.iter().all(|foreign| Arc::ptr_eq(&foreign.fate, &fate)) && foreign.len() == 1,
        "{foreign:?}"
    );
    table.close(later * 3, ends(1));
    assert!(!table.entries.contains_key(&ends(1)));
}

#[test]
fn accepted_connections_leave_their_source_room_for_further_ones() {
    let mut table = SegmentTable::default();
    for port in 0..=u16::MAX {
        table.observe(START, segment(port, true), MACHINE, anybody);
        table.accept(ends(port));
        assert!(table.sources(&ends(port)).1, "{port}");
        table.close(START, ends(port));
    }
    for port in 0..=u16::MAX {
        table.observe(START, segment(port, true), MACHINE, anybody);
        table.accept(ends(port));
        table.close(START, ends(port));
    }
    table.observe(START, segment(1, true), MACHINE, anybody);
    assert!(table.arriving.len() <= 2 * MAX_ARRIVING && table.entries.len() == 1);
    assert_eq!((table.arriving_count, table.arriving_of.len()), (1, 1));
}

#[test]
fn first_segment_is_foreign_if_another_machine_is_expected() {
    let mut table = SegmentTable::default();
    let machine = |_: Ipv4Addr| Expected::Machine(Some(MACHINE));
    assert_eq!(table.observe(START, segment(1, true), STRANGER, machine).len(), 1);
    assert!(table.observe(START, segment(2, true), MACHINE, machine).is_empty());
    let routers = |_: Ipv4Addr| Expected::Routers(vec![MACHINE]);
    assert!(table.observe(START, segment(3, true), MACHINE, routers).is_empty());
    assert_eq!(table.observe(START, segment(3, false), STRANGER, routers).len(), 1);
    let any = |_: Ipv4Addr| Expected::Routers(Vec::new());
    assert!(table.observe(START, segment(4, true), STRANGER, any).is_empty());
}

#[test]
fn lost_frames_make_only_present_connections_incomplete() {
    let mut table = SegmentTable::default();
    table.observe(START, segment(1, true), MACHINE, anybody);
    table.accept(ends(1));
    table.add_lost(1);
    table.observe(START, segment(2, true), MACHINE, anybody);
    assert!(!table.sources(&ends(1)).1 && table.sources(&ends(2)).1);
    table.accept(ends(3));
    assert!(!table.sources(&ends(3)).1, "its SYN was not seen");
}

#[test]
fn connection_ends_with_its_server_or_its_handshake() {
    let mut table = SegmentTable::default();
    let later = HANDSHAKE + Duration::from_secs(1);
    table.observe(START, segment(1, true), MACHINE, anybody);
    table.observe(START, segment(2, true), MACHINE, anybody);
    table.accept(ends(1));
    table.observe(later, segment(3, true), MACHINE, anybody);
    assert_eq!(table.entries.keys().copied().collect::<Vec<_>>(), [ends(1), ends(3)]);
    table.observe(later, segment(1, true), MACHINE, anybody);
    table.close(later, ends(1));
    assert_eq!(
        table.sources(&ends(1)),
        (vec![MACHINE], true),
        "the next connection of the same ends"
    );
    table.accept(ends(1));
    table.close(later, ends(1));
    assert_eq!(table.entries.len(), 1);
    table.observe(later * 3, segment(4, true), STRANGER, anybody);
    assert_eq!((table.entries.len(), table.arriving_of.len()), (1, 1));
}

#[test]
fn flood_of_one_source_leaves_connections_of_others() {
    let mut table = SegmentTable::default();
    for port in 0..=u16::MAX {
        table.observe(START, segment(port, true), STRANGER, anybody);
    }
    assert_eq!(table.entries.len(), MAX_ARRIVING_OF_SOURCE);
    table.observe(START, segment(60_000, true), MACHINE, anybody);
    assert_eq!(table.sources(&ends(60_000)), (vec![MACHINE], true));
}
