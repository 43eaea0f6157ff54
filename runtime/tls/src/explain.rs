//! Explains TLS errors in one line for operators.

use std::error::Error;
use std::io;
use tokio_rustls::rustls::{AlertDescription, CertificateError, Error as TlsError};

/// Returns an explanation if `error` or one of its causes is a TLS error. In the text, "it" is the
/// peer.
pub fn explain(error: &(dyn Error + 'static)) -> Option<String> {
    let mut next = Some(error);
    while let Some(error) = next {
        // `io::Error::source` skips the wrapped error itself, so check that error here.
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let found = error.downcast_ref().or_else(|| inner.and_then(|inner| inner.downcast_ref()));
        if let Some(found) = found {
            return Some(describe(found));
        }
        next = error.source();
    }
    None
}

fn describe(error: &TlsError) -> String {
    let text = match error {
        TlsError::InvalidMessage(_) => "it does not speak TLS; is one side set to --insecure-plaintext?",
        TlsError::NoCertificatesPresented => "it has no certificate; give it one made by `cool certs`",
        TlsError::InvalidCertificate(why) => return describe_certificate_error(why),
        TlsError::AlertReceived(AlertDescription::CertificateExpired) => {
            "it reports that our certificate has expired; renew it with `cool certs --renew`"
        }
        TlsError::AlertReceived(AlertDescription::CertificateRevoked) => {
            "it reports that our certificate has been revoked; ask for a new one made by `cool certs`"
        }
        TlsError::AlertReceived(AlertDescription::UnknownCA | AlertDescription::DecryptError) => {
            "it reports that our certificate was issued by another CA; use certificates from the same `cool certs` directory"
        }
        TlsError::AlertReceived(AlertDescription::CertificateRequired) => {
            "it requires a certificate from us; name a directory made by `cool certs` with --certs"
        }
        TlsError::AlertReceived(alert) => {
            return format!("it refused our certificate or TLS settings: {alert:?}");
        }
        TlsError::InconsistentKeys(_) => "the private key does not belong to the certificate",
        TlsError::PeerIncompatible(why) => {
            return format!("no TLS version or cipher suite in common: {why:?}");
        }
        other => return format!("TLS failed: {other}"),
    };
    text.to_owned()
}

fn describe_certificate_error(why: &CertificateError) -> String {
    let text = match why {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "its certificate has expired; renew it with `cool certs --renew`"
        }
        CertificateError::Revoked => "its certificate has been revoked",
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "its certificate is not valid yet; check the clocks of both machines"
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "its certificate was issued by another CA; use certificates from the same `cool certs` directory"
        }
        CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
            "its certificate is not a controller's; give it controller.pem from the `cool certs` directory"
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "its certificate is for the other side of a connection; give it the one for its own role"
        }
        other => return format!("its certificate was refused: {other}"),
    };
    text.to_owned()
}

/// Replaces the message of a TLS error with its explanation. Returns other errors unchanged.
pub(crate) fn explained(error: io::Error) -> io::Error {
    match explain(&error) {
        Some(text) => io::Error::new(error.kind(), text),
        None => error,
    }
}
