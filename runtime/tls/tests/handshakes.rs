//! Connections between two sides with certificates as `cool certs` makes them, and with wrong ones.

use cool_tls::make::{CertificateRequest, Holder, make};
use cool_tls::{Accepted, Acceptor, Connector, Credentials, Folder, FolderError, Identity, Rejected, Role};
use std::io;
use std::path::Path;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

fn certificates(days: u16) -> TempDir {
    let folder = TempDir::new().unwrap();
    let address = "10.0.0.1".parse().unwrap();
    let holders = vec![
        Holder::node("h1", vec![address]),
        Holder::user("ann"),
        Holder::switch("leafs", vec![0x2a, 0xb]),
    ];
    make(folder.path(), &CertificateRequest { holders, days, renew: false }).unwrap();
    folder
}

fn open(folder: &Path, role: Role) -> Result<Credentials, FolderError> {
    Credentials::open(Folder::new(folder, role))
}

/// What came of a connection: who was let in, and whether the other side could then use it.
async fn meet(
    listener: (&Path, &'static [Role]),
    connector: (&Path, Role),
) -> (Result<Option<Identity>, Rejected>, io::Result<()>) {
    let acceptor = Acceptor::new(Some(open(listener.0, Role::Controller).unwrap()), listener.1);
    let (_, connector) = Connector::to("https://h:1", Some(open(connector.0, connector.1).unwrap())).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let listen = async {
        let (stream, _) = socket.accept().await.unwrap();
        let Accepted { mut stream, identity } = acceptor.accept(stream).await?;
        stream.write_all(b"welcome").await.unwrap();
        stream.shutdown().await.unwrap();
        Ok(identity)
    };
    let connect = async {
        let mut stream = connector.connect("127.0.0.1", port).await?;
        let mut heard = Vec::new();
        stream.read_to_end(&mut heard).await?;
        assert_eq!(heard, b"welcome");
        Ok(())
    };
    tokio::join!(listen, connect)
}

#[tokio::test]
async fn holders_of_one_deployments_certificates_meet_and_the_listener_learns_whom() {
    let ours = certificates(30);
    let (met, used) = meet((ours.path(), &[Role::Agent, Role::Tool]), (ours.path(), Role::Tool)).await;
    assert_eq!(met, Ok(Some(Identity::of(Role::Tool))));
    used.unwrap();
    let node = ours.path().join("h1");
    let (met, used) = meet((ours.path(), &[Role::Agent]), (&node, Role::Agent)).await;
    assert_eq!(met, Ok(Some(Identity::node("h1", vec!["10.0.0.1".parse().unwrap()]))));
    used.unwrap();
    let switch = ours.path().join("switches/leafs");
    let (met, used) = meet((ours.path(), &[Role::Switch]), (&switch, Role::Switch)).await;
    assert_eq!(met, Ok(Some(Identity::switch(vec![0x2a, 0xb]))));
    used.unwrap();
    let user = ours.path().join("users/ann");
    let (met, used) = meet((ours.path(), &[Role::Tool]), (&user, Role::Tool)).await;
    assert_eq!(met, Ok(Some(Identity::user("ann"))));
    used.unwrap();
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused_by_both_sides() {
    let (ours, theirs) = (certificates(30), certificates(30));
    let (met, used) = meet((ours.path(), &[Role::Tool]), (theirs.path(), Role::Tool)).await;
    assert!(used.unwrap_err().to_string().contains("another CA"));
    assert!(met.unwrap_err().to_string().contains("CA"));
    // Only the listener minds if the other side trusts it.
    std::fs::copy(ours.path().join("ca.pem"), theirs.path().join("ca.pem")).unwrap();
    let (met, used) = meet((ours.path(), &[Role::Tool]), (theirs.path(), Role::Tool)).await;
    assert!(met.unwrap_err().to_string().contains("its certificate is of another CA"));
    assert!(used.unwrap_err().to_string().contains("our certificate is of another CA"));
}

#[tokio::test]
async fn an_expired_certificate_is_refused_and_the_remedy_named() {
    let ours = certificates(0);
    let (met, used) = meet((ours.path(), &[Role::Tool]), (ours.path(), Role::Tool)).await;
    assert!(used.unwrap_err().to_string().contains("its certificate has expired; renew it"));
    assert!(met.unwrap_err().to_string().contains("our certificate has expired; renew it"));
}

#[tokio::test]
async fn a_role_is_let_in_only_where_it_is_wanted() {
    let ours = certificates(30);
    let (met, _) = meet((ours.path(), &[Role::Switch]), (ours.path(), Role::Agent)).await;
    assert_eq!(met.unwrap_err(), Rejected::Role { said: "agent".into(), wanted: "switch".into() });
}

#[tokio::test]
async fn an_agents_certificate_does_not_play_the_controller() {
    let (ours, fake) = (certificates(30), certificates(30));
    for (from, to) in [("ca.pem", "ca.pem"), ("agent.pem", "controller.pem"), ("agent.key", "controller.key")]
    {
        std::fs::copy(ours.path().join(from), fake.path().join(to)).unwrap();
    }
    let (met, used) = meet((fake.path(), &[Role::Tool]), (ours.path(), Role::Tool)).await;
    let text = used.unwrap_err().to_string();
    assert!(text.contains("its certificate is"), "{text}");
    met.unwrap_err();
}

#[tokio::test]
async fn plain_text_at_a_tls_port_is_named() {
    let ours = certificates(30);
    let acceptor = Acceptor::new(Some(open(ours.path(), Role::Controller).unwrap()), &[Role::Tool]);
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(socket.local_addr().unwrap()).await.unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let turned = acceptor.accept(socket.accept().await.unwrap().0).await.unwrap_err();
    assert!(turned.to_string().contains("does not speak TLS"), "{turned}");
}

#[tokio::test]
async fn of_several_addresses_the_one_that_serves_is_found_and_a_silent_one_holds_nobody_up() {
    let ours = certificates(30);
    let tool = open(ours.path(), Role::Tool).unwrap();
    let listen = || TcpListener::bind("127.0.0.1:0");
    let (closed, silent, serving) =
        (listen().await.unwrap(), listen().await.unwrap(), listen().await.unwrap());
    let [nobody, quiet, here] =
        [&closed, &silent, &serving].map(|listener| listener.local_addr().unwrap().to_string());
    drop(closed);
    let acceptor = Acceptor::new(Some(open(ours.path(), Role::Controller).unwrap()), &[Role::Tool]);
    let (first, mut connector) =
        Connector::to(&format!("{nobody}, {quiet},https://{here}"), Some(tool.clone())).unwrap();
    assert_eq!(first.to_string(), format!("https://{nobody}/"));
    // Whichever comes first.
    for _ in 0..3 {
        let serve = async {
            let mut accepted = acceptor.accept(serving.accept().await.unwrap().0).await.unwrap();
            accepted.stream.write_all(b"welcome").await.unwrap();
            accepted.stream.flush().await.unwrap();
        };
        let (connected, ()) = tokio::join!(connector.call(first.clone()), serve);
        connected.unwrap();
    }
    drop(serving);
    let (_, mut connector) = Connector::to(&format!("{nobody},{here}"), Some(tool.clone())).unwrap();
    let failure = connector.call(first).await.map(drop).unwrap_err().to_string();
    assert!(failure.contains(&nobody) && failure.contains(&here), "{failure}");
    let failure = Connector::to("127.0.0.1:7400,,", Some(tool.clone())).map(drop).unwrap_err();
    assert!(failure.to_string().contains("https://HOST:7400"), "{failure}");
}

#[test]
fn files_that_are_missing_or_hold_something_else_are_named() {
    let folder = TempDir::new().unwrap();
    let says = || open(folder.path(), Role::Controller).unwrap_err().to_string();
    let missing = says();
    assert!(missing.contains("ca.pem") && missing.contains("cool certs"), "{missing}");
    std::fs::write(folder.path().join("ca.pem"), "hello").unwrap();
    let empty = says();
    assert!(empty.contains("ca.pem: it holds no"), "{empty}");
}
