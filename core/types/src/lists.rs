//! Lists in messages, whose length does not depend on the size of a group.

/// Maximum number of items that a list names.
const LISTED_ITEMS_MAX: usize = 8;

/// Returns the ranks as text, for example "rank 3", "ranks 1, 2" or "no ranks". Names the first
/// eight and counts the others.
pub fn rank_list(ranks: impl IntoIterator<Item = u32>) -> String {
    let names: Vec<String> = ranks.into_iter().map(|rank| rank.to_string()).collect();
    match &names[..] {
        [] => "no ranks".to_owned(),
        [name] => format!("rank {name}"),
        names => format!("ranks {}", name_list(names)),
    }
}

/// Returns the names as text, for example "a, b and 5 more". Names the first eight and counts the
/// others.
pub fn name_list(names: &[impl AsRef<str>]) -> String {
    let shown: Vec<&str> = names.iter().take(LISTED_ITEMS_MAX).map(AsRef::as_ref).collect();
    let text = shown.join(", ");
    match names.len().saturating_sub(LISTED_ITEMS_MAX) {
        0 if names.is_empty() => "none".to_owned(),
        0 => text,
        more => format!("{text} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_are_shortened() {
        assert_eq!([rank_list([]), rank_list([3]), rank_list([1, 2])], ["no ranks", "rank 3", "ranks 1, 2"]);
        assert_eq!(rank_list(0..8), "ranks 0, 1, 2, 3, 4, 5, 6, 7");
        assert_eq!(rank_list(0..1000), "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 992 more");
        assert_eq!([name_list(&[] as &[&str]), name_list(&["a", "b"])], ["none", "a, b"]);
    }
}
