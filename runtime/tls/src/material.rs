//! What a folder holds, read whole and checked: how TLS is spoken by it, what it says is revoked, and until when it is good.

use crate::expiry::Expiry;
use crate::explain::explain;
use crate::folder::{AUTHORITIES, Folder, FolderError, REVOKED};
use crate::provider;
use std::collections::BTreeSet;
use std::error::Error;
use std::sync::Arc;
use tokio_rustls::rustls::client::{Resumption, WebPkiServerVerifier};
use tokio_rustls::rustls::pki_types::{CertificateDer, CertificateRevocationListDer};
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

/// Issuer and serial number of what is revoked.
type Revoked = BTreeSet<(Vec<u8>, Vec<u8>)>;

/// One reading of a folder. Sessions are never resumed: who connects is checked by what is known then.
#[derive(Debug)]
pub(crate) struct Material {
    /// For the side that listens: shows the role's certificate, and wants one of our CAs.
    pub(crate) server: Arc<ServerConfig>,
    /// For the side that connects: likewise.
    pub(crate) client: Arc<ClientConfig>,
    revoked: Revoked,
    /// Until when the role's certificate and those of the CAs are good.
    pub(crate) expiries: Vec<Expiry>,
}

impl Material {
    /// What the folder holds now.
    pub(crate) fn read(folder: &Folder) -> Result<Material, FolderError> {
        let authorities = folder.authorities()?;
        let mut roots = RootCertStore::empty();
        for authority in &authorities {
            let added = roots.add(authority.clone());
            added.map_err(|error| folder.unusable(AUTHORITIES, in_words(&error)))?;
        }
        let (roots, chain) = (Arc::new(roots), folder.certificates()?);
        let lists = folder.revoked()?;
        let revoked = check(&lists, &authorities).map_err(|why| folder.unusable(REVOKED, why))?;
        let no_lists = |error: &(dyn Error + 'static)| folder.unusable(REVOKED, in_words(error));
        let expiries = Expiry::all(folder.role(), &chain, &authorities);

        let clients = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider())
            .with_crls(lists.clone())
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| no_lists(&error))?;
        let mut server = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| folder.own_unusable(in_words(&error)))?
            .with_client_cert_verifier(clients)
            .with_single_cert(chain.clone(), folder.key()?)
            .map_err(|error| folder.own_unusable(in_words(&error)))?;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        server.alpn_protocols = vec![b"h2".to_vec()];

        let servers = WebPkiServerVerifier::builder_with_provider(roots, provider())
            .with_crls(lists)
            .allow_unknown_revocation_status()
            .build()
            .map_err(|error| no_lists(&error))?;
        let mut client = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| folder.own_unusable(in_words(&error)))?
            .with_webpki_verifier(servers)
            .with_client_auth_cert(chain, folder.key()?)
            .map_err(|error| folder.own_unusable(in_words(&error)))?;
        client.resumption = Resumption::disabled();
        client.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Material { server: Arc::new(server), client: Arc::new(client), revoked, expiries })
    }

    /// Whether this certificate is revoked.
    pub(crate) fn revokes(&self, certificate: &CertificateDer<'_>) -> bool {
        let parsed = X509Certificate::from_der(certificate);
        parsed.is_ok_and(|(_, certificate)| {
            let (issuer, serial) = (certificate.issuer().as_raw(), certificate.raw_serial());
            self.revoked.contains(&(issuer.to_vec(), serial.to_vec()))
        })
    }
}

/// What the lists say is revoked. Each must be signed by the CA whose it says that it is; those of other CAs say nothing.
fn check(
    lists: &[CertificateRevocationListDer<'_>],
    authorities: &[CertificateDer<'_>],
) -> Result<Revoked, String> {
    let mut revoked = Revoked::new();
    for list in lists {
        let parsed = CertificateRevocationList::from_der(list);
        let (_, list) = parsed.map_err(|error| format!("no list of revoked certificates: {error}"))?;
        let issuer = list.issuer().as_raw();
        let mut ours = authorities.iter().filter_map(|ours| Some(X509Certificate::from_der(ours).ok()?.1));
        let Some(authority) = ours.find(|authority| authority.subject().as_raw() == issuer) else { continue };
        let signed = list.verify_signature(authority.public_key());
        signed.map_err(|_| format!("its list is not signed by {}", authority.subject()))?;
        let serials = list.iter_revoked_certificates().map(|entry| entry.raw_serial());
        revoked.extend(serials.map(|serial| (issuer.to_vec(), serial.to_vec())));
    }
    Ok(revoked)
}

fn in_words(error: &(dyn Error + 'static)) -> String {
    explain(error).unwrap_or_else(|| error.to_string())
}
