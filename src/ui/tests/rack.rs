//! The overview and the node list of sites with up to 10,000 nodes.

use super::{Browser, FakeApi, rack_data::nodes};

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
    let name = "=\"gpu-0789: online, capability_replayed\"";
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
        nav.contains("<span class=\"badge bad\">2<span class=\"hidden\"> in trouble</span>"),
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
