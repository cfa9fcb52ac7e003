//! Power and sensors of a node, as its BMC reports them. The page asks the BMC once, because a BMC
//! is slow: nothing of the page is live.

use super::absent_to_none;
use crate::{
    PREFIX,
    client::{ApiClient, ApiError, encoded},
    html::{self, Page, display_text, maybe, plain},
    screens::Answer,
};
use axum::{
    extract::Path,
    http::{HeaderMap, StatusCode},
};
use maud::{Markup, html};
use meshd_api::{PowerView, SensorView, routes as api};

/// Maximum number of sensors on the page.
const MAX_SENSORS: usize = 500;

pub(crate) async fn page(
    client: ApiClient,
    Path(node): Path<String>,
    headers: HeaderMap,
) -> Answer {
    let power = client.get(api::GET_NODE_POWER.path([&node])).await;
    let power = power.map_err(|error| client.failed(&error))?;
    let sensors = if power.error.is_none() && power.driver.is_some() {
        client.get(api::LIST_NODE_SENSORS.path([&node])).await
    } else {
        Ok(Vec::new())
    };
    if let Err(error) = &sensors
        && error.status == StatusCode::UNAUTHORIZED
    {
        return Err(client.failed(error));
    }
    let title = format!("BMC of {}", power.name);
    let node_id = power.id.map_or_else(|| node.clone(), |id| id.to_string());
    let content = html! {
        h1 { "BMC of " (html::name_link(&node_id, &power.name)) }
        (facts(&power))
        @if power.driver.is_some() { h2 { "Sensors" } (sensor_table(sensors)) }
        p { a.button href=(format!("{PREFIX}/nodes/{}/bmc", encoded(&node_id))) { "Ask again" } }
    };
    Ok(Page { client: &client, title, nav_path: "/nodes", content }.answer(&headers))
}

fn facts(power: &PowerView) -> Markup {
    let Some(driver) = power.driver else {
        return html! {
            p { "No BMC of this machine is known." }
            p.quiet { "Define it in " code { "[[power.bmc]]" } " of site.toml, or with " code { "meshd machine import" } "." }
        };
    };
    let possible = power.verbs.iter().filter(|verb| verb.impossible.is_none());
    let possible: Vec<_> = possible.map(|verb| verb.verb.as_str()).collect();
    html! {
        @if let Some(error) = &power.error { div.alert.bad { (display_text(error)) } }
        (html::facts(&[
            ("Power", maybe(power.state.map(|state| state.to_string()))),
            ("Protocol", plain(driver)),
            ("Address", html::code(&power.address)),
            ("Orders", plain(possible.join(", "))),
        ]))
    }
}

fn sensor_table(sensors: Result<Vec<SensorView>, ApiError>) -> Markup {
    let row = |sensor: &SensorView| {
        vec![plain(&sensor.name), plain(&sensor.reading), plain(&sensor.state)]
    };
    match absent_to_none(sensors) {
        Ok(sensors) => {
            let sensors = sensors.unwrap_or_default();
            let rows: Vec<_> = sensors.iter().take(MAX_SENSORS).map(row).collect();
            html::table(&["Sensor", "Reading", "State"], &rows, "The BMC reports no sensor.")
        }
        Err(error) => html::refusal(&error),
    }
}
