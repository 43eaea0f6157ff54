//! Connections between two sides with certificates from `cool certs`, and with wrong ones.

use cool_tls::make::{CertificateHolder, CertificateRequest, make};
use cool_tls::{
    AcceptedConnection, Acceptor, CertificateDir, CertificateDirError, Connector, Credentials, Identity,
    RejectedConnection, Role,
};
use std::io;
use std::path::Path;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower_service::Service;

fn certificates(days: u16) -> TempDir {
    let directory = TempDir::new().unwrap();
    let address = "10.0.0.1".parse().unwrap();
    let holders = vec![
        CertificateHolder::node("h1", vec![address]),
        CertificateHolder::user("ann"),
        CertificateHolder::switch("leafs", vec![0x2a, 0xb]),
    ];
    make(directory.path(), &CertificateRequest { holders, days, renew: false }).unwrap();
    directory
}

fn open(directory: &Path, role: Role) -> Result<Credentials, CertificateDirError> {
    Credentials::open(CertificateDir::new(directory, role))
}

/// Connects the two. Returns the result of the acceptor, and whether the connecting side could then
/// use the connection.
async fn connect(
    listener: (&Path, &'static [Role]),
    connector: (&Path, Role),
) -> (Result<Option<Identity>, RejectedConnection>, io::Result<()>) {
    let acceptor = Acceptor::new(Some(open(listener.0, Role::Controller).unwrap()), listener.1);
    let (_, connector) = Connector::to("https://h:1", Some(open(connector.0, connector.1).unwrap())).unwrap();
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = socket.local_addr().unwrap().port();
    let server = async {
        let (stream, _) = socket.accept().await.unwrap();
        let AcceptedConnection { mut stream, identity } = acceptor.accept(stream).await?;
        stream.write_all(b"welcome").await.unwrap();
        stream.shutdown().await.unwrap();
        Ok(identity)
    };
    let client = async {
        let mut stream = connector.connect("127.0.0.1", port).await?;
        let mut received = Vec::new();
        stream.read_to_end(&mut received).await?;
        assert_eq!(received, b"welcome");
        Ok(())
    };
    tokio::join!(server, client)
}

#[tokio::test]
async fn peers_of_one_deployment_connect_and_are_identified() {
    let ours = certificates(30);
    let (accepted, used) =
        connect((ours.path(), &[Role::Agent, Role::Tool]), (ours.path(), Role::Tool)).await;
    assert_eq!(accepted, Ok(Some(Identity::for_role(Role::Tool))));
    used.unwrap();
    let node = ours.path().join("h1");
    let (accepted, used) = connect((ours.path(), &[Role::Agent]), (&node, Role::Agent)).await;
    assert_eq!(accepted, Ok(Some(Identity::node("h1", vec!["10.0.0.1".parse().unwrap()]))));
    used.unwrap();
    let switch = ours.path().join("switches/leafs");
    let (accepted, used) = connect((ours.path(), &[Role::Switch]), (&switch, Role::Switch)).await;
    assert_eq!(accepted, Ok(Some(Identity::switch(vec![0x2a, 0xb]))));
    used.unwrap();
    let user = ours.path().join("users/ann");
    let (accepted, used) = connect((ours.path(), &[Role::Tool]), (&user, Role::Tool)).await;
    assert_eq!(accepted, Ok(Some(Identity::user("ann"))));
    used.unwrap();
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused_by_both_sides() {
    let (ours, theirs) = (certificates(30), certificates(30));
    let (accepted, used) = connect((ours.path(), &[Role::Tool]), (theirs.path(), Role::Tool)).await;
    assert!(used.unwrap_err().to_string().contains("another CA"));
    assert!(accepted.unwrap_err().to_string().contains("CA"));
    // If the connecting side trusts the CA, only the listener rejects the connection.
    std::fs::copy(ours.path().join("ca.pem"), theirs.path().join("ca.pem")).unwrap();
    let (accepted, used) = connect((ours.path(), &[Role::Tool]), (theirs.path(), Role::Tool)).await;
    assert!(accepted.unwrap_err().to_string().contains("its certificate was issued by another CA"));
    assert!(used.unwrap_err().to_string().contains("our certificate was issued by another CA"));
}

#[tokio::test]
async fn an_expired_certificate_is_refused_and_the_remedy_named() {
    let ours = certificates(0);
    let (accepted, used) = connect((ours.path(), &[Role::Tool]), (ours.path(), Role::Tool)).await;
    assert!(used.unwrap_err().to_string().contains("its certificate has expired; renew it"));
    assert!(accepted.unwrap_err().to_string().contains("our certificate has expired; renew it"));
}

#[tokio::test]
async fn a_role_is_accepted_only_where_it_is_required() {
    let ours = certificates(30);
    let (accepted, _) = connect((ours.path(), &[Role::Switch]), (ours.path(), Role::Agent)).await;
    assert_eq!(
        accepted.unwrap_err(),
        RejectedConnection::Role { shown: "agent".into(), required: "switch".into() }
    );
}

#[tokio::test]
async fn an_agents_certificate_cannot_serve_as_controller() {
    let (ours, fake) = (certificates(30), certificates(30));
    for (from, to) in [("ca.pem", "ca.pem"), ("agent.pem", "controller.pem"), ("agent.key", "controller.key")]
    {
        std::fs::copy(ours.path().join(from), fake.path().join(to)).unwrap();
    }
    let (accepted, used) = connect((fake.path(), &[Role::Tool]), (ours.path(), Role::Tool)).await;
    let text = used.unwrap_err().to_string();
    assert!(text.contains("its certificate is"), "{text}");
    accepted.unwrap_err();
}

#[tokio::test]
async fn plain_text_at_a_tls_port_is_reported() {
    let ours = certificates(30);
    let acceptor = Acceptor::new(Some(open(ours.path(), Role::Controller).unwrap()), &[Role::Tool]);
    let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut client = TcpStream::connect(socket.local_addr().unwrap()).await.unwrap();
    client.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    let refused = acceptor.accept(socket.accept().await.unwrap().0).await.unwrap_err();
    assert!(refused.to_string().contains("does not speak TLS"), "{refused}");
}

#[tokio::test]
async fn the_serving_address_is_found_despite_a_silent_one() {
    let ours = certificates(30);
    let tool = open(ours.path(), Role::Tool).unwrap();
    let listen = || TcpListener::bind("127.0.0.1:0");
    let (closed, silent, serving) =
        (listen().await.unwrap(), listen().await.unwrap(), listen().await.unwrap());
    let [closed_address, quiet, here] =
        [&closed, &silent, &serving].map(|listener| listener.local_addr().unwrap().to_string());
    drop(closed);
    let acceptor = Acceptor::new(Some(open(ours.path(), Role::Controller).unwrap()), &[Role::Tool]);
    let (first, mut connector) =
        Connector::to(&format!("{closed_address}, {quiet},https://{here}"), Some(tool.clone())).unwrap();
    assert_eq!(first.to_string(), format!("https://{closed_address}/"));
    // Repeat, because the first address changes each time.
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
    let (_, mut connector) = Connector::to(&format!("{closed_address},{here}"), Some(tool.clone())).unwrap();
    let failure = connector.call(first).await.map(drop).unwrap_err().to_string();
    assert!(failure.contains(&closed_address) && failure.contains(&here), "{failure}");
    let failure = Connector::to("127.0.0.1:7400,,", Some(tool.clone())).map(drop).unwrap_err();
    assert!(failure.to_string().contains("https://HOST:7400"), "{failure}");
}

#[test]
fn missing_and_invalid_files_are_named() {
    let directory = TempDir::new().unwrap();
    let message = || open(directory.path(), Role::Controller).unwrap_err().to_string();
    let missing = message();
    assert!(missing.contains("ca.pem") && missing.contains("cool certs"), "{missing}");
    std::fs::write(directory.path().join("ca.pem"), "hello").unwrap();
    let empty = message();
    assert!(empty.contains("ca.pem: it contains no"), "{empty}");
}
