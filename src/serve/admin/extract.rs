//! Extractors of requests: the body, the query, and the node in the path. Each rejection is a [`Refused`].

use super::{ApiState, error::Refused};
use axum::{
    Json,
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::request::Parts,
    response::{IntoResponse as _, Response},
};
use meshd_central::Shared;
use meshd_types::NodeId;
use serde::de::DeserializeOwned;

/// JSON body of a request.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<ApiState> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Refused> {
        let body = Json::from_request(request, state).await;
        body.map(|Json(body)| Body(body)).map_err(|error| Refused::bad_request(error.body_text()))
    }
}

/// Query of a request as one structure.
pub(crate) struct QueryOf<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<ApiState> for QueryOf<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &ApiState) -> Result<Self, Refused> {
        let query = Query::try_from_uri(&parts.uri);
        query.map(|Query(query)| QueryOf(query)).map_err(|error| Refused::bad_request(error.body_text()))
    }
}

/// Node in the path of a request, by ID or name.
pub(crate) struct TargetNode {
    pub(crate) central: Shared,
    pub(crate) id: NodeId,
}

impl FromRequestParts<ApiState> for TargetNode {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, Response> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        let Path(name) = path.map_err(|error| error.into_response())?;
        let id = state.central.nodes.resolve(&name).map_err(|error| Refused::from(error).into_response())?;
        Ok(TargetNode { central: state.central.clone(), id })
    }
}

/// Body of a request, and the node in its path. An invalid body is reported before an unknown node.
pub(crate) struct NodeOrder<T> {
    pub(crate) node: TargetNode,
    pub(crate) order: T,
}

impl<T: DeserializeOwned> FromRequest<ApiState> for NodeOrder<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let node = TargetNode::from_request_parts(&mut parts, state).await;
        let order = Body::from_request(Request::from_parts(parts, body), state).await;
        let Body(order) = order.map_err(|refused| refused.into_response())?;
        Ok(NodeOrder { node: node?, order })
    }
}
