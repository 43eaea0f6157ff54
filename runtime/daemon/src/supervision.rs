//! What a program tells the service manager that started it (sd_notify(3)): that it is ready, that it stops, and, where a watchdog
//! is wanted, that it is still of use. Without such a manager nothing is said.

use sd_notify::NotifyState;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// It serves from now on.
pub fn ready() {
    tell(NotifyState::Ready);
}

/// It ends in order from now on.
pub fn stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        debug!(%error, "the service manager does not hear");
    }
}

/// Tells the watchdog that this program is of use, as often as it wants to hear that, as long as `answers` comes back.
pub async fn watch<F: Future<Output = ()>>(answers: impl Fn() -> F) -> Infallible {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    // An answer may take a quarter, and the next one is asked for after another: half of the time, as sd_watchdog_enabled(3) advises.
    watch_every(limit / 4, answers, || tell(NotifyState::Watchdog)).await
}

async fn watch_every<F: Future<Output = ()>>(
    every: Duration,
    answers: impl Fn() -> F,
    tell: impl Fn(),
) -> Infallible {
    loop {
        match timeout(every, answers()).await {
            Ok(()) => tell(),
            Err(_) => warn!("no answer from within for {every:?}: the watchdog is not told that all is well"),
        }
        sleep(every).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::future::pending;
    use tokio::sync::Notify;

    #[tokio::test]
    async fn the_watchdog_hears_nothing_of_a_program_that_hangs() {
        let (asked, told, enough) = (Cell::new(0), Cell::new(0), Notify::new());
        let answers = || {
            asked.set(asked.get() + 1);
            let hangs = asked.get() > 3;
            if asked.get() == 6 {
                enough.notify_one();
            }
            async move {
                if hangs {
                    pending::<()>().await;
                }
            }
        };
        tokio::select! {
            never = watch_every(Duration::from_millis(1), answers, || told.set(told.get() + 1)) => match never {},
            () = enough.notified() => {}
        }
        assert_eq!(told.get(), 3, "and it is asked on");
    }
}
