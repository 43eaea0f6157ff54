//! Which switches are served: those that are what they say, as far as the operator and their certificates say what that is.

use crate::api::NotAdmitted;
use cool_topology::DatapathId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What holds for a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct AdmissionPolicy {
    /// What the operator calls switches, and whether only those are served.
    pub(crate) names: Arc<BTreeMap<DatapathId, String>>,
    pub(crate) only_named: bool,
    /// Whether a certificate must name datapath ids.
    pub(crate) only_bound: bool,
    /// The datapath ids that the connection's certificate names.
    pub(crate) bound: Vec<DatapathId>,
}

impl AdmissionPolicy {
    /// Whether a switch that says that it has this datapath id is served.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_is_what_its_certificate_says_and_may_have_to_say_it() {
        let [one, two, three] = [1, 2, 3].map(DatapathId);
        let bound = AdmissionPolicy { bound: vec![one, two], only_bound: true, ..AdmissionPolicy::default() };
        assert_eq!((bound.check(one), bound.check(two)), (Ok(()), Ok(())));
        let refused = bound.check(three).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "it says that it is 0000000000000003, but its certificate is for 0000000000000001, 0000000000000002"
        );
        assert_eq!(AdmissionPolicy::default().check(three), Ok(()));
        let strict = AdmissionPolicy { only_bound: true, ..AdmissionPolicy::default() };
        assert_eq!(strict.check(three), Err(NotAdmitted::Unbound(three)));
        let names = Arc::new(BTreeMap::from([(one, "leaf".to_owned())]));
        let named = AdmissionPolicy { names, only_named: true, ..AdmissionPolicy::default() };
        assert_eq!((named.check(one), named.check(two)), (Ok(()), Err(NotAdmitted::Unnamed(two))));
    }
}
