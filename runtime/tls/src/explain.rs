//! What a failed TLS connection means, in a line for people.

use std::error::Error;
use std::io;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as TlsError};

/// Says in plain words why TLS failed, if `error` or a cause of it says so; "it" is the other side.
pub fn explain(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        // An io::Error shows the error in it as itself, and its cause is that one's cause.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let found = error.downcast_ref().or_else(|| inner.and_then(|inner| inner.downcast_ref()));
        if let Some(found) = found {
            return Some(in_words(found));
        }
        next = error.source();
    }
    None
}

fn in_words(error: &TlsError) -> String {
    let text = match error {
        TlsError::InvalidMessage(_) => "it does not speak TLS; is one side set to --insecure-plaintext?",
        TlsError::NoCertificatesPresented => "it shows no certificate; give it one made by `cool certs`",
        TlsError::InvalidCertificate(why) => return certificate(why),
        TlsError::AlertReceived(AlertDescription::CertificateExpired) => {
            "it says that our certificate has expired; renew it with `cool certs --renew`"
        }
        TlsError::AlertReceived(AlertDescription::CertificateRevoked) => {
            "it says that our certificate has been revoked; ask for another one, made by `cool certs`"
        }
        TlsError::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "it says that our certificate is of another CA; use certificates of one `cool certs` folder"
        }
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => {
            "it wants a certificate of ours; name a folder made by `cool certs` with --certs"
        }
        TlsError::AlertReceived(alert) => return format!("it refuses our certificate or TLS: {alert:?}"),
        TlsError::PeerIncompatible(why) => return format!("no common version or method of TLS: {why:?}"),
        other => return format!("TLS failed: {other}"),
    };
    text.to_owned()
}

fn certificate(why: &CertificateError) -> String {
    let text = match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; renew it with `cool certs --renew`"
        }
        CertificateError::Revoked => "its certificate has been revoked",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; are both clocks right?"
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate is of another CA; use certificates of one `cool certs` folder"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is not a controller's; give it controller.pem of the `cool certs` folder"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is for the other side of a connection; give it that of its own role"
        }
        other => return format!("its certificate is refused: {other}"),
    };
    text.to_owned()
}

/// An error of a TLS connection in plain words, others as they are.
pub(crate) fn explained(error: io::Error) -> io::Error {
    match explain(&error) {
        Some(text) => io::Error::new(error.kind(), text),
        None => error,
    }
}
