//! Which switches are served: those that are what they say, as far as the operator and their certificates say what that is.

use cool_topology::DatapathId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What holds for a connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Admission {
    /// What the operator calls switches, and whether only those are served.
    pub(crate) names: Arc<BTreeMap<DatapathId, String>>,
    pub(crate) only_named: bool,
    /// Whether a certificate must name datapath ids.
    pub(crate) only_bound: bool,
    /// The datapath ids that the connection's certificate names.
    pub(crate) bound: Vec<DatapathId>,
}

/// Why a switch is not served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotAdmitted {
    /// The operator has not named it.
    #[error("its datapath id {0} is not among --switches")]
    Unnamed(DatapathId),
    /// Its certificate may be that of any switch.
    #[error(
        "its certificate names no datapath id, and it says that it is {0}; give it one made by `cool certs --switch \
         NAME={0}`, or do without --only-bound-certificates"
    )]
    Unbound(DatapathId),
    /// Its certificate is another switch's.
    #[error("it says that it is {claimed}, but its certificate is for {}", list(.bound))]
    Impostor {
        /// What it says.
        claimed: DatapathId,
        /// What its certificate says.
        bound: Vec<DatapathId>,
    },
}

impl NotAdmitted {
    /// All causes, as [`cause`](NotAdmitted::cause) has them.
    pub const CAUSES: [&'static str; 3] = ["unnamed", "unbound", "impostor"];

    /// In a word.
    pub fn cause(&self) -> &'static str {
        match self {
            NotAdmitted::Unnamed(_) => "unnamed",
            NotAdmitted::Unbound(_) => "unbound",
            NotAdmitted::Impostor { .. } => "impostor",
        }
    }
}

fn list(ids: &[DatapathId]) -> String {
    ids.iter().map(DatapathId::to_string).collect::<Vec<_>>().join(", ")
}

impl Admission {
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
        let bound = Admission { bound: vec![one, two], only_bound: true, ..Admission::default() };
        assert_eq!((bound.check(one), bound.check(two)), (Ok(()), Ok(())));
        let refused = bound.check(three).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "it says that it is 0000000000000003, but its certificate is for 0000000000000001, 0000000000000002"
        );
        assert_eq!(Admission::default().check(three), Ok(()));
        let strict = Admission { only_bound: true, ..Admission::default() };
        assert_eq!(strict.check(three), Err(NotAdmitted::Unbound(three)));
        let names = Arc::new(BTreeMap::from([(one, "leaf".to_owned())]));
        let named = Admission { names, only_named: true, ..Admission::default() };
        assert_eq!((named.check(one), named.check(two)), (Ok(()), Err(NotAdmitted::Unnamed(two))));
    }
}
