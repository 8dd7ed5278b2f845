//! The description of the admin API: an OpenAPI 3.1 document, and what is read out of it.
//!
//! `openapi.json` is written by hand. Fifteen operations do not pay for a crate that derives it: most of what it says (which
//! refusals there are, what a figure means) stands in no type, and would be written as attributes instead. Tests keep it
//! true: every route and method is in it, and schemathesis compares the answers with it (`tests/integration`).

use std::sync::LazyLock;

use serde_json::Value;

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let mut document: Value =
        serde_json::from_str(include_str!("openapi.json")).expect("it was JSON when the tests read it");
    document["info"]["version"] = env!("CARGO_PKG_VERSION").into();
    document
});

/// `GET /admin/openapi.json`.
pub(super) async fn document() -> axum::Json<&'static Value> {
    axum::Json(&DOCUMENT)
}

/// Everything that is served, as a person would call it: `GET /metrics`.
pub(crate) fn operations() -> Vec<String> {
    let paths = DOCUMENT["paths"].as_object().into_iter().flatten();
    paths
        .flat_map(|(path, item)| {
            let methods = item.as_object().into_iter().flat_map(serde_json::Map::keys);
            methods.map(move |method| format!("{} {path}", method.to_uppercase()))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use trunkline_core::{Policy, Reason};

    use super::*;

    #[test]
    fn names_the_paths_that_are_served() {
        let mut served: Vec<_> = super::super::routes().into_iter().map(|(path, _)| path).collect();
        served.sort_unstable();
        let mut described: Vec<_> = DOCUMENT["paths"].as_object().unwrap().keys().collect();
        described.sort_unstable();
        assert_eq!(described, served);
    }

    #[test]
    fn names_the_reasons_and_policies_that_there_are() {
        let schemas = &DOCUMENT["components"]["schemas"];
        assert_eq!(schemas["Reason"]["enum"], serde_json::json!(Reason::ALL.map(Reason::as_str)));
        assert_eq!(schemas["Policy"]["enum"], serde_json::json!(Policy::NAMES));
    }
}
