//! Extractors of requests: the body, the query, and the node in the path. Each rejection is a
//! [`Refused`].
//!
//! | module | content |
//! | --- | --- |
//! | `json_objects` | reads JSON and refuses an array in place of an object |

pub(crate) mod json_objects;

use super::{ApiState, error::Refused, query::parameters::Parameters};
use axum::{
    extract::{FromRequest, FromRequestParts, Path, Query, Request},
    http::{HeaderMap, header::CONTENT_TYPE, request::Parts},
    response::{IntoResponse as _, Response},
};
use bytes::Bytes;
use meshd_central::Shared;
use meshd_types::{NodeId, ProfileName};
use serde::de::DeserializeOwned;

/// Reads the name of a profile.
pub(crate) fn profile_name(text: &str) -> Result<ProfileName, Refused> {
    text.parse().map_err(|error| Refused::unreadable(&error))
}

/// JSON body of a request. A request without a body and without a media type is `null`.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<ApiState> for Body<T> {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Refused> {
        JsonBody::from_request(request, state).await?.read().map(Body)
    }
}

/// JSON body of a request whose type depends on the route.
pub(crate) struct JsonBody(Bytes);

impl JsonBody {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Refused> {
        let body = json_objects::from_slice(&self.0);
        body.map_err(|error| Refused::bad_request(format!("invalid JSON body: {error}")))
    }
}

impl FromRequest<ApiState> for JsonBody {
    type Rejection = Refused;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Refused> {
        let is_json = is_json(request.headers());
        let bytes = Bytes::from_request(request, state).await;
        let bytes =
            bytes.map_err(|error| Refused::rejection(error.status(), &error.body_text()))?;
        match is_json {
            Some(true) => Ok(JsonBody(bytes)),
            None if bytes.is_empty() => Ok(JsonBody(Bytes::from_static(b"null"))),
            _ => Err(Refused::media_type()),
        }
    }
}

/// Returns whether the request declares its body as JSON; `None` if it declares nothing.
fn is_json(headers: &HeaderMap) -> Option<bool> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    Some(kind == "application/json" || kind.starts_with("application/") && kind.ends_with("+json"))
}

/// Query of a request as one structure, of parameters that the route has.
pub(crate) struct QueryOf<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<ApiState> for QueryOf<T> {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &ApiState) -> Result<Self, Refused> {
        let query = Query::try_from_uri(&parts.uri);
        query
            .map(|Query(query)| QueryOf(query))
            .map_err(|error| Refused::bad_request(error.body_text()))
    }
}

/// The parameters that `authorise_and_audit` read.
impl FromRequestParts<ApiState> for Parameters {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, _: &ApiState) -> Result<Self, Refused> {
        let parameters = parts.extensions.remove::<Parameters>();
        parameters.ok_or_else(|| Refused::internal("the request has no parameters"))
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
        let id = state
            .central
            .nodes
            .resolve(&name)
            .map_err(|error| Refused::from(error).into_response())?;
        Ok(TargetNode { central: state.central.clone(), id })
    }
}

/// Body of a request, and the node in its path. An invalid body is reported before an unknown node.
pub(crate) struct NodeRequest<T> {
    pub(crate) node: TargetNode,
    pub(crate) order: T,
}

impl<T: DeserializeOwned> FromRequest<ApiState> for NodeRequest<T> {
    type Rejection = Response;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, Response> {
        let (mut parts, body) = request.into_parts();
        let node = TargetNode::from_request_parts(&mut parts, state).await;
        let order = Body::from_request(Request::from_parts(parts, body), state).await;
        let Body(order) = order.map_err(|refused| refused.into_response())?;
        Ok(NodeRequest { node: node?, order })
    }
}
