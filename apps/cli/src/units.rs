//! Numbers with units, as text.

use crate::terminal_text::printable;
use std::time::Duration;

/// Returns a rate, such as "20 Mbit/s"; `None` if it is 0, which means unknown.
pub(crate) fn rate(bytes_per_second: u64) -> Option<String> {
    if bytes_per_second == 0 {
        return None;
    }
    let mbit = bytes_per_second as f64 * 8.0 / 1e6;
    // Measurements are not more precise.
    let round = |value: f64| (value * 1000.0).round() / 1000.0;
    Some(if mbit >= 1000.0 {
        format!("{} Gbit/s", round(mbit / 1000.0))
    } else {
        format!("{} Mbit/s", round(mbit))
    })
}

/// Returns a number of bytes with three significant digits, such as "64.0 MiB".
pub(crate) fn bytes(bytes: u64) -> String {
    let scales = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    match scales.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        None => count(usize::try_from(bytes).unwrap_or(usize::MAX), "byte"),
        Some((shift, unit)) => {
            let value = bytes as f64 / (1u64 << shift) as f64;
            let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
            format!("{value:.digits$} {unit}")
        }
    }
}

/// Returns a count with its noun, such as "1 rank" or "2 ranks".
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

/// Returns a time with three significant digits, such as "1.23 ms".
pub(crate) fn seconds(s: f64) -> String {
    let (value, unit) = match s {
        s if s < 1e-3 => (s * 1e6, "us"),
        s if s < 1.0 => (s * 1e3, "ms"),
        s => (s, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

/// Parses a length of time, such as 90, 90s, 30m, 2h or 1d. It must be longer than 0.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        other => return Err(format!("there is no unit {other:?}; the units are s, m, h and d")),
    };
    let number: f64 = digits.parse().map_err(|_| format!("{digits:?} is not a number"))?;
    match Duration::try_from_secs_f64(number * unit) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err("a time must be more than 0".to_owned()),
    }
}

/// Returns a length of time in whole seconds, such as "2:05" or "1:02:05".
pub(crate) fn clock(time: Duration) -> String {
    let (hours, minutes, seconds) = (time.as_secs() / 3600, time.as_secs() / 60 % 60, time.as_secs() % 60);
    if hours > 0 { format!("{hours}:{minutes:02}:{seconds:02}") } else { format!("{minutes}:{seconds:02}") }
}

/// Returns rows as a table with two spaces between columns. Control characters in cells are
/// escaped.
pub(crate) fn columns<const N: usize>(rows: &[[String; N]]) -> String {
    let printable = |row: &[String; N]| row.each_ref().map(|cell| printable(cell).into_owned());
    let rows: Vec<[String; N]> = rows.iter().map(printable).collect();
    let length = |cell: &String| cell.chars().count();
    let widths: [usize; N] =
        std::array::from_fn(|i| rows.iter().map(|row| length(&row[i])).max().unwrap_or(0));
    let line = |row: &[String; N]| {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
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
        let sizes = [0, 1, 1023, 1536, 64 << 20, 5 << 40].map(bytes);
        assert_eq!(sizes, ["0 bytes", "1 byte", "1023 bytes", "1.50 KiB", "64.0 MiB", "5120 GiB"]);
        assert_eq!((count(1, "rank"), count(2, "switch")), ("1 rank".into(), "2 switches".into()));
        assert_eq!(
            (seconds(0.000_012_34), seconds(0.0123), seconds(123.4)),
            ("12.3 us".into(), "12.3 ms".into(), "123 s".into())
        );
    }

    #[test]
    fn times_are_parsed_with_units_and_shown_as_clocks() {
        let seconds = |text: &str| duration(text).map(|time| time.as_secs_f64());
        assert_eq!((seconds("90"), seconds("1.5m"), seconds("2h")), (Ok(90.0), Ok(90.0), Ok(7200.0)));
        for (text, why) in
            [("", "not a number"), ("5x", "no unit"), ("0s", "more than 0"), ("-1", "more than 0")]
        {
            assert!(seconds(text).unwrap_err().contains(why), "{text}");
        }
        assert!(seconds("1e300").is_err() && seconds("nan").is_err());
        let clock = |seconds| clock(Duration::from_secs(seconds));
        assert_eq!((clock(5), clock(125), clock(3725)), ("0:05".into(), "2:05".into(), "1:02:05".into()));
    }
}
