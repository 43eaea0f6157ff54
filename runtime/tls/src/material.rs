//! Loads and checks the content of a certificate directory: TLS configurations, revoked
//! certificates and expiry.

use crate::directory::{AUTHORITIES_FILE, CertificateDir, CertificateDirError, REVOKED_FILE};
use crate::expiry::Expiry;
use crate::explain::explain;
use crate::provider;
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// Issuer and serial number of each revoked certificate.
type RevokedSerials = BTreeSet<(Vec<u8>, Vec<u8>)>;

/// The content of a directory at one time. TLS sessions are never resumed, so that each connection
/// is checked against the current certificates and revocations.
#[derive(Debug)]
pub(crate) struct Material {
    /// TLS configuration for listening. It requires a client certificate of our CAs.
    pub(crate) server: Arc<ServerConfig>,
    /// TLS configuration for connecting. It requires a server certificate of our CAs.
    pub(crate) client: Arc<ClientConfig>,
    revoked: RevokedSerials,
    /// Expiry of the role's certificate and of each CA.
    pub(crate) expiries: Vec<Expiry>,
}

impl Material {
    /// Loads the current content of the directory.
    pub(crate) fn read(directory: &CertificateDir) -> Result<Material, CertificateDirError> {
        let authorities = directory.authorities()?;
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            let added = roots.add(authority.clone());
            added.map_err(|error| directory.file_error(AUTHORITIES_FILE, describe(&error)))?;
        }
        let (roots, chain) = (Arc::new(roots), directory.certificates()?);
        let lists = directory.revoked()?;
        let revoked =
            revoked_serials(&lists, &authorities).map_err(|why| directory.file_error(REVOKED_FILE, why))?;
        let list_error = |error: &(dyn Error + 'static)| directory.file_error(REVOKED_FILE, describe(error));
        let expiries = Expiry::all(directory.role(), &chain, &authorities);

        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .with_crls(lists.clone())
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| list_error(&error))?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| directory.own_error(describe(&error)))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), directory.key()?)
            .map_err(|error| directory.own_error(describe(&error)))?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![b"h2".to_vec()];

        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .with_crls(lists)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| list_error(&error))?;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| directory.own_error(describe(&error)))?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain, directory.key()?)
            .map_err(|error| directory.own_error(describe(&error)))?;
        client.resumption = Resumption::disabled();
        client.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Material { server: Arc::new(server), client: Arc::new(client), revoked, expiries })
    }

    /// Returns whether this certificate is revoked.
    pub(crate) fn revokes(&self, certificate: &CertificateDer<'_>) -> bool {
        let parsed = X509Certificate::from_der(certificate);
        parsed.is_ok_and(|(_, certificate)| {
            let (issuer, serial) = (certificate.issuer().as_raw(), certificate.raw_serial());
            self.revoked.contains(&(issuer.to_vec(), serial.to_vec()))
        })
    }
}

/// Returns the serial numbers in the revocation lists. Each list must be signed by its issuer.
/// Lists of unknown CAs are ignored.
fn revoked_serials(
    lists: &[CertificateRevocationListDer<'_>],
    authorities: &[CertificateDer<'_>],
) -> Result<RevokedSerials, String> {
    let mut revoked = RevokedSerials::new();
    for list in lists {
        let parsed = CertificateRevocationList::from_der(list);
        let (_, list) = parsed.map_err(|error| format!("not a certificate revocation list: {error}"))?;
        let issuer = list.issuer().as_raw();
        let mut ours = authorities.iter().filter_map(|ours| Some(X509Certificate::from_der(ours).ok()?.1));
        let Some(authority) = ours.find(|authority| authority.subject().as_raw() == issuer) else { continue };
        let signed = list.verify_signature(authority.public_key());
        signed.map_err(|_| format!("the revocation list is not signed by {}", authority.subject()))?;
        let serials = list.iter_revoked_certificates().map(|entry| entry.raw_serial());
        revoked.extend(serials.map(|serial| (issuer.to_vec(), serial.to_vec())));
    }
    Ok(revoked)
}

fn describe(error: &(dyn Error + 'static)) -> String {
    explain(error).unwrap_or_else(|| error.to_string())
}
