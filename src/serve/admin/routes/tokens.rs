//! Routes of API tokens.

use crate::admin::{error::Refused, extract::Body, routes::Answer};
use axum::{
    Json,
    extract::{Path, State},
    http::header::CACHE_CONTROL,
    response::{IntoResponse as _, Response},
};
use meshd_api::{ApiTokenView, CreateApiToken, CreatedApiToken};
use meshd_central::Shared;
use meshd_model::fleet::AuditContext;
use meshd_types::ApiTokenName;
use std::time::Duration;

pub(crate) async fn list(State(central): State<Shared>) -> Json<Vec<ApiTokenView>> {
    let now = central.now();
    Json(central.admin.api_tokens().iter().map(|token| ApiTokenView::new(token, now)).collect())
}

/// Creates a token. Only this response contains its text.
pub(crate) async fn create(
    State(central): State<Shared>,
    context: AuditContext,
    Body(CreateApiToken { name, role, expires_in }): Body<CreateApiToken>,
) -> Result<Response, Refused> {
    let (text, token) = central
        .admin
        .create_api_token(name, role, expires_in.map(Duration::from_secs), &context)
        .await?;
    let token = ApiTokenView::new(&token, central.now());
    let created = Json(CreatedApiToken { token, secret: text.expose().clone() });
    Ok(([(CACHE_CONTROL, "no-store")], created).into_response())
}

pub(crate) async fn revoke(
    State(central): State<Shared>,
    Path(name): Path<String>,
    context: AuditContext,
) -> Answer<Vec<ApiTokenView>> {
    let name: ApiTokenName = name.parse().map_err(|error| Refused::unreadable(&error))?;
    central.admin.revoke_api_token(name, &context).await?;
    Ok(list(State(central)).await)
}
