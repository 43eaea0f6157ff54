//! Notifications to the service manager that started this program (sd_notify(3)): ready, stopping
//! and, if a watchdog is configured, alive. Without a service manager, nothing is sent.

use sd_notify::NotifyState;
use std::convert::Infallible;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tracing::{debug, warn};

/// Reports that the program is ready to serve.
pub fn ready() {
    notify(NotifyState::Ready);
}

/// Reports the state of the program as a line of text. `systemctl status` shows it, and `cool up`
/// waits for that of an agent.
pub fn status(text: &str) {
    notify(NotifyState::Status(text));
}

/// Reports that the program is shutting down.
pub fn stopping() {
    notify(NotifyState::Stopping);
}

fn notify(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        debug!(%error, "cannot notify the service manager");
    }
}

/// Notifies the watchdog as often as it requires, as long as `check` completes in time. Never
/// returns.
pub async fn watch<F: Future<Output = ()>>(check: impl Fn() -> F) -> Infallible {
    let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
    // A check may take a quarter of the limit, and the next one starts a quarter later.
    // Notifications are therefore sent at least every half, as sd_watchdog_enabled(3) recommends.
    watch_every(limit / 4, check, || notify(NotifyState::Watchdog)).await
}

async fn watch_every<F: Future<Output = ()>>(
    every: Duration,
    check: impl Fn() -> F,
    notify: impl Fn(),
) -> Infallible {
    loop {
        match timeout(every, check()).await {
            Ok(()) => notify(),
            Err(_) => warn!("the program did not respond within {every:?}; not notifying the watchdog"),
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
    async fn the_watchdog_is_not_notified_of_a_program_that_hangs() {
        let (checks, notified, enough) = (Cell::new(0), Cell::new(0), Notify::new());
        let check = || {
            checks.set(checks.get() + 1);
            let hangs = checks.get() > 3;
            if checks.get() == 6 {
                enough.notify_one();
            }
            async move {
                if hangs {
                    pending::<()>().await;
                }
            }
        };
        tokio::select! {
            never = watch_every(Duration::from_millis(1), check, || notified.set(notified.get() + 1)) => match never {},
            () = enough.notified() => {}
        }
        assert_eq!(notified.get(), 3, "checks continue");
    }
}
