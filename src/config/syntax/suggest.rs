//! "Did you mean": the known word nearest to a misspelt one.

/// The known word nearest to `given`, if one is near enough to be meant.
pub(crate) fn nearest<'a>(given: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let given = normalize(given);
    let limit = given.chars().count().div_ceil(3).clamp(1, 3);
    known
        .map(|word| (edit_distance(&given, &normalize(word)), word))
        .filter(|(distance, _)| *distance <= limit)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, word)| word)
}

/// A name as it is compared: case does not count, `-` and `_` are alike.
pub(crate) fn normalize(name: &str) -> String {
    name.to_lowercase().replace('-', "_")
}

/// Levenshtein's distance, with a swap of neighbours counted as one edit.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    let mut last_left = None;
    for (index, letter) in left.chars().enumerate() {
        let mut next = vec![index + 1];
        let mut last_right = None;
        for (column, other) in right.iter().copied().enumerate() {
            let at =
                |cells: &[usize], index: usize| cells.get(index).copied().unwrap_or(usize::MAX - 1);
            let changed = at(&row, column) + usize::from(letter != other);
            let mut best = changed.min(at(&row, column + 1) + 1).min(at(&next, column) + 1);
            if last_left == Some(other) && last_right == Some(letter) && column > 0 {
                best = best.min(at(&before, column - 1) + 1);
            }
            next.push(best);
            last_right = Some(other);
        }
        before = std::mem::replace(&mut row, next);
        last_left = Some(letter);
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits_and_swaps() {
        assert_eq!(edit_distance("strateggy", "strategy"), 1);
        assert_eq!(edit_distance("lsiten", "listen"), 1);
        assert_eq!(edit_distance("", "abc"), 3);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
    }

    #[test]
    fn only_near_words_are_suggested() {
        let known = ["strategy", "max_retries", "weights"];
        assert_eq!(nearest("max-retrys", known.into_iter()), Some("max_retries"));
        assert_eq!(nearest("colour", known.into_iter()), None);
    }
}
