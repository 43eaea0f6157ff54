//! Numbers as people read them.

/// A rate, as "20 Mbit/s"; `None` if it is 0, unknown.
pub(crate) fn rate(bytes_per_second: u64) -> Option<String> {
    if bytes_per_second == 0 {
        return None;
    }
    let mbit = bytes_per_second as f64 * 8.0 / 1e6;
    // What is measured has no more than three digits that count.
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    Some(if mbit >= 1000.0 {
        format!("{} Gbit/s", round(mbit / 1000.0))
    } else {
        format!("{} Mbit/s", round(mbit))
    })
}

/// `n` of a thing: "1 rank", "2 ranks".
pub(crate) fn count(n: usize, thing: &str) -> String {
    format!(
        "{n} {thing}{}",
        if n == 1 {
            ""
        } else if thing.ends_with("ch") {
            "es"
        } else {
            "s"
        }
    )
}

/// A time with three digits that count: "1.23 ms".
pub(crate) fn seconds(s: f64) -> String {
    let (value, unit) = match s {
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        assert_eq!(rate(2_500_000).as_deref(), Some("20 Mbit/s"));
        assert_eq!(rate(1_250_000_000).as_deref(), Some("10 Gbit/s"));
        assert_eq!(rate(2_491_234).as_deref(), Some("19.93 Mbit/s"));
        assert_eq!(rate(0), None);
        assert_eq!((count(1, "rank"), count(2, "switch")), ("1 rank".into(), "2 switches".into()));
        assert_eq!(
            (seconds(0.000_012_34), seconds(0.0123), seconds(123.4)),
            ("12.3 us".into(), "12.3 ms".into(), "123 s".into())
        );
    }
}
