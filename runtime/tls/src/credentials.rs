//! The certificates by which a program speaks, as they are now: they are read again when their files change, and connections that
//! begin then go by the new ones. Those that are there go on, unless their other side is revoked.

use crate::expiry::{Expiry, Reminder};
use crate::folder::{Folder, FolderError, Stamp};
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

/// How often the files are looked at. Network file systems and mounted secrets tell nobody that they have changed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// A folder's certificates; clones are the same.
#[derive(Clone, Debug)]
pub struct Credentials {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    folder: Folder,
    current: watch::Sender<Arc<Material>>,
    /// The files are to be read at once.
    reload: Arc<Notify>,
    /// How often they have been read.
    readings: AtomicU64,
    peers: Mutex<Peers>,
}

/// Who is on the other side of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertifiedPeer {
    /// Who it is.
    pub identity: Identity,
    /// Until when its certificate is good.
    pub until: OffsetDateTime,
}

#[derive(Debug, Default)]
struct Peers {
    last: u64,
    by_number: BTreeMap<u64, CertifiedPeer>,
}

/// A session's place among the peers; given back when dropped.
#[derive(Debug)]
pub(crate) struct Seat {
    shared: Arc<Shared>,
    number: u64,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.shared.peers.lock().by_number.remove(&self.number);
    }
}

/// Decides when files are read again: when they look other than when they were read last, and have looked so twice, since
/// whoever writes several may not be done.
#[derive(Debug)]
struct Look {
    read: Stamp,
    seen: Stamp,
}

impl Look {
    fn is_due(&mut self, now: Stamp) -> bool {
        let settled = now == self.seen;
        self.seen = now;
        let due = settled && self.seen != self.read;
        if due {
            self.read = self.seen.clone();
        }
        due
    }
}

impl Credentials {
    /// Reads the certificates of a folder, and from then on whenever they change, as long as somebody has them. To be called
    /// within a Tokio runtime.
    ///
    /// # Errors
    /// If they cannot be used.
    pub fn open(folder: Folder) -> Result<Credentials, FolderError> {
        let stamp = folder.stamp();
        let current = watch::Sender::new(Arc::new(Material::read(&folder)?));
        let reload = Arc::new(Notify::new());
        let shared = Shared {
            folder,
            current,
            reload: reload.clone(),
            readings: AtomicU64::new(1),
            peers: Mutex::default(),
        };
        let shared = Arc::new(shared);
        tokio::spawn(follow(Arc::downgrade(&shared), reload, stamp));
        Ok(Credentials { shared })
    }

    /// Reads the files again, without waiting until they are seen to have changed.
    pub fn reload(&self) {
        self.shared.reload.notify_one();
    }

    /// Until when the own certificate and those of the CAs are good.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.shared.current.borrow().expiries.clone()
    }

    /// How often they have been read, whether they could be used or not.
    pub fn readings(&self) -> u64 {
        self.shared.readings.load(Ordering::Acquire)
    }

    /// What to say of those that end soon.
    pub fn warnings(&self) -> Vec<String> {
        let now = OffsetDateTime::now_utc();
        self.expiries().iter().filter_map(|expiry| expiry.warning(now)).collect()
    }

    /// Who is on the other side of the sessions that are there.
    pub fn peers(&self) -> Vec<CertifiedPeer> {
        self.shared.peers.lock().by_number.values().cloned().collect()
    }

    /// What holds for a connection that begins now, and what comes after.
    pub(crate) fn now(&self) -> (Arc<Material>, watch::Receiver<Arc<Material>>) {
        let mut following = self.shared.current.subscribe();
        let now = following.borrow_and_update().clone();
        (now, following)
    }

    /// A session has begun.
    pub(crate) fn seat(&self, peer: CertifiedPeer) -> Seat {
        let mut peers = self.shared.peers.lock();
        peers.last += 1;
        let number = peers.last;
        peers.by_number.insert(number, peer);
        Seat { shared: self.shared.clone(), number }
    }
}

/// Resolves when the certificate is revoked.
pub(crate) async fn revoked(
    mut following: watch::Receiver<Arc<Material>>,
    certificate: CertificateDer<'static>,
) {
    while following.changed().await.is_ok() {
        if following.borrow_and_update().revokes(&certificate) {
            return;
        }
    }
    // Nobody reads the files any more.
    std::future::pending().await
}

/// Reads the files when they change, until nobody has the certificates any more.
async fn follow(shared: Weak<Shared>, reload: Arc<Notify>, stamp: Stamp) {
    let mut look = Look { read: stamp.clone(), seen: stamp };
    let mut reminder = Reminder::default();
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let asked = tokio::select! {
            _ = ticks.tick() => false,
            () = reload.notified() => true,
        };
        let Some(shared) = shared.upgrade() else { return };
        let stamp = shared.folder.stamp();
        if asked {
            look = Look { read: stamp.clone(), seen: stamp.clone() };
        }
        if asked || look.is_due(stamp) {
            shared.read();
            reminder.begin_anew();
        }
        if reminder.due(OffsetDateTime::now_utc()) {
            Credentials { shared }.warnings().iter().for_each(|warning| warn!("{warning}"));
        }
    }
}

impl Shared {
    /// Goes by what the files hold now, or by what they held before if that cannot be used.
    fn read(&self) {
        let folder = self.folder.path().display();
        match Material::read(&self.folder) {
            Ok(material) => {
                self.current.send_replace(Arc::new(material));
                info!(
                    "the certificates in {folder} have been read again; connections that begin now go by them"
                );
            }
            Err(error) => {
                warn!(
                    "the certificates in {folder} have changed and cannot be used; those of before still count: {error}"
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
    fn files_are_read_again_once_they_have_changed_and_are_whole() {
        let folder = tempfile::tempdir().unwrap();
        let stamp = || Folder::new(folder.path(), Role::Agent).stamp();
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        let mut look = Look { read: stamp(), seen: stamp() };
        assert!(!look.is_due(stamp()));
        write("agent.pem", "half");
        assert!(!look.is_due(stamp()));
        write("agent.pem", "all of it");
        assert!(!look.is_due(stamp()), "it is being written");
        assert!(look.is_due(stamp()));
        assert!(!look.is_due(stamp()));
        write("other.pem", "of somebody else");
        assert!(!look.is_due(stamp()) && !look.is_due(stamp()));
        fs::remove_file(folder.path().join("agent.pem")).unwrap();
        assert!(!look.is_due(stamp()));
        assert!(look.is_due(stamp()));
    }
}
