//! Routes of API tokens, enrolment tokens and the certificate authority.

use super::{Array, Empty, Get, Object, Post, route::routes};
use crate::{
    ApiTokenView, CreateApiToken, CreateToken, CreatedApiToken, CreatedToken, RootView, RotateCa,
    TokenView,
};
use meshd_model::fleet::Verb;
use meshd_trust::Role;

routes! {
    LIST_API_TOKENS: Get<Array<ApiTokenView>> = Get::new("/v1/api-tokens", "List API tokens").role(Role::Auditor);
    CREATE_API_TOKEN: Post<Object<CreateApiToken>, Object<CreatedApiToken>> = Post::new(
        "/v1/api-tokens/create",
        Verb::ApiTokenCreate,
        "Create an API token; only this answer contains it",
    );
    REVOKE_API_TOKEN: Post<Empty, Array<ApiTokenView>, 1> =
        Post::new("/v1/api-tokens/{name}/revoke", Verb::ApiTokenRevoke, "Revoke an API token at once");

    LIST_TOKENS: Get<Array<TokenView>> =
        Get::new("/v1/tokens", "List enrolment tokens of machines that are not netbooted");
    CREATE_TOKEN: Post<Object<CreateToken>, Object<CreatedToken>> =
        Post::new("/v1/tokens", Verb::TokenCreate, "Create an enrolment token; only this answer contains it");
    REVOKE_TOKEN: Post<Empty, Object<TokenView>, 1> =
        Post::new("/v1/tokens/{token}/revoke", Verb::TokenRevoke, "Revoke an enrolment token");

    LIST_ROOTS: Get<Array<RootView>> = Get::new("/v1/ca", "List trusted roots of the certificate authority");
    ROTATE_ROOT: Post<Object<RotateCa>, Array<RootView>> = Post::new(
        "/v1/ca/rotate",
        Verb::CaRotate,
        "Replace the root of the certificate authority; the old one stays trusted for a grace period",
    );
}
