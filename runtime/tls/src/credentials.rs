//! The current certificates of a program.
//!
//! The files are reloaded when they change. New connections use the new certificates. Existing
//! connections continue, unless the certificate of their peer has been revoked.

use crate::directory::{CertificateDir, CertificateDirError, DirStamp};
use crate::expiry::{Expiry, Reminder};
use crate::material::Material;
use crate::role::Identity;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use time::OffsetDateTime;
use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tracing::{info, warn};

/// How often the files are checked for changes. They are polled because network file systems and
/// mounted secrets do not report changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The certificates of a directory. Clones share their state.
#[derive(Clone, Debug)]
pub struct Credentials {
    shared: Arc<SharedCredentials>,
}

#[derive(Debug)]
struct SharedCredentials {
    directory: CertificateDir,
    current: watch::Sender<Arc<Material>>,
    /// Requests an immediate reload.
    reload: Arc<Notify>,
    /// Number of reloads so far.
    readings: AtomicU64,
    peers: Mutex<CertifiedPeers>,
}

/// The peer of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertifiedPeer {
    /// The peer's identity.
    pub identity: Identity,
    /// When its certificate expires.
    pub until: OffsetDateTime,
}

#[derive(Debug, Default)]
struct CertifiedPeers {
    last: u64,
    by_number: BTreeMap<u64, CertifiedPeer>,
}

/// Entry of a session in the list of peers. Dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct PeerRegistration {
    shared: Arc<SharedCredentials>,
    number: u64,
}

impl Drop for PeerRegistration {
    fn drop(&mut self) {
        self.shared.peers.lock().by_number.remove(&self.number);
    }
}

/// Decides when to reload the files. They must differ from the loaded ones and be unchanged since
/// the previous check, because a writer may still be writing some of them.
#[derive(Debug)]
struct ChangeDetector {
    loaded: DirStamp,
    last: DirStamp,
}

impl ChangeDetector {
    fn is_due(&mut self, now: DirStamp) -> bool {
        let settled = now == self.last;
        self.last = now;
        let due = settled && self.last != self.loaded;
        if due {
            self.loaded = self.last.clone();
        }
        due
    }
}

impl Credentials {
    /// Loads the certificates of a directory and reloads them whenever they change, as long as a
    /// clone of the returned value exists. Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// Returns an error if the certificates cannot be used.
    pub fn open(directory: CertificateDir) -> Result<Credentials, CertificateDirError> {
        let stamp = directory.stamp();
        let current = watch::Sender::new(Arc::new(Material::read(&directory)?));
        let reload = Arc::new(Notify::new());
        let shared = SharedCredentials {
            directory,
            current,
            reload: reload.clone(),
            readings: AtomicU64::new(1),
            peers: Mutex::default(),
        };
        let shared = Arc::new(shared);
        tokio::spawn(watch_files(Arc::downgrade(&shared), reload, stamp));
        Ok(Credentials { shared })
    }

    /// Requests a reload without waiting for the next check.
    pub fn reload(&self) {
        self.shared.reload.notify_one();
    }

    /// Returns the expiry of the program's own certificate and of each CA.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.shared.current.borrow().expiries.clone()
    }

    /// Returns how often the files have been loaded, including failed attempts.
    pub fn readings(&self) -> u64 {
        self.shared.readings.load(Ordering::Acquire)
    }

    /// Returns a warning for each certificate that has expired or expires soon.
    pub fn warnings(&self) -> Vec<String> {
        let now = OffsetDateTime::now_utc();
        self.expiries().iter().filter_map(|expiry| expiry.warning(now)).collect()
    }

    /// Returns the peers of all current sessions.
    pub fn peers(&self) -> Vec<CertifiedPeer> {
        self.shared.peers.lock().by_number.values().cloned().collect()
    }

    /// Returns the current certificates, and a receiver for later versions.
    pub(crate) fn current(&self) -> (Arc<Material>, watch::Receiver<Arc<Material>>) {
        let mut updates = self.shared.current.subscribe();
        let material = updates.borrow_and_update().clone();
        (material, updates)
    }

    /// Adds a session's peer to the list until the returned value is dropped.
    pub(crate) fn register(&self, peer: CertifiedPeer) -> PeerRegistration {
        let mut peers = self.shared.peers.lock();
        peers.last += 1;
        let number = peers.last;
        peers.by_number.insert(number, peer);
        PeerRegistration { shared: self.shared.clone(), number }
    }
}

/// Completes when `certificate` is revoked.
pub(crate) async fn wait_until_revoked(
    mut updates: watch::Receiver<Arc<Material>>,
    certificate: CertificateDer<'static>,
) {
    while updates.changed().await.is_ok() {
        if updates.borrow_and_update().revokes(&certificate) {
            return;
        }
    }
    // The files are no longer watched, so this can never complete.
    std::future::pending().await
}

/// Reloads the files when they change, until no [`Credentials`] remain.
async fn watch_files(shared: Weak<SharedCredentials>, reload: Arc<Notify>, stamp: DirStamp) {
    let mut detector = ChangeDetector { loaded: stamp.clone(), last: stamp };
    let mut reminder = Reminder::default();
    let mut ticks = interval(CHECK_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let requested = tokio::select! {
            _ = ticks.tick() => false,
            () = reload.notified() => true,
        };
        let Some(shared) = shared.upgrade() else { return };
        let stamp = shared.directory.stamp();
        if requested {
            detector = ChangeDetector { loaded: stamp.clone(), last: stamp.clone() };
        }
        if requested || detector.is_due(stamp) {
            shared.reload();
            reminder.reset();
        }
        if reminder.due(OffsetDateTime::now_utc()) {
            Credentials { shared }.warnings().iter().for_each(|warning| warn!("{warning}"));
        }
    }
}

impl SharedCredentials {
    /// Loads the files. If they cannot be used, the previous certificates stay in effect.
    fn reload(&self) {
        let directory = self.directory.path().display();
        match Material::read(&self.directory) {
            Ok(material) => {
                self.current.send_replace(Arc::new(material));
                info!("the certificates in {directory} have been reloaded; new connections use them");
            }
            Err(error) => {
                warn!(
                    "the certificates in {directory} have changed and cannot be used; the previous ones stay in effect: {error}"
                );
            }
        }
        self.readings.fetch_add(1, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::role::Role;
    use std::fs;

    #[test]
    fn files_are_reloaded_once_a_change_is_complete() {
        let directory = tempfile::tempdir().unwrap();
        let stamp = || CertificateDir::new(directory.path(), Role::Agent).stamp();
        let write = |name: &str, text: &str| fs::write(directory.path().join(name), text).unwrap();
        let mut detector = ChangeDetector { loaded: stamp(), last: stamp() };
        assert!(!detector.is_due(stamp()));
        write("agent.pem", "half");
        assert!(!detector.is_due(stamp()));
        write("agent.pem", "all of it");
        assert!(!detector.is_due(stamp()), "it is being written");
        assert!(detector.is_due(stamp()));
        assert!(!detector.is_due(stamp()));
        write("other.pem", "of another role");
        assert!(!detector.is_due(stamp()) && !detector.is_due(stamp()));
        fs::remove_file(directory.path().join("agent.pem")).unwrap();
        assert!(!detector.is_due(stamp()));
        assert!(detector.is_due(stamp()));
    }
}
