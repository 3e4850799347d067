//! The model that a query names, as realtime clients do.

use http::Uri;
use penstock_api::{hex, query_value};

/// The start of a pair whose value is the model's name.
const QUERY_MODEL: &str = "model=";

/// The model that a query names.
pub(crate) fn query_model(uri: &Uri) -> Option<String> {
    query_value(uri.query()?, "model").filter(|model| !model.is_empty())
}

/// A path and query in which the model is called `name`; everything else stays as it came.
pub(crate) fn with_query_model(target: &str, name: &str) -> String {
    let Some((path, query)) = target.split_once('?') else { return target.to_owned() };
    let mut written = format!("{path}?");
    let mut is_named = false;
    for pair in query.split_inclusive('&') {
        let value = pair.strip_prefix(QUERY_MODEL).filter(|_| !is_named);
        let Some(value) = value else {
            written.push_str(pair);
            continue;
        };
        is_named = true;
        written.push_str(QUERY_MODEL);
        percent_encode(name, &mut written);
        written.push_str(if value.ends_with('&') { "&" } else { "" });
    }
    written
}

/// Writes a value of a query; what commonly stands in the name of a model stays readable.
pub(crate) fn percent_encode(value: &str, written: &mut String) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/@".contains(&byte) {
            written.push(char::from(byte));
        } else {
            let mut digits = [0; 2];
            hex::write(&[byte], &mut digits);
            written.push('%');
            written.extend(digits.map(|digit| char::from(digit.to_ascii_uppercase())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_names_the_model_of_the_backend() {
        for (target, expected) in [
            ("/rt?model=gpt", "/rt?model=a/b:c%20%26"),
            ("/rt?x=1&model=gpt&y=%20", "/rt?x=1&model=a/b:c%20%26&y=%20"),
            ("/rt?model=gpt&model=2", "/rt?model=a/b:c%20%26&model=2"),
            ("/rt?submodel=1", "/rt?submodel=1"),
            ("/rt", "/rt"),
        ] {
            let written = with_query_model(target, "a/b:c &");
            assert_eq!(written, expected, "{target}");
            let read = query_model(&written.parse().unwrap());
            let is_named = expected.contains("?model") || expected.contains("&model");
            assert_eq!(read.as_deref(), is_named.then_some("a/b:c &"), "{target}");
        }
    }
}
