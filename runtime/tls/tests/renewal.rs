//! Certificates that change under a program that runs: new connections go by the new ones, sessions go on, unless revoked.

use cool_tls::make::{CertificateRequest, Holder, drop_old_authority, make, new_authority, revoke};
use cool_tls::{Accepted, Acceptor, Connector, Credentials, Folder, Role, Stream};
use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

/// Longer than anything takes.
const PATIENCE: Duration = Duration::from_secs(60);

fn certificates() -> TempDir {
    let folder = TempDir::new().unwrap();
    make(folder.path(), &request(30, false)).unwrap();
    folder
}

fn request(days: u16, renew: bool) -> CertificateRequest {
    CertificateRequest { holders: vec![Holder::node("h1", Vec::new())], days, renew }
}

/// A controller that listens, and an agent.
struct Pair {
    listener: TcpListener,
    acceptor: Acceptor,
    controller: Credentials,
    connector: Connector,
    agent: Credentials,
}

impl Pair {
    async fn new(controller: &Path, agent: &Path) -> Pair {
        let open = |path: &Path, role| Credentials::open(Folder::new(path, role)).unwrap();
        let (controller, agent) = (open(controller, Role::Controller), open(agent, Role::Agent));
        Pair {
            listener: TcpListener::bind("127.0.0.1:0").await.unwrap(),
            acceptor: Acceptor::new(Some(controller.clone()), &[Role::Agent]),
            controller,
            connector: Connector::to("https://h:1", Some(agent.clone())).unwrap().1,
            agent,
        }
    }

    /// A session between them, if they take each other: the controller's end, then the agent's.
    async fn meet(&self) -> Result<(Stream, Stream), String> {
        let port = self.listener.local_addr().unwrap().port();
        let listen = async {
            let accepted = self.acceptor.accept(self.listener.accept().await.unwrap().0).await;
            let Accepted { mut stream, .. } = accepted.map_err(|why| why.to_string())?;
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
        let (listened, connected) = timeout(PATIENCE, async { tokio::join!(listen, connect) }).await.unwrap();
        match (listened, connected) {
            (Ok(listened), Ok(connected)) => Ok((listened, connected)),
            (Err(why), _) | (_, Err(why)) => Err(why),
        }
    }

    /// Both have read their files again.
    async fn reload(&self) {
        for credentials in [&self.controller, &self.agent] {
            let before = credentials.readings();
            credentials.reload();
            let read = async {
                while credentials.readings() == before {
                    sleep(Duration::from_millis(1)).await;
                }
            };
            timeout(PATIENCE, read).await.unwrap();
        }
    }
}

/// What one end says, the other hears.
async fn is_alive(session: &mut (Stream, Stream)) -> io::Result<()> {
    say(&mut session.0, &mut session.1).await?;
    say(&mut session.1, &mut session.0).await
}

async fn say(from: &mut Stream, to: &mut Stream) -> io::Result<()> {
    from.write_all(b"x").await?;
    from.flush().await?;
    to.read_u8().await.map(drop)
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_by_the_next_connection_and_the_session_goes_on() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let mut session = pair.meet().await.unwrap();
    let until = |pair: &Pair| pair.controller.peers().iter().map(|peer| peer.until).max().unwrap();
    let before = until(&pair);
    make(ours.path(), &request(60, true)).unwrap();
    pair.reload().await;
    let _renewed = pair.meet().await.unwrap();
    is_alive(&mut session).await.unwrap();
    assert_eq!(pair.controller.peers().len(), 2);
    assert!(until(&pair) > before);
    drop(session);
    assert_eq!(pair.controller.peers().len(), 1);
}

#[tokio::test]
async fn what_changes_is_noticed_without_being_told() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let before = pair.agent.expiries();
    make(ours.path(), &request(60, true)).unwrap();
    let noticed = async {
        while pair.agent.expiries() == before {
            sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(PATIENCE, noticed).await.unwrap();
    pair.meet().await.unwrap();
}

#[tokio::test]
async fn a_pair_that_does_not_match_or_is_half_written_is_not_used_and_the_one_before_is() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let certificate = ours.path().join("controller.pem");
    let whole = fs::read(&certificate).unwrap();
    for wrong in [&fs::read(ours.path().join("tool.pem")).unwrap()[..], &whole[..whole.len() / 2], b""] {
        fs::write(&certificate, wrong).unwrap();
        pair.reload().await;
        pair.meet().await.unwrap();
    }
    fs::remove_file(&certificate).unwrap();
    pair.reload().await;
    pair.meet().await.unwrap();
}

#[tokio::test]
async fn a_revoked_certificate_ends_its_session_and_begins_no_other_and_others_go_on() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let other = Pair::new(ours.path(), ours.path()).await;
    let (mut ended, mut stays) = (pair.meet().await.unwrap(), other.meet().await.unwrap());
    revoke(ours.path(), &["h1".into()]).unwrap();
    // The controller is waiting for what the agent says.
    let waiting = tokio::spawn(async move { ended.0.read_u8().await });
    pair.reload().await;
    other.reload().await;
    let why = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap_err();
    assert!(why.to_string().contains("its certificate has been revoked"), "{why}");
    let refused = pair.meet().await.unwrap_err();
    assert!(refused.contains("its certificate has been revoked"), "{refused}");
    is_alive(&mut stays).await.unwrap();
    other.meet().await.unwrap();
}

#[tokio::test]
async fn agents_refuse_a_controller_whose_certificate_is_revoked() {
    let ours = certificates();
    let pair = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let mut session = pair.meet().await.unwrap();
    revoke(ours.path(), &["controller".into()]).unwrap();
    pair.reload().await;
    let why = timeout(PATIENCE, session.1.read_u8()).await.unwrap().unwrap_err();
    assert!(why.to_string().contains("its certificate has been revoked"), "{why}");
    pair.meet().await.unwrap_err();
}

#[tokio::test]
async fn a_list_that_cannot_be_read_is_not_used_and_the_one_before_is() {
    let (ours, theirs) = (certificates(), certificates());
    let pair = Pair::new(ours.path(), ours.path()).await;
    revoke(ours.path(), &["h1".into()]).unwrap();
    let revoked = Pair::new(ours.path(), &ours.path().join("h1")).await;
    let list = ours.path().join("revoked.pem");
    let genuine = fs::read_to_string(&list).unwrap();
    // Also one in which a bit of the signature, the last thing in it, is another.
    let at = genuine.find("-----END").unwrap() - 8;
    let other = if genuine.as_bytes()[at] == b'A' { "B" } else { "A" };
    let forged = format!("{}{other}{}", &genuine[..at], &genuine[at + 1..]);
    for wrong in ["", "hello", &genuine[..200], &forged] {
        fs::write(&list, wrong).unwrap();
        pair.reload().await;
        revoked.reload().await;
        assert!(revoked.meet().await.is_err(), "{wrong}");
        pair.meet().await.unwrap();
        let refused = Credentials::open(Folder::new(ours.path(), Role::Controller)).unwrap_err();
        assert!(refused.to_string().contains("revoked.pem"), "{refused}");
    }
    // A list of another CA says nothing of ours.
    revoke(theirs.path(), &["agent".into()]).unwrap();
    fs::copy(theirs.path().join("revoked.pem"), &list).unwrap();
    pair.reload().await;
    pair.meet().await.unwrap();
    fs::remove_file(&list).unwrap();
    revoked.reload().await;
    revoked.meet().await.unwrap();
}

#[tokio::test]
async fn a_ca_is_replaced_step_by_step_and_no_session_ends() {
    let ours = certificates();
    let node = ours.path().join("h1");
    let pair = Pair::new(ours.path(), &node).await;
    let old = TempDir::new().unwrap();
    for file in ["ca.pem", "agent.pem", "agent.key"] {
        fs::copy(node.join(file), old.path().join(file)).unwrap();
    }
    let mut session = pair.meet().await.unwrap();
    new_authority(ours.path(), 30).unwrap();
    pair.reload().await;
    pair.meet().await.unwrap();
    // One side is renewed before the other.
    let former = Pair::new(ours.path(), old.path()).await;
    fs::copy(ours.path().join("ca.pem"), old.path().join("ca.pem")).unwrap();
    make(ours.path(), &request(30, true)).unwrap();
    former.reload().await;
    former.meet().await.unwrap();
    pair.reload().await;
    pair.meet().await.unwrap();
    drop_old_authority(ours.path()).unwrap();
    pair.reload().await;
    pair.meet().await.unwrap();
    former.reload().await;
    assert!(former.meet().await.unwrap_err().contains("another CA"));
    is_alive(&mut session).await.unwrap();
}
