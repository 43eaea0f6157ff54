//! Until when certificates are good, and when to say so.

use crate::role::Role;
use time::{Duration, OffsetDateTime};
use tokio_rustls::rustls::pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// How long before its end a certificate is warned of.
pub const EXPIRY_WARNING: Duration = Duration::days(30);
/// How often.
const REMIND_EVERY: Duration = Duration::days(1);

/// Until when a certificate is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expiry {
    /// Whose it is: a role, or `ca`.
    pub of: &'static str,
    /// When it ends.
    pub until: OffsetDateTime,
}

/// The end of a certificate, if it can be read.
pub(crate) fn end(certificate: &CertificateDer<'_>) -> Option<OffsetDateTime> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    Some(certificate.validity().not_after.to_datetime())
}

/// What to say of a certificate that is good until then: nothing, unless that is soon.
pub fn expiring(until: OffsetDateTime, now: OffsetDateTime) -> Option<String> {
    let left = until - now;
    if left.is_negative() {
        return Some(format!("has expired on {}", until.date()));
    }
    (left <= EXPIRY_WARNING).then(|| format!("ends on {}, in {} days", until.date(), left.whole_days()))
}

impl Expiry {
    /// Those of a role's certificate and of the CAs.
    pub(crate) fn all(
        role: Role,
        chain: &[CertificateDer<'_>],
        authorities: &[CertificateDer<'_>],
    ) -> Vec<Expiry> {
        let own = chain.first().map(|certificate| (role.name(), certificate));
        let authorities = authorities.iter().map(|certificate| ("ca", certificate));
        let all = own.into_iter().chain(authorities);
        all.filter_map(|(of, certificate)| Some(Expiry { of, until: end(certificate)? })).collect()
    }

    /// What to do before it ends.
    pub fn remedy(&self) -> &'static str {
        match self.of {
            "ca" => "replace it with `cool certs --new-ca`",
            _ => "renew it with `cool certs --renew`",
        }
    }

    /// What to say of it now: nothing, unless it ends soon.
    pub fn warning(&self, now: OffsetDateTime) -> Option<String> {
        let end = expiring(self.until, now)?;
        Some(format!("the certificate of {} {end}; {}", self.of, self.remedy()))
    }
}

/// Decides when to warn: at once, then once a day.
#[derive(Debug, Default)]
pub(crate) struct Reminder {
    last: Option<OffsetDateTime>,
}

impl Reminder {
    /// Whether to look for what ends soon. A clock that was set back must not silence it.
    pub(crate) fn due(&mut self, now: OffsetDateTime) -> bool {
        let due = self.last.is_none_or(|last| now < last || now - last >= REMIND_EVERY);
        if due {
            self.last = Some(now);
        }
        due
    }

    /// Other certificates are there.
    pub(crate) fn begin_anew(&mut self) {
        self.last = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ends_within_a_month_or_has_ended_is_warned_of_with_what_to_do() {
        let now = OffsetDateTime::UNIX_EPOCH + Duration::days(10_000);
        let says = |of, left: Duration| Expiry { of, until: now + left }.warning(now);
        assert_eq!(says("agent", Duration::days(30) + Duration::SECOND), None);
        let soon = says("agent", Duration::days(3)).unwrap();
        assert_eq!(
            soon,
            "the certificate of agent ends on 1997-05-22, in 3 days; renew it with `cool certs --renew`"
        );
        let past = says("ca", -Duration::SECOND).unwrap();
        assert_eq!(
            past,
            "the certificate of ca has expired on 1997-05-18; replace it with `cool certs --new-ca`"
        );
    }

    #[test]
    fn reminders_come_at_once_and_then_once_a_day_whatever_the_clock_does() {
        let now = OffsetDateTime::UNIX_EPOCH;
        let mut reminder = Reminder::default();
        let due: Vec<bool> =
            [0, 1, 23, 24, 25, 48, 2, 3].map(|hour| reminder.due(now + Duration::hours(hour))).into();
        assert_eq!(due, [true, false, false, true, false, true, true, false]);
        reminder.begin_anew();
        assert!(reminder.due(now + Duration::hours(3)));
    }
}
