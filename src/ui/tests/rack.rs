//! The overview and the node list of sites with up to 10,000 nodes.

use super::{Browser, FakeApi, rack_data::nodes};
use meshd_model::fleet::{ConditionKind, Phase};
use serde_json::{Value, json};

async fn page(count: usize, path: &str) -> String {
    let page =
        Browser::signed_in(&FakeApi::of_nodes("operator", nodes(count))).await.get(path).await;
    assert!(page.status.is_success(), "{}", page.text);
    page.text
}

#[tokio::test]
async fn overview_of_1000_nodes_is_small_and_shows_trouble_first() {
    let text = page(1000, "/ui/").await;
    assert!(text.len() < 300_000, "{} bytes", text.len());
    let places =
        ["3 nodes need attention", ">gpu-0789<", ">gpu-0123<", ">gpu-0456<", "class=\"wall\""]
            .map(|part| text.find(part).unwrap_or_else(|| panic!("{part}: {text}")));
    assert!(places.is_sorted(), "alarm, silent node, failed check, then all nodes: {places:?}");
    let heads: Vec<_> =
        text.split("class=\"head\"").skip(1).map(|part| part.split("</a>").next()).collect();
    let racks = ["a20", "a04", "a12", "a01", "a02"];
    for (head, rack) in heads.iter().zip(racks) {
        assert!(head.is_some_and(|head| head.ends_with(rack)), "{rack}: {heads:?}");
    }
    assert!(text.contains("<a class=\"alarm\" href=\"/ui/nodes/"), "{text}");
    let name = "=\"gpu-0789: online, its overlay was requested twice (capability_replayed)\"";
    assert!(text.contains(&format!(" title{name} aria-label{name}>789</a>")), "{text}");
}

#[tokio::test]
async fn wall_is_grouped_by_the_label_of_the_address() {
    let by_row = page(1000, "/ui/?label=row").await;
    assert!(
        by_row.contains("href=\"/ui/nodes?label=row%3Dr2\"") && !by_row.contains("rack%3Da01"),
        "{by_row}"
    );
    assert!(by_row.contains("href=\"/ui/?label=row\" aria-current=\"true\""), "{by_row}");
    let by_none = page(1000, "/ui/?label=none&by=profile").await;
    assert!(
        by_none.contains("no none") && by_none.contains("href=\"/ui/nodes?label=%21none\""),
        "{by_none}"
    );
    assert!(page(1000, "/ui/?by=profile").await.contains("href=\"/ui/nodes?profile=storage\""));
}

#[tokio::test]
async fn small_site_has_tiles_and_empty_site_has_first_steps() {
    let two = page(2, "/ui/").await;
    assert!(two.contains("class=\"tile good\"") && two.contains("No problems are known"), "{two}");
    let fifty = page(50, "/ui/").await;
    assert_eq!(fifty.matches("class=\"tile good\"").count(), 50, "{fifty}");
    let none = page(0, "/ui/").await;
    assert!(none.contains("Power on a machine") && none.contains("href=\"/ui/inbox\""), "{none}");
}

#[tokio::test]
async fn wall_of_10000_nodes_counts_the_nodes_without_trouble() {
    let text = page(10_000, "/ui/").await;
    assert!(text.len() < 300_000, "{} bytes", text.len());
    assert!(text.contains(">789</a>") && text.contains("39 others"), "{text}");
}

#[tokio::test]
async fn navigation_has_groups_with_counts() {
    let text = page(1000, "/ui/nodes").await;
    let nav = text.split("</nav>").next().unwrap_or_default();
    for group in ["Watch", "Change", "Work", "Configuration", "Records"] {
        assert!(nav.contains(&format!("role=\"group\" aria-label=\"{group}\"")), "{nav}");
    }
    assert!(
        nav.contains("<span class=\"badge bad\">3<span class=\"hidden\"> need attention</span>"),
        "{nav}"
    );
    assert!(nav.contains("aria-current=\"page\" data-key=\"n\""), "{nav}");
    assert!(text.contains("<dialog id=\"keys\""), "{text}");
}

#[tokio::test]
async fn node_list_has_the_columns_of_its_address_on_every_page() {
    let text = page(1000, "/ui/nodes?col=model&col=memory&col=%3Cscript%3E&sort=-name").await;
    let head = text.split("<thead>").nth(1).and_then(|rest| rest.split("</thead>").next());
    let head = head.expect("a head");
    assert!(
        head.contains("Model") && head.contains("Memory") && !head.contains("Address"),
        "{head}"
    );
    assert!(text.contains("<td>2048.0 GiB</td>") && !text.contains("<script>"), "{text}");
    let next = "sort=-name&amp;after=c1&amp;col=model&amp;col=memory";
    assert!(text.contains(next), "{text}");
    assert!(text.contains("name=\"col\" value=\"model\" checked"), "{text}");
    let fifty = page(50, "/ui/nodes").await;
    assert!(!fifty.contains("name=\"all\"") && !fifty.contains("Next page"), "{fifty}");
}

#[tokio::test]
async fn all_hits_of_the_list_are_selected_with_its_filters() {
    let link = "href=\"/ui/nodes?phase=online&amp;all=1&amp;col=model\">Select all 990</a>";
    let text = page(1000, "/ui/nodes?phase=online&col=model").await;
    assert!(text.contains(link) && !text.contains("~gpu-0001\" checked"), "{text}");
    let text = page(1000, "/ui/nodes?phase=online&all=1&col=model").await;
    assert_eq!(text.matches("name=\"node\"").count(), 990);
    assert_eq!(text.matches("\" checked aria-label=\"Select gpu-").count(), 990);
    let many = page(2500, "/ui/nodes").await;
    assert!(many.contains(">Select the first 1000</a>"), "{many}");
}

/// Returns a node of each phase, and an online node with each condition.
fn one_of_each_kind() -> Vec<Value> {
    let phases = Phase::ALL.into_iter().filter(|phase| *phase != Phase::Removed);
    let phases = phases.map(|phase| (phase, json!([])));
    let conditions = ConditionKind::ALL.into_iter().map(|kind| {
        let since = "2026-01-01T00:00:00Z";
        (Phase::Online, json!([{ "kind": kind, "since": since, "detail": "" }]))
    });
    let kinds: Vec<_> = phases.chain(conditions).collect();
    let mut all = nodes(kinds.len());
    for (node, (phase, conditions)) in all.iter_mut().zip(kinds) {
        (node["phase"], node["conditions"]) = (json!(phase), conditions);
    }
    all
}

/// The texts between two strings.
fn between<'t>(text: &'t str, start: &'t str, end: &'t str) -> impl Iterator<Item = &'t str> {
    text.split(start).skip(1).filter_map(move |rest| rest.split(end).next())
}

#[tokio::test]
async fn node_that_needs_attention_is_one_on_every_page() {
    let nodes = one_of_each_kind();
    let mut browser = Browser::signed_in(&FakeApi::of_nodes("operator", nodes.clone())).await;
    let overview = browser.get("/ui/").await.text;
    // Degraded, offline, quarantined; all conditions but three that wait for a quiet hour.
    let troubled = 3 + ConditionKind::ALL.len() - 3;
    let heading = format!("<a href=\"/ui/nodes?attention=true\">{troubled} nodes need attention");
    assert!(overview.contains(&heading), "{overview}");
    let badge = format!("badge bad\">{troubled}<span class=\"hidden\"> need attention</span>");
    assert!(overview.contains(&badge), "{overview}");
    let list = browser.get("/ui/nodes?attention=true").await.text;
    assert!(list.contains(&format!("{troubled} nodes</span>")), "{list}");
    assert!(list.contains("name=\"attention\" value=\"true\" checked"), "{list}");
    // Each node is counted once, and no phase hides a node that needs attention.
    let chips = overview.split("class=\"counts\"").nth(1).expect("chips");
    let chips = chips.split("</div>").next().expect("an end");
    let numbers: Vec<usize> =
        between(chips, "<strong>", "<").filter_map(|number| number.parse().ok()).collect();
    assert_eq!(numbers[0], nodes.len(), "{chips}");
    assert_eq!(numbers[1..].iter().sum::<usize>(), nodes.len(), "{chips}");
    assert_eq!(numbers.len(), Phase::ALL.len(), "all nodes, and all phases but removed: {chips}");
    let online = ConditionKind::ALL.len() + 1;
    let online = format!("<strong>{online}</strong> online, {} need attention", troubled - 3);
    assert!(chips.contains(&online), "{chips}");
}

#[tokio::test]
async fn wall_has_a_legend_and_boots_have_a_heading_and_a_time() {
    let text = page(1000, "/ui/").await;
    let legend = text.split("class=\"legend\"").nth(1).expect("a legend");
    let legend = legend.split("</ul>").next().expect("an end");
    assert_eq!(between(legend, "<b class=\"", "\"").count(), 7, "{legend}");
    assert!(legend.contains("offline, quarantined, or its boot fails"), "{legend}");
    let boots = text.split("id=\"boots\"").nth(1).expect("boots");
    assert!(
        boots.split("</section>").next().expect("an end").contains(
            "kernel</span><span class=\"quiet\">began <time datetime=\"2026-01-01T00:00:00.000Z\">"
        ),
        "{boots}"
    );
    assert!(boots.contains("<h2>Boots in progress</h2>"), "{boots}");
    let fifty = page(50, "/ui/").await;
    assert!(!fifty.contains("class=\"legend\""), "tiles have words: {fifty}");
}

#[tokio::test]
async fn conditions_are_shown_in_plain_words() {
    let mut browser = Browser::signed_in(&FakeApi::of_nodes("operator", one_of_each_kind())).await;
    let list = browser.get("/ui/nodes").await.text;
    for kind in ConditionKind::ALL {
        let badge = format!("title=\"{}\">{}</span>", kind.as_str(), kind.words());
        assert!(list.contains(&badge), "{badge}: {list}");
        let option = format!("<option value=\"{}\">{}</option>", kind.as_str(), kind.words());
        assert!(list.contains(&option), "{option}: {list}");
    }
}
