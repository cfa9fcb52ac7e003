//! Tests of queries: walks over pages, cursors and parameters of any text, filters, fields and
//! entity tags.

use super::{
    answer::{is_known, list, selected, tag},
    containers::CONTAINERS,
    cursor::{Cursor, MAX_CURSOR},
    leases::LEASES,
    logs::{AUDIT, Direction, EVENTS, LogRequest, MAX_RECORDS},
    nodes::{NODES, NodeFilter, order_key},
    page::{PageRequest, ResultPage, SortBy, cut, time_key},
    parameters::{MAX_PAGE, ParameterError, Parameters},
    search::{MAX_HITS, SearchRun},
    text::{Fit, Needle},
    work::{TASKS, VMS},
};
use crate::admin::error::Refused;
use axum::http::{HeaderMap, HeaderValue, header::IF_NONE_MATCH};
use meshd_api::routes::{LIST_AUDIT_RECORDS, LIST_NODES, LIST_VMS, RouteSpec};
use meshd_model::fleet::{ConditionKind, Fingerprint, Node, Phase};
use meshd_types::{Basis, Hint as _, MacAddr, ProfileName, Timestamp};
use proptest::{collection::vec, prelude::*};
use serde_json::json;
use std::{collections::BTreeSet, time::Instant};

const NAME: &str = "name";

fn read(route: RouteSpec, pairs: &[(&str, &str)]) -> Result<Parameters, String> {
    let pairs =
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    Parameters::read(pairs, route.query).map_err(text)
}

fn text(error: ParameterError) -> String {
    format!("{error}; {}", error.hint().unwrap_or_default())
}

/// Everything that the node list reads of a query.
fn node_query(pairs: &[(&str, &str)]) -> Result<(NodeFilter, PageRequest), String> {
    let parameters = read(LIST_NODES.spec(), pairs)?;
    let filter = NodeFilter::read(&parameters).map_err(text)?;
    let page = parameters.page(&NODES).map_err(text)?;
    parameters.fields(&NODES).map_err(text)?;
    Ok((filter, page))
}

fn node(number: u32) -> Node {
    let [a, b, c, d] = number.to_be_bytes();
    let mac = MacAddr([2, 0, a, b, c, d]);
    let print = Fingerprint { serial: format!("SN{number:06}"), ..Fingerprint::default() };
    let mut node =
        Node::discovered(Basis::Mac(mac), print, mac, Timestamp::from_millis(i64::from(number)));
    node.name = format!("n{number:05}");
    node.phase = Phase::ALL[number as usize % 3];
    node
}

fn profile() -> ProfileName {
    "discovery".parse().expect("a name")
}

/// Returns the nodes of a page.
fn page_of<'n>(nodes: &'n [Node], filter: &NodeFilter, page: &PageRequest) -> ResultPage<&'n Node> {
    let nodes = nodes.iter().filter(|node| filter.takes(node, &profile()));
    let rows =
        nodes.map(|node| (order_key(node, page.sort.key, &profile(), |node| node.last_seen), node));
    cut(rows.collect(), page)
}

/// Names of all nodes of the list, page after page.
fn walk(nodes: &[Node], pairs: &[(&str, &str)]) -> Vec<String> {
    let mut names = Vec::new();
    let mut after = None::<String>;
    loop {
        let mut pairs = pairs.to_vec();
        pairs.extend(after.as_deref().map(|after| ("after", after)));
        let (filter, page) = node_query(&pairs).expect("a valid query");
        let found = page_of(nodes, &filter, &page);
        names.extend(found.rows.iter().map(|node| node.name.clone()));
        let Some(next) = found.next else { return names };
        after = Some(next.to_string());
    }
}

proptest! {
    #[test]
    fn pagination_returns_each_row_once(
        keys in vec("[a-c]{0,2}", 0..40),
        limit in 1usize..8,
        descending: bool,
    ) {
        let rows: Vec<_> = keys.iter().enumerate().map(|(id, key)| ((key.clone(), format!("{id:03}")), id)).collect();
        let sort = SortBy { key: NAME, descending };
        let mut request = PageRequest { limit: Some(limit), after: None, sort };
        let mut seen = Vec::new();
        loop {
            let page = cut(rows.clone(), &request);
            prop_assert!(page.rows.len() <= limit && page.total == rows.len());
            prop_assert_eq!(page.next.is_some(), seen.len() + page.rows.len() < rows.len());
            seen.extend(page.rows);
            let Some(next) = page.next else { break };
            // The caller sends the text back.
            request.after = Some(next.to_string().parse().expect("its own cursor"));
        }
        let whole = cut(rows, &PageRequest { limit: None, after: None, sort });
        prop_assert_eq!(seen, whole.rows);
    }

    #[test]
    fn pagination_is_stable_while_rows_are_added_and_removed(
        gone in 0usize..12,
        new in "[a-c]{0,2}",
        limit in 1usize..6,
    ) {
        let row = |id: usize| ((["a", "b", "c"][id % 3].to_owned(), format!("{id:03}")), id);
        let rows: Vec<_> = (0..12).map(row).collect();
        let sort = SortBy { key: NAME, descending: false };
        let first = cut(rows.clone(), &PageRequest { limit: Some(limit), after: None, sort });
        let mut changed: Vec<_> = rows.into_iter().filter(|(_, id)| *id != gone).collect();
        changed.push(((new, "new".to_owned()), 99));
        let rest = cut(changed, &PageRequest { limit: None, after: first.next, sort });
        let mut seen: Vec<usize> = first.rows.into_iter().chain(rest.rows).filter(|id| *id != gone && *id != 99).collect();
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..12).filter(|id| *id != gone).collect::<Vec<_>>());
    }

    #[test]
    fn cursor_round_trips(sort in "\\PC{0,20}", key in any::<String>(), id in "\\PC{0,40}") {
        let cursor = Cursor { sort, key, id };
        let text = cursor.to_string();
        prop_assume!(text.len() <= MAX_CURSOR);
        prop_assert!(text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        prop_assert_eq!(text.parse(), Ok(cursor));
    }

    #[test]
    fn cursor_from_random_text_never_panics(text in any::<String>(), digits in "[0-9a-fA-F+]{0,60}") {
        for text in [text, digits] {
            if let Ok(cursor) = text.parse::<Cursor>() {
                let request =
                    PageRequest { limit: Some(2), after: Some(cursor), sort: SortBy { key: NAME, descending: true } };
                prop_assert!(cut(vec![((String::new(), String::new()), ())], &request).rows.len() <= 1);
            }
        }
    }

    #[test]
    fn query_error_names_its_parameter(
        which in 0..LIST_NODES.spec().query.len(),
        value in any::<String>(),
    ) {
        let name = LIST_NODES.spec().query[which];
        if let Err(error) = node_query(&[(name, &value)]) {
            prop_assert!(error.contains(&format!("`{name}`")), "{}", error);
        }
    }

    #[test]
    fn search_text_matches_case_insensitively(text in "[a-cA-C]{0,6}", needle in "[a-cA-C]{2,3}") {
        let found = needle.parse::<Needle>().expect("a valid text").is_in(&text);
        prop_assert_eq!(found, text.to_lowercase().contains(&needle.to_lowercase()));
    }

    #[test]
    fn log_pagination_returns_each_record_once(count in 0u64..30, limit in 1usize..7, backward: bool) {
        let direction = if backward { Direction::Backward } else { Direction::Forward };
        let mut request = LogRequest { direction, after: None, limit };
        let mut seen = Vec::new();
        loop {
            let (first, before) = request.range();
            let mut records: Vec<u64> = (first..count.min(before.unwrap_or(count))).collect();
            if backward {
                records.drain(..records.len().saturating_sub(request.records()));
            }
            records.truncate(request.records());
            let (page, next) = request.cut(records.into_iter().map(|number| (number, ())).collect());
            seen.extend(page.into_iter().map(|(number, ())| number));
            if next.is_none() {
                break;
            }
            request.after = next;
        }
        let mut all: Vec<u64> = (0..count).collect();
        if backward {
            all.reverse();
        }
        prop_assert_eq!(seen, all);
    }
}

#[test]
fn invalid_parameters_are_refused_with_their_name() {
    let long = "x".repeat(5000);
    for (pairs, expected) in [
        (&[("limit", "0")][..], "`limit`: 0 is out of range; use 1 to 1000"),
        (&[("limit", "1001")], "`limit`: 1001 is out of range"),
        (&[("limit", "many")], "`limit`: `many` is not a number"),
        (&[("after", "zz")], "`after`: not a cursor"),
        (&[("sort", "nam")], "`sort`: `nam` is unknown; did you mean `name`?"),
        (&[("fields", "id,board")], "`fields`: `board` is unknown"),
        (&[("fields", ",")], "`fields`: no word"),
        (&[("phase", "asleep")], "`phase`: `asleep` is unknown"),
        (&[("profile", "../x")], "`profile`: "),
        (&[("label", "Rack=")], "`label`: "),
        (&[("removed", "yes")], "`removed`: `yes` is not a boolean"),
        (&[("q", "a")], "`q`: cannot search a text of 1 characters"),
        (&[("q", &long)], "`q`: 5000 bytes are too long"),
        (&[("limits", "1")], "unknown parameter `limits`; did you mean `limit`?"),
        (&[("limit", "1"), ("limit", "2")], "`limit` is given more than once"),
    ] {
        let error = node_query(pairs).expect_err(expected);
        assert!(error.contains(expected), "{pairs:?}: {error}");
    }
}

#[test]
fn cursor_of_another_order_is_refused() {
    let cursor = Cursor { sort: "name".into(), key: "n1".into(), id: "0".into() }.to_string();
    assert!(node_query(&[("sort", "name"), ("after", &cursor)]).is_ok());
    for sort in ["-name", "phase"] {
        let error = node_query(&[("sort", sort), ("after", &cursor)]).expect_err(sort);
        assert!(error.contains("`after`: the cursor belongs to another order"), "{error}");
    }
    let (_, page) = node_query(&[("sort", "name"), ("after", &cursor)]).expect("valid");
    assert_eq!(page.limit, Some(MAX_PAGE), "a walk is bounded");
}

#[test]
fn list_without_parameters_is_complete_and_sorted_by_id() {
    let nodes: Vec<Node> = (0..5).map(node).collect();
    let names = walk(&nodes, &[]);
    assert_eq!(names.len(), 5);
    let mut by_id = nodes.clone();
    by_id.sort_by_key(|node| node.id);
    assert_eq!(names, by_id.into_iter().map(|node| node.name).collect::<Vec<_>>());
}

#[test]
fn filters_select_nodes_by_phase_profile_and_text() {
    let mut nodes: Vec<Node> = (0..9).map(node).collect();
    nodes[4].profile = Some("compute".parse().expect("a name"));
    nodes[5].phase = Phase::Removed;
    nodes[6].address = Some([10, 77, 0, 9].into());
    nodes[5].raise(ConditionKind::IdCollision, "", Timestamp::EPOCH);
    nodes[6].raise(ConditionKind::RebootRequired, "", Timestamp::EPOCH);
    nodes[7].raise(ConditionKind::Drift, "", Timestamp::EPOCH);
    nodes[8].phase = Phase::Quarantined;
    let found = |pairs: &[(&str, &str)]| {
        walk(&nodes, &[pairs, &[("sort", "name"), ("limit", "2")]].concat())
    };
    assert_eq!(found(&[("phase", "discovered")]), ["n00000", "n00003", "n00006"]);
    assert_eq!(found(&[("phase", "removed")]), ["n00005"]);
    assert_eq!(found(&[("profile", "compute")]), ["n00004"]);
    assert_eq!(found(&[("condition", "boot_loop,drift")]), ["n00007"]);
    assert!(node_query(&[("condition", "drifts")]).is_err_and(|error| error.contains("drift")));
    assert_eq!(found(&[("attention", "true")]), ["n00007", "n00008"]);
    assert_eq!(found(&[("attention", "false")]).len(), 8);
    assert_eq!(found(&[("q", "sn000003")]), ["n00003"]);
    assert_eq!(found(&[("q", "77.0.9")]), ["n00006"]);
    assert_eq!(found(&[("q", "02:00:00:00:00:07")]), ["n00007"]);
    assert_eq!(found(&[]).len(), 8);
    assert_eq!(found(&[("removed", "true")]).len(), 9);
}

#[test]
fn log_limit_out_of_range_is_refused() {
    let request = |pairs: &[(&str, &str)]| {
        LogRequest::read(&read(LIST_AUDIT_RECORDS.spec(), pairs).expect("known"), &AUDIT)
            .map_err(text)
    };
    assert_eq!(request(&[]).map(|log| (log.direction, log.limit)), Ok((Direction::Newest, 100)));
    assert!(request(&[("limit", "99999999999999999999")]).is_err());
    assert_eq!(request(&[("limit", "10000")]).map(|log| log.limit), Ok(MAX_RECORDS));
    assert!(request(&[("limit", "10001")]).is_err_and(|error| error.contains("use 1 to 10000")));
    assert_eq!(
        request(&[("sort", "-seq"), ("after", "7")]).map(|log| log.range()),
        Ok((0, Some(7)))
    );
    assert_eq!(request(&[("sort", "seq"), ("after", "7")]).map(|log| log.range()), Ok((8, None)));
    for pairs in [&[("limit", "0")][..], &[("sort", "seq"), ("limit", "0")]] {
        assert!(request(pairs).is_err_and(|error| error.contains("`limit`")), "{pairs:?}");
    }
}

#[test]
fn selectable_fields_equal_schema_properties() {
    let document = meshd_api::routes::document();
    let fields = |schema: &str| -> BTreeSet<String> {
        let properties = &document["components"]["schemas"][schema]["properties"];
        properties.as_object().expect("an object").keys().cloned().collect()
    };
    for (spec, schema) in [
        (NODES, fields("NodeView")),
        (VMS, fields("VmView")),
        (TASKS, fields("TaskView")),
        (CONTAINERS, fields("ContainerView")),
        (EVENTS, fields("EventView")),
        (LEASES, fields("LeaseView")),
    ] {
        assert_eq!(
            spec.fields.iter().map(|field| (*field).to_owned()).collect::<BTreeSet<_>>(),
            schema
        );
    }
}

#[test]
fn field_selection_returns_only_selected_fields() {
    let rows = [json!({ "id": 1, "name": "a", "phase": "online" }), json!({ "id": 2 })];
    let rows = selected(&rows, &["id", "name"]).expect("plain data");
    assert_eq!(rows, [json!({ "id": 1, "name": "a" }), json!({ "id": 2 })]);
}

#[test]
fn entity_tag_depends_on_rows_and_cursor_and_matches_if_none_match() {
    let own = tag(b"[]", None, Some("0"));
    assert_ne!(own, tag(b"[1]", None, Some("0")));
    assert_ne!(own, tag(b"[]", Some("aa"), Some("0")));
    assert_ne!(own, tag(b"[]", None, Some("1")));
    let known = |value: &str| {
        let mut headers = HeaderMap::new();
        headers.insert(IF_NONE_MATCH, HeaderValue::from_str(value).expect("plain"));
        is_known(&headers, &own)
    };
    assert!(known(&own) && known("*") && known(&format!("\"other\", W/{own}")));
    assert!(!known("\"other\"") && !known(own.trim_matches('"')) && !known(""));
    assert!(!is_known(&HeaderMap::new(), &own));
}

#[test]
fn search_ranks_exact_matches_first_and_is_bounded() {
    let mut nodes: Vec<Node> = (0..60).map(node).collect();
    nodes[30].name = "n0".to_owned();
    nodes[31].name = "web-n0".to_owned();
    let mut run = SearchRun::new("N0".parse().expect("valid"));
    nodes.iter().for_each(|node| run.node(node));
    let found = run.finish();
    assert_eq!((found.hits.len(), found.total), (MAX_HITS, 60));
    assert_eq!((found.hits[0].name.as_str(), found.hits[0].field.as_str()), ("n0", "name"));
    let needle: Needle = "n0".parse().expect("valid");
    let fits = [Some(Fit::Whole), Some(Fit::Beginning), Some(Fit::Part), None];
    assert_eq!(["N0", "n01", "an0", "n"].map(|text| needle.fit(text)), fits);
}

#[test]
fn time_keys_sort_chronologically() {
    let times = [i64::MIN, -1, 0, 1, 1_700_000_000_000]
        .map(|millis| time_key(Timestamp::from_millis(millis)));
    assert!(times.is_sorted(), "{times:?}");
}

/// Prints the time of one page of 10,000 nodes; the target is 50 ms in a release build.
#[test]
fn page_of_10000_nodes_is_found_by_text() {
    let nodes: Vec<Node> = (0..10_000).map(node).collect();
    let (filter, page) =
        node_query(&[("q", "sn0099"), ("sort", "-last_seen"), ("limit", "50")]).expect("valid");
    let begun = Instant::now();
    let found = page_of(&nodes, &filter, &page);
    println!("one page of 10000 nodes, filtered by text: {:?}", begun.elapsed());
    assert_eq!((found.total, found.rows.len(), found.rows[0].name.as_str()), (100, 50, "n09999"));
    let (filter, page) = node_query(&[("sort", "name"), ("limit", "50")]).expect("valid");
    let begun = Instant::now();
    let found = page_of(&nodes, &filter, &page);
    println!("one page of 10000 nodes, sorted by name: {:?}", begun.elapsed());
    assert_eq!((found.total, found.rows.len()), (10_000, 50));
}

#[test]
fn list_with_invalid_limit_is_refused_before_rows_are_read() {
    let query = read(LIST_VMS.spec(), &[("limit", "x")]).expect("known parameters");
    let rows = || -> Result<Vec<()>, Refused> { panic!("rows were read") };
    let key = |(): &(), _: &str| unreachable!("there are no rows");
    assert!(list(rows, key, &VMS, &query, &HeaderMap::new()).is_err());
}
