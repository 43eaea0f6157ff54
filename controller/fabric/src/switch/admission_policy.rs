//! Decides which switches are served: those with an identity that the operator and their
//! certificates confirm.

use crate::api::NotAdmitted;
use cool_topology::DatapathId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Conditions that a switch on one connection must meet.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdmissionPolicy {
    /// Names that the operator has given to switches, and whether only those switches are served.
    pub(crate) names: Arc<BTreeMap<DatapathId, String>>,
    pub(crate) only_named: bool,
    /// Whether the certificate must name datapath ids.
    pub(crate) only_bound: bool,
    /// Datapath ids that the connection's certificate names.
    pub(crate) bound: Vec<DatapathId>,
}

impl AdmissionPolicy {
    /// Checks a switch that reports this datapath id.
    ///
    /// # Errors
    /// Returns the reason if the switch must be rejected.
    pub(crate) fn check(&self, claimed: DatapathId) -> Result<(), NotAdmitted> {
        if !self.bound.is_empty() && !self.bound.contains(&claimed) {
            return Err(NotAdmitted::Impostor { claimed, bound: self.bound.clone() });
        }
        if self.only_bound && self.bound.is_empty() {
            return Err(NotAdmitted::Unbound(claimed));
        }
        if self.only_named && !self.names.contains_key(&claimed) {
            return Err(NotAdmitted::Unnamed(claimed));
        }
        Ok(())
    }
}

/// Returns the name that a switch reports without control characters, because operators read it in
/// logs and on terminals.
pub(super) fn safe_name(reported: &str) -> String {
    reported.replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_identifies_its_switch_and_may_be_required() {
        let [one, two, three] = [1, 2, 3].map(DatapathId);
        let bound = AdmissionPolicy { bound: vec![one, two], only_bound: true, ..AdmissionPolicy::default() };
        assert_eq!((bound.check(one), bound.check(two)), (Ok(()), Ok(())));
        let refused = bound.check(three).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "it claims to be 0000000000000003, but its certificate is for 0000000000000001, 0000000000000002"
        );
        assert_eq!(AdmissionPolicy::default().check(three), Ok(()));
        let strict = AdmissionPolicy { only_bound: true, ..AdmissionPolicy::default() };
        assert_eq!(strict.check(three), Err(NotAdmitted::Unbound(three)));
        let names = Arc::new(BTreeMap::from([(one, "leaf".to_owned())]));
        let named = AdmissionPolicy { names, only_named: true, ..AdmissionPolicy::default() };
        assert_eq!((named.check(one), named.check(two)), (Ok(()), Err(NotAdmitted::Unnamed(two))));
        assert_eq!(safe_name("spine\u{1b}[2J 3"), "spine?[2J 3");
    }
}
