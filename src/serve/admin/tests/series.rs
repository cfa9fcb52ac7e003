//! Time series over the API: their list, their values, and refused ranges.

use super::*;
use meshd_api::{SeriesPointsView, SeriesView};
use meshd_model::fleet::Phase;

#[tokio::test]
async fn time_series_are_sampled_once_a_minute_listed_and_read() {
    let fixture = Fixture::start().await;
    let (_, series) = fixture.get::<Vec<SeriesView>>("GET", "/v1/series", "").await;
    assert!(series.len() > 15 && series.iter().all(|series| series.newest.is_none()));
    let sample = |memory| {
        let central = fixture.central.clone();
        tokio::task::spawn_blocking(move || central.series.sample_when_due(Some(memory)))
    };
    sample(1 << 20).await.expect("no panic");
    sample(1 << 20).await.expect("no panic");
    let (_, series) = fixture.get::<Vec<SeriesView>>("GET", "/v1/series", "").await;
    let newest = |name: &str| {
        let found = series.iter().find(|series| series.name == name).expect("it exists");
        found.newest
    };
    let nodes: f64 = Phase::ALL.iter().filter_map(|phase| newest(&format!("nodes_{phase}"))).sum();
    assert_eq!((nodes, newest("memory")), (1.0, Some(1_048_576.0)));
    // Each minute has one point; a minute may have ended between both calls.
    let (status, memory) = fixture.get::<SeriesPointsView>("GET", "/v1/series/memory", "").await;
    assert_eq!((status, memory.unit.as_str(), memory.step_s), (StatusCode::OK, "bytes", 60));
    assert!((1..=2).contains(&memory.points.len()), "{memory:?}");
    let hours = "/v1/series/memory?step=3600&from=2026-01-01T00:00:00Z&to=2026-03-01T00:00:00Z";
    let (_, hours) = fixture.get::<SeriesPointsView>("GET", hours, "").await;
    assert_eq!((hours.step_s, hours.points.len()), (3600, 0));
    let page = Metrics::install().page(&fixture.central);
    assert!(page.contains("\nmeshd_recent_boots 0\n"), "{page}");
}

#[tokio::test]
async fn range_of_a_time_series_is_bounded() {
    let fixture = Fixture::start().await;
    for query in [
        "step=7",
        "step=0",
        "step=99999999999999999999",
        "from=2026-01-02T00:00:00Z&to=2026-01-01T00:00:00Z",
        "from=1970-01-01T00:00:00Z",
        "from=2026-01-01T00:00:00Z&to=2026-03-01T00:00:00Z&step=60",
        "limit=5",
    ] {
        let path = format!("/v1/series/memory?{query}");
        let (status, error) = fixture.get::<ErrorView>("GET", &path, "").await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{query}");
        assert!(!error.hint.is_empty(), "{query}: {error:?}");
    }
    let (status, error) = fixture.get::<ErrorView>("GET", "/v1/series/nodes_onlin", "").await;
    assert_eq!(status, StatusCode::NOT_FOUND);
    assert_eq!(error.hint, "did you mean `nodes_online`?");
}
