//! Natural order of names: for example, h2 sorts before h10.

use std::cmp::Ordering;

/// Compares names, with their numbers by value.
pub(crate) fn natural(a: &str, b: &str) -> Ordering {
    let (mut x, mut y) = (a, b);
    while let (Some(p), Some(q)) = (x.chars().next(), y.chars().next()) {
        if p.is_ascii_digit() && q.is_ascii_digit() {
            let (m, n) = (digits(x), digits(y));
            let (s, t) = (m.trim_start_matches('0'), n.trim_start_matches('0'));
            let by_value = s.len().cmp(&t.len()).then_with(|| s.cmp(t));
            if by_value != Ordering::Equal {
                return by_value;
            }
            (x, y) = (&x[m.len()..], &y[n.len()..]);
        } else if p != q {
            return p.cmp(&q);
        } else {
            (x, y) = (&x[p.len_utf8()..], &y[q.len_utf8()..]);
        }
    }
    // The names differ at most in leading zeros or in a suffix. Comparing the rest keeps this a
    // total order.
    x.len().cmp(&y.len()).then_with(|| a.cmp(b))
}

fn digits(s: &str) -> &str {
    &s[..s.find(|c: char| !c.is_ascii_digit()).unwrap_or(s.len())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_in_names_are_compared_by_value() {
        for (a, b) in
            [("h2", "h10"), ("h1", "h1a"), ("a9b2", "a9b11"), ("h09", "h10"), ("a", "b1"), ("", "a")]
        {
            assert_eq!(natural(a, b), Ordering::Less, "{a} {b}");
            assert_eq!(natural(b, a), Ordering::Greater, "{b} {a}");
        }
    }

    proptest! {
        #[test]
        fn natural_order_is_total(names in prop::collection::vec("[a-b0-1]{0,5}", 3)) {
            let (a, b, c) = (&names[0], &names[1], &names[2]);
            prop_assert_eq!(natural(a, b), natural(b, a).reverse());
            prop_assert_eq!(natural(a, b) == Ordering::Equal, a == b);
            if natural(a, b).is_le() && natural(b, c).is_le() {
                prop_assert!(natural(a, c).is_le());
            }
        }
    }
}
