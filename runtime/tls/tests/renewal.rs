//! Certificates that change while programs run: new connections use the new ones, and sessions
//! continue unless their peer is revoked.

use cool_tls::make::{
    CertificateHolder, CertificateRequest, drop_old_authority, make, new_authority, revoke,
};
use cool_tls::{AcceptedConnection, Acceptor, CertificateDir, Connector, Credentials, MaybeTlsStream, Role};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

/// Timeout that is longer than any step takes.
const TIMEOUT: Duration = Duration::from_secs(60);

fn certificates() -> TempDir {
    let directory = TempDir::new().unwrap();
    make(directory.path(), &request(30, false)).unwrap();
    directory
}

fn request(days: u16, renew: bool) -> CertificateRequest {
    CertificateRequest { holders: vec![CertificateHolder::node("h1", Vec::new())], days, renew }
}

/// A listening controller and an agent.
struct Pair {
    listener: TcpListener,
    acceptor: Acceptor,
    controller: Credentials,
    connector: Connector,
    agent: Credentials,
}

impl Pair {
    async fn new(controller: &Path, agent: &Path) -> Pair {
        let open = |path: &Path, role| Credentials::open(CertificateDir::new(path, role)).unwrap();
        let (controller, agent) = (open(controller, Role::Controller), open(agent, Role::Agent));
        Pair {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            acceptor: Acceptor::new(Some(controller.clone()), &[Role::Agent]),
            controller,
            connector: Connector::to("https://h:1", Some(agent.clone())).unwrap().1,
            agent,
        }
    }

    /// Connects the two. Returns the controller's end and the agent's end of the session.
    async fn connect(&self) -> Result<(MaybeTlsStream, MaybeTlsStream), String> {
        let port = self.listener.local_addr().unwrap().port();
        let listen = async {
            let accepted = self.acceptor.accept(self.listener.accept().await.unwrap().0).await;
            let AcceptedConnection { mut stream, .. } = accepted.map_err(|why| why.to_string())?;
            stream.write_all(b"!").await.unwrap();
            stream.flush().await.unwrap();
            Ok(stream)
        };
        let connect = async {
            let mut stream =
                self.connector.connect("127.0.0.1", port).await.map_err(|why| why.to_string())?;
            assert_eq!(stream.read_u8().await.unwrap(), b'!');
            Ok(stream)
        };
        let (listened, connected) = timeout(TIMEOUT, async { tokio::join!(listen, connect) }).await.unwrap();
        match (listened, connected) {
            (Ok(listened), Ok(connected)) => Ok((listened, connected)),
            (Err(why), _) | (_, Err(why)) => Err(why),
        }
    }

    /// Makes both sides reload their files.
    async fn reload(&self) {
        for credentials in [&self.controller, &self.agent] {
            let before = credentials.readings();
            credentials.reload();
            let read = async {
                while credentials.readings() == before {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(TIMEOUT, read).await.unwrap();
        }
    }
}

/// Sends a byte in each direction. Returns an error if the session has ended.
async fn is_alive(session: &mut (MaybeTlsStream, MaybeTlsStream)) -> io::Result<()> {
    exchange_byte(&mut session.0, &mut session.1).await?;
    exchange_byte(&mut session.1, &mut session.0).await
}

async fn exchange_byte(from: &mut MaybeTlsStream, to: &mut MaybeTlsStream) -> io::Result<()> {
    from.write_all(b"x").await?;
    from.flush().await?;
    to.read_u8().await.map(drop)
}

#[tokio::test]
async fn a_renewed_certificate_serves_new_sessions_and_keeps_old_ones() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let mut session = pair.connect().await.unwrap();
    let until = |pair: &Pair| pair.controller.peers().iter().map(|peer| peer.until).max().unwrap();
    let before = until(&pair);
    make(ours.path(), &request(60, true)).unwrap();
    pair.reload().await;
    let _renewed = pair.connect().await.unwrap();
    is_alive(&mut session).await.unwrap();
    assert_eq!(pair.controller.peers().len(), 2);
    assert!(until(&pair) > before);
    drop(session);
    assert_eq!(pair.controller.peers().len(), 1);
}

#[tokio::test]
async fn changed_files_are_noticed_without_a_reload() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let before = pair.agent.expiries();
    make(ours.path(), &request(60, true)).unwrap();
    let noticed = async {
        while pair.agent.expiries() == before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, noticed).await.unwrap();
    pair.connect().await.unwrap();
}

#[tokio::test]
async fn a_wrong_or_partial_pair_is_ignored_and_the_last_one_is_used() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let certificate = ours.path().join("controller.pem");
    let whole = fs::read(&certificate).unwrap();
    for wrong in [&fs::read(ours.path().join("tool.pem")).unwrap()[..], &whole[..whole.len() / 2], b""] {
        fs::write(&certificate, wrong).unwrap();
        pair.reload().await;
        pair.connect().await.unwrap();
    }
    fs::remove_file(&certificate).unwrap();
    pair.reload().await;
    pair.connect().await.unwrap();
}

#[tokio::test]
async fn revocation_ends_only_the_sessions_of_that_certificate() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let other = Pair::new(ours.path(), ours.path()).await;
    let (mut ended, mut stays) = (pair.connect().await.unwrap(), other.connect().await.unwrap());
    revoke(ours.path(), &["h1".into()]).unwrap();
    // The controller is waiting for data from the agent.
    let waiting = tokio::spawn(async move { ended.0.read_u8().await });
    pair.reload().await;
    other.reload().await;
    let why = timeout(TIMEOUT, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(why.to_string().contains("its certificate has been revoked"), "{why}");
    let refused = pair.connect().await.unwrap_err();
    assert!(refused.contains("its certificate has been revoked"), "{refused}");
    is_alive(&mut stays).await.unwrap();
    other.connect().await.unwrap();
}

#[tokio::test]
async fn agents_refuse_a_controller_with_a_revoked_certificate() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let mut session = pair.connect().await.unwrap();
    revoke(ours.path(), &["controller".into()]).unwrap();
    pair.reload().await;
    let why = timeout(TIMEOUT, session.1.read_u8()).await.unwrap().unwrap_err();
    assert!(why.to_string().contains("its certificate has been revoked"), "{why}");
    pair.connect().await.unwrap_err();
}

#[tokio::test]
async fn an_invalid_revocation_list_is_ignored_for_the_last_one() {
    let (ours, theirs) = (certificates(), certificates());
    let pair = Pair::new(ours.path(), ours.path()).await;
    revoke(ours.path(), &["h1".into()]).unwrap();
    let revoked = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let list = ours.path().join("revoked.pem");
    let genuine = fs::read_to_string(&list).unwrap();
    // The last of these has one wrong byte near the end, in the signature.
    let at = genuine.find("-----END").unwrap() - 8;
    let other = if genuine.as_bytes()[at] == b'A' { "B" } else { "A" };
    let forged = format!("{}{other}{}", &genuine[..at], &genuine[at + 1..]);
    for wrong in ["", "hello", &genuine[..200], &forged] {
        fs::write(&list, wrong).unwrap();
        pair.reload().await;
        revoked.reload().await;
        assert!(revoked.connect().await.is_err(), "{wrong}");
        pair.connect().await.unwrap();
        let refused = Credentials::open(CertificateDir::new(ours.path(), Role::Controller)).unwrap_err();
        assert!(refused.to_string().contains("revoked.pem"), "{refused}");
    }
    // A list of another CA does not concern our certificates.
    revoke(theirs.path(), &["agent".into()]).unwrap();
    fs::copy(theirs.path().join("revoked.pem"), &list).unwrap();
    pair.reload().await;
    pair.connect().await.unwrap();
    fs::remove_file(&list).unwrap();
    revoked.reload().await;
    revoked.connect().await.unwrap();
}

#[tokio::test]
async fn a_ca_is_replaced_in_steps_without_ending_a_session() {
    let ours = certificates();
    let node = ours.path().join("h1");
    let pair = Pair::new(ours.path(), &node).await;
    let old = TempDir::new().unwrap();
    for file in ["ca.pem", "agent.pem", "agent.key"] {
        fs::copy(node.join(file), old.path().join(file)).unwrap();
    }
    let mut session = pair.connect().await.unwrap();
    new_authority(ours.path(), 30).unwrap();
    pair.reload().await;
    pair.connect().await.unwrap();
    // The certificate of one side is renewed before that of the other.
    let former = Pair::new(ours.path(), old.path()).await;
    fs::copy(ours.path().join("ca.pem"), old.path().join("ca.pem")).unwrap();
    make(ours.path(), &request(30, true)).unwrap();
    former.reload().await;
    former.connect().await.unwrap();
    pair.reload().await;
    pair.connect().await.unwrap();
    drop_old_authority(ours.path()).unwrap();
    pair.reload().await;
    pair.connect().await.unwrap();
    former.reload().await;
    assert!(former.connect().await.unwrap_err().contains("another CA"));
    is_alive(&mut session).await.unwrap();
}
