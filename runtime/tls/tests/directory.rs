//! Tests of a certificate directory: creating, keeping, renewing, revoking and listing
//! certificates.

use cool_tls::make::{
    CertificateEntry, CertificateHolder, CertificateRequest, drop_old_authority, list, make, new_authority,
    revoke,
};
use cool_tls::{Identity, Role};
use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn request(holders: &[CertificateHolder]) -> CertificateRequest {
    CertificateRequest { holders: holders.to_vec(), days: 30, renew: false }
}

fn made(holders: &[CertificateHolder]) -> TempDir {
    let directory = TempDir::new().unwrap();
    make(directory.path(), &request(holders)).unwrap();
    directory
}

fn entry(directory: &Path, name: &str) -> CertificateEntry {
    list(directory).unwrap().into_iter().find(|entry| entry.name == name).unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn files_stay_unless_renewed_and_keys_are_private() {
    let ours = made(&[CertificateHolder::node("h1", vec![ip("10.0.0.1")])]);
    let read = |name: &str| fs::read(ours.path().join(name)).unwrap();
    let files = ["ca.pem", "agent.pem", "h1/agent.pem"];
    let before = files.map(read);
    let written =
        make(ours.path(), &request(&["h1", "h2"].map(|name| CertificateHolder::node(name, Vec::new()))))
            .unwrap();
    let expected: Vec<PathBuf> = ["h2/agent.pem", "h2/agent.key"].map(|name| ours.path().join(name)).into();
    assert_eq!(written, expected, "h1 keeps its address if none is named");
    // A key that was made readable for its group must stay so.
    let shared = ours.path().join("agent.key");
    fs::set_permissions(&shared, Permissions::from_mode(0o640)).unwrap();
    make(ours.path(), &CertificateRequest { renew: true, ..request(&[]) }).unwrap();
    assert_eq!(fs::metadata(&shared).unwrap().permissions().mode() & 0o777, 0o640);
    let after = files.map(read);
    assert_eq!(after[0], before[0]);
    assert!(after[1] != before[1] && after[2] != before[2]);
    assert_eq!(entry(ours.path(), "h1").identity, Some(Identity::node("h1", vec![ip("10.0.0.1")])));
    for key in ["ca.key", "controller.key", "h1/agent.key"] {
        let mode = fs::metadata(ours.path().join(key)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{key}");
    }
}

#[test]
fn a_certificate_with_another_identity_is_replaced() {
    let ours = made(&[CertificateHolder::node("h1", Vec::new()), CertificateHolder::switch("s1", vec![1])]);
    let holders = [
        CertificateHolder::node("h1", vec![ip("10.0.0.1"), ip("fd00::1")]),
        CertificateHolder::switch("s1", vec![2]),
    ];
    make(ours.path(), &request(&holders)).unwrap();
    for holder in holders {
        assert_eq!(entry(ours.path(), &holder.name).identity, Some(holder.identity));
    }
}

#[test]
fn invalid_and_reserved_names_are_refused_and_named() {
    let ours = made(&[]);
    let bad = [
        CertificateHolder::node("../x", Vec::new()),
        CertificateHolder::user("../x"),
        CertificateHolder::switch(".x", vec![1]),
    ];
    for bad in bad {
        assert!(make(ours.path(), &request(&[bad])).unwrap_err().to_string().contains('x'));
    }
    for taken in ["agent", "users", "ca"] {
        let refused = make(ours.path(), &request(&[CertificateHolder::node(taken, Vec::new())])).unwrap_err();
        assert!(refused.to_string().contains(&format!("called {taken}:")), "{refused}");
    }
}

#[test]
fn revoking_a_name_includes_its_renewed_certificates_only() {
    let ours = made(&[CertificateHolder::node("h1", Vec::new()), CertificateHolder::node("h2", Vec::new())]);
    make(ours.path(), &CertificateRequest { renew: true, ..request(&[]) }).unwrap();
    assert_eq!(revoke(ours.path(), &["h1".into()]).unwrap(), 2);
    assert!(entry(ours.path(), "h1").revoked && !entry(ours.path(), "h2").revoked);
    assert!(ours.path().join("h2/revoked.pem").exists());
    // A revoked certificate is replaced if it is requested by name, but not when all are renewed.
    make(ours.path(), &CertificateRequest { renew: true, ..request(&[]) }).unwrap();
    assert!(entry(ours.path(), "h1").revoked);
    make(ours.path(), &request(&[CertificateHolder::node("h1", Vec::new())])).unwrap();
    assert!(!entry(ours.path(), "h1").revoked);
    let message = revoke(ours.path(), &["h3".into()]).unwrap_err().to_string();
    assert!(message.contains("h3") && message.contains("--list"), "{message}");
    let message = revoke(ours.path(), &["ca".into()]).unwrap_err().to_string();
    assert!(message.contains("ca"), "{message}");
}

#[test]
fn a_new_ca_signs_and_the_old_one_is_trusted_until_dropped() {
    let ours = made(&[CertificateHolder::node("h1", Vec::new())]);
    revoke(ours.path(), &["agent".into()]).unwrap();
    let cas = || list(ours.path()).unwrap().into_iter().filter(|entry| entry.identity.is_none()).count();
    let read = |name: &str| fs::read_to_string(ours.path().join(name)).unwrap();
    assert!(drop_old_authority(ours.path()).unwrap_err().to_string().contains("no older one"));
    new_authority(ours.path(), 30).unwrap();
    assert_eq!(cas(), 2);
    assert_eq!(read("h1/ca.pem"), read("ca.pem"));
    assert!(new_authority(ours.path(), 30).unwrap_err().to_string().contains("--drop-old-ca"));
    let message = drop_old_authority(ours.path()).unwrap_err().to_string();
    assert!(message.contains("still signed by the old CA"), "{message}");
    make(ours.path(), &CertificateRequest { renew: true, ..request(&[]) }).unwrap();
    drop_old_authority(ours.path()).unwrap();
    assert_eq!(cas(), 1);
    assert!(!ours.path().join("old-ca.key").exists());
    assert_eq!(read("h1/ca.pem"), read("ca.pem"));
    assert_eq!(read("revoked.pem").matches("BEGIN X509 CRL").count(), 1);
    assert!(entry(ours.path(), "agent").revoked, "what is revoked stays so");
}

#[test]
fn a_key_of_another_ca_is_refused() {
    let (ours, theirs) = (made(&[]), made(&[]));
    fs::copy(theirs.path().join("ca.key"), ours.path().join("ca.key")).unwrap();
    let message = make(ours.path(), &request(&[])).unwrap_err().to_string();
    assert!(message.contains("ca.key: it does not belong"), "{message}");
}

#[test]
fn a_list_shows_the_ca_the_roles_and_then_others_by_name() {
    let ours = made(&[
        CertificateHolder::user("ann"),
        CertificateHolder::node("h1", Vec::new()),
        CertificateHolder::switch("s1", vec![1]),
    ]);
    let names: Vec<String> = list(ours.path()).unwrap().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["ca", "controller", "agent", "tool", "switch", "h1", "switches/s1", "users/ann"]);
    assert_eq!(entry(ours.path(), "tool").identity, Some(Identity::for_role(Role::Tool)));
}
