//! Expiry of certificates, and when to warn about it.

use crate::role::Role;
use time::{Duration, OffsetDateTime};
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long before its expiry a certificate is reported.
pub const EXPIRY_WARNING: Duration = Duration::days(30);
/// How often a warning is repeated.
const REMINDER_INTERVAL: Duration = Duration::days(1);

/// The holder of a certificate, and when the certificate expires.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Holder of the certificate: a role, or `ca`.
    pub holder: &'static str,
    /// When it expires.
    pub until: OffsetDateTime,
}

/// Returns when a certificate expires, or `None` if it cannot be parsed.
pub(crate) fn expiry_of(certificate: &CertificateDer<'_>) -> Option<OffsetDateTime> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(certificate.validity().not_after.to_datetime())
}

/// Returns a text such as "expires on 2027-01-05, in 12 days" if a certificate has expired or
/// expires soon, otherwise `None`.
pub fn expiring(until: OffsetDateTime, now: OffsetDateTime) -> Option<String> {
    let left = until - now;
    if left.is_negative() {
        return Some(format!("expired on {}", until.date()));
    }
    (left <= EXPIRY_WARNING).then(|| format!("expires on {}, in {} days", until.date(), left.whole_days()))
}

impl Expiry {
    /// Returns the expiry of a role's certificate and of each CA.
    pub(crate) fn all(
        role: Role,
        chain: &[CertificateDer<'_>],
        authorities: &[CertificateDer<'_>],
    ) -> Vec<Expiry> {
        let own = chain.first().map(|certificate| (role.name(), certificate));
        let authorities = authorities.iter().map(|certificate| ("ca", certificate));
        let all = own.into_iter().chain(authorities);
        all.filter_map(|(holder, certificate)| Some(Expiry { holder, until: expiry_of(certificate)? }))
            .collect()
    }

    /// Returns how to renew the certificate.
    pub fn remedy(&self) -> &'static str {
        match self.holder {
            "ca" => "replace it with `cool certs --new-ca`",
            _ => "renew it with `cool certs --renew`",
        }
    }

    /// Returns a warning if the certificate has expired or expires soon.
    pub fn warning(&self, now: OffsetDateTime) -> Option<String> {
        let state = expiring(self.until, now)?;
        Some(format!("the certificate of {} {state}; {}", self.holder, self.remedy()))
    }
}

/// Decides when to warn: immediately, then once a day.
#[derive(Debug, Default)]
pub(crate) struct Reminder {
    last: Option<OffsetDateTime>,
}

impl Reminder {
    /// Returns whether to warn now. Warns as well if the clock was set back, because the next
    /// reminder could otherwise be far in the future.
    pub(crate) fn due(&mut self, now: OffsetDateTime) -> bool {
        let due = self.last.is_none_or(|last| now < last || now - last >= REMINDER_INTERVAL);
        if due {
            self.last = Some(now);
        }
        due
    }

    /// Restarts the reminder, because the certificates were reloaded.
    pub(crate) fn reset(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_near_or_past_expiry_is_reported_with_a_remedy() {
        let now = OffsetDateTime::UNIX_EPOCH + Duration::days(10_000);
        let warning = |holder, left: Duration| Expiry { holder, until: now + left }.warning(now);
        assert_eq!(warning("agent", Duration::days(30) + Duration::SECOND), None);
        let soon = warning("agent", Duration::days(3)).unwrap();
        assert_eq!(
            soon,
            "the certificate of agent expires on 1997-05-22, in 3 days; renew it with `cool certs --renew`"
        );
        let past = warning("ca", -Duration::SECOND).unwrap();
        assert_eq!(
            past,
            "the certificate of ca expired on 1997-05-18; replace it with `cool certs --new-ca`"
        );
    }

    #[test]
    fn reminders_are_due_at_once_then_daily_on_any_clock() {
        let now = OffsetDateTime::UNIX_EPOCH;
        let mut reminder = Reminder::default();
        let due: Vec<bool> =
            [0, 1, 23, 24, 25, 48, 2, 3].map(|hour| reminder.due(now + Duration::hours(hour))).into();
        assert_eq!(due, [true, false, false, true, false, true, true, false]);
        reminder.reset();
        assert!(reminder.due(now + Duration::hours(3)));
    }
}
