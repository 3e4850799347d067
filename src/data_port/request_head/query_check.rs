//! The check of a query: an engine may read a field there that the body decides.

use penstock_api::OllamaRoute;
use penstock_core::routing::Way;

use crate::data_port::target::PathTarget;
use crate::direct::ambiguous_fields::{ambiguous, deciding};
use crate::proxy::failure::OwnError;

/// Checks the query of a request. If the body decides, the query may have no deciding field. If the
/// query names the model, it does so once, in its plain spelling.
///
/// # Errors
/// When an engine may read a deciding field from the query.
pub(super) fn check_query(query: &str, target: PathTarget<'_>) -> Result<(), OwnError> {
    match target {
        PathTarget::Operation(_)
        | PathTarget::Ollama(OllamaRoute::Show | OllamaRoute::Command(_) | OllamaRoute::Blob(_)) => {
            match deciding(query).next() {
                Some((field, _)) => Err(ambiguous(field, "in the query: it belongs in the body")),
                None => Ok(()),
            }
        }
        PathTarget::Passthrough(Way::ByModel) => {
            let mut models = deciding(query).filter(|(field, _)| *field == "model");
            match (models.next(), models.next()) {
                (None, _) | (Some((_, true)), None) => Ok(()),
                (Some(_), _) => {
                    Err(ambiguous("model", "more than once in the query, or in another spelling"))
                }
            }
        }
        PathTarget::Models
        | PathTarget::Model(_)
        | PathTarget::Health
        | PathTarget::StoredResponse { .. }
        | PathTarget::Usage(_)
        | PathTarget::Ollama(_)
        | PathTarget::Passthrough(Way::Backend(_))
        | PathTarget::Root
        | PathTarget::Unknown => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use penstock_api::{ErrorCode, Operation};

    use super::*;

    fn refused(path: &str, target: PathTarget<'_>) -> Option<ErrorCode> {
        let uri: http::Uri = path.parse().unwrap();
        check_query(uri.query().unwrap(), target).err().map(|error| error.code)
    }

    #[test]
    fn query_fields_that_duplicate_body_fields_are_refused() {
        let twin = Some(ErrorCode::AmbiguousField);
        for query in [
            "model=x",
            "Model=x",
            "mod%65l=x",
            "a=1;model=x",
            "+model=x",
            "model[]=x",
            "stream=true",
        ] {
            for target in
                [PathTarget::Operation(Operation::Chat), PathTarget::Ollama(OllamaRoute::Show)]
            {
                assert_eq!(refused(&format!("/p?{query}"), target), twin, "{query}");
            }
        }
        for query in ["api-version=1", "beta=true", "", "models=1"] {
            let target = PathTarget::Operation(Operation::Chat);
            assert_eq!(refused(&format!("/p?{query}"), target), None, "{query}");
        }
    }

    #[test]
    fn paths_by_model_take_one_plain_name() {
        let target = PathTarget::Passthrough(&Way::ByModel);
        for query in ["model=m", "a=1&model=m", "limit=2", "stream=true&model=m"] {
            assert_eq!(refused(&format!("/p?{query}"), target), None, "{query}");
        }
        for query in [
            "model=m&model=x",
            "mod%65l=x&model=m",
            "model=m&mod%65l=x",
            "MODEL=m",
            "a=1;model=x&model=m",
            "model=m;model=x",
            "model%5B%5D=x",
        ] {
            assert_eq!(
                refused(&format!("/p?{query}"), target),
                Some(ErrorCode::AmbiguousField),
                "{query}"
            );
        }
    }
}
