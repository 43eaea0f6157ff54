//! Numbers of jobs and groups.
//!
//! No number is used twice, even by different incarnations of the controller. Each incarnation
//! counts from a number that depends on the time at which it began. Its numbers differ only in
//! their last digits, which are enough for people.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of ids for each unit of time, and the range of short ids.
const SHORT: u64 = 100_000;

/// Unit of time: no two incarnations of controllers begin within one.
pub const TICK: Duration = Duration::from_millis(100);

/// Ticks count from the beginning of 2026, so that ids stay below 2^53 (JSON) until 2311.
const BEGINNING: Duration = Duration::from_secs(1_767_225_600);

/// The largest number that a controller accepts from an agent. Later numbers would follow it, and
/// all must be exact in JSON.
pub const NUMBER_MAX: u64 = (1 << 53) - 1;

/// Returns the number before the first id of an incarnation of the controller that began at
/// `began`, in nanoseconds since 1970.
pub fn before_first(began: u64) -> u64 {
    let ticks = Duration::from_nanos(began).saturating_sub(BEGINNING).as_millis() / TICK.as_millis();
    u64::try_from(ticks).unwrap_or(u64::MAX / SHORT).saturating_mul(SHORT)
}

/// Returns the short form of an id. It is unambiguous while all running jobs belong to the same
/// incarnation of the controller.
pub fn short(number: u64) -> u64 {
    number % SHORT
}

/// Returns the form of `number` that a table with the ids `all` must show: the short form, or the
/// full id if another id of the table has the same short form.
pub fn shown(number: u64, mut all: impl Iterator<Item = u64>) -> u64 {
    let short = short(number);
    if all.any(|other| other != number && self::short(other) == short) { number } else { short }
}

/// Returns the current time in nanoseconds since 1970, or 0 if the clock is set before 1970.
pub fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_lives_have_larger_numbers_whose_last_digits_begin_anew() {
        let tick = TICK.as_nanos() as u64;
        let began = 1_795_000_000_000_000_000;
        let (one, other) = (before_first(began), before_first(began + tick));
        assert_eq!((other - one, short(one), short(one + 7)), (SHORT, 0, 7));
        assert_eq!((before_first(0), short(12)), (0, 12));
        let full = other + 7;
        assert_eq!(shown(full, [full, one + 8].into_iter()), 7);
        assert_eq!(shown(full, [full, one + 7].into_iter()), full);
        let in_2300 = 10_413_000_000_000_000_000;
        assert!(before_first(in_2300) < 1 << 53);
    }
}
