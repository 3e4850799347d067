//! "Did you mean": the known word nearest to a misspelled one.

use penstock_api::choice::normalize;
/// The known word nearest to `given`, if the edit distance is small.
pub fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let given = normalize(given);
    // In proportion to the length: otherwise short words would resemble everything.
    let limit = given.chars().count().div_ceil(3).clamp(1, 3);
    known
        .map(|word| (strsim::osa_distance(&given, &normalize(word)), word))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// Returns the end of a message that suggests a word.
pub(super) fn did_you_mean(suggestion: Option<&str>) -> String {
    suggestion.map_or_else(String::new, |word| format!(": did you mean '{word}'?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suggestions_are_limited_to_similar_words() {
        assert_eq!(nearest("lsiten", ["listen"].into_iter()), Some("listen"), "a swap is one edit");
        let known = ["strategy", "max_retries", "weights"];
        assert_eq!(nearest("max-retrys", known.into_iter()), Some("max_retries"));
        assert_eq!(nearest("colour", known.into_iter()), None);
    }
}
