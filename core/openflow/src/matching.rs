//! Matches, which select the packets of a flow. The fields are in `oxm`.

use std::fmt;

use crate::Error;
use crate::codec::{Reader, WireFormat, Writer};
use crate::oxm::Oxm;

/// Match type of a list of OXM fields.
const OXM: u16 = 1;

/// Fields that a packet must match. Without fields every packet matches.
///
/// ```
/// use rs_openflow::{EtherType, Match, PortNo};
///
/// let group = "239.192.0.1".parse()?;
/// let matching = Match::new().in_port(PortNo(3)).eth_type(EtherType::IPV4).ipv4_dst(group);
/// assert_eq!(matching.to_string(), "in_port=3,eth_type=ipv4,ipv4_dst=239.192.0.1");
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
///
/// The order of the fields is also their order on the wire. By the standard, a field must follow
/// those that it requires (for example, `ipv4_dst` must follow `eth_type`), and must not occur
/// twice. A switch refuses other matches with an error.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Match {
    /// Fields, which a packet must match all.
    pub fields: Vec<Oxm>,
}

impl Match {
    /// Returns a match for every packet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the match with one more field.
    #[must_use]
    pub fn with(mut self, field: Oxm) -> Self {
        self.fields.push(field);
        self
    }
}

impl WireFormat for Match {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let kind: u16 = r.named("match", |r| r.get())?;
        if kind != OXM {
            return Err(Error::MatchType { offset: start, kind });
        }
        let fields = r.measured("match", start, |r| r.get())?;
        r.named("match", |r| r.pad_after(r.offset() - start))?;
        Ok(Self { fields })
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        w.put(&OXM);
        w.measured("match", start, |w| w.put(&self.fields));
        w.pad_since(start);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.fields.is_empty() {
            return f.write_str("any");
        }
        self.fields.iter().enumerate().try_for_each(|(index, field)| {
            f.write_str(if index == 0 { "" } else { "," })?;
            write!(f, "{field}")
        })
    }
}
