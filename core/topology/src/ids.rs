//! Identifiers of switches and ports.

use core::fmt;

/// OpenFlow datapath id of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct DatapathId(pub u64);

impl fmt::Display for DatapathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl core::str::FromStr for DatapathId {
    type Err = NoDatapathId;

    /// Reads up to 16 hexadecimal digits, optionally after 0x or with colons between bytes.
    fn from_str(text: &str) -> Result<DatapathId, NoDatapathId> {
        let digits = text.strip_prefix("0x").unwrap_or(text).replace(':', "");
        let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        let number = hexadecimal.then(|| u64::from_str_radix(&digits, 16).ok()).flatten();
        number.map(DatapathId).ok_or_else(|| NoDatapathId(text.to_owned()))
    }
}

/// A text that is not a datapath id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoDatapathId(String);

impl fmt::Display for NoDatapathId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no datapath id: expected up to 16 hexadecimal digits", self.0)
    }
}

impl core::error::Error for NoDatapathId {}

/// A port of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct Port {
    /// The switch.
    pub switch: DatapathId,
    /// OpenFlow number of the port.
    pub number: u32,
}

impl Port {
    /// Number of the port that leads to the switch's own host: the bridge's interface on a
    /// hypervisor (OFPP_LOCAL; OpenFlow 1.3.5, 7.2.1).
    pub const LOCAL: u32 = 0xffff_fffe;

    /// Returns a port's number as operators know it: the number, or "local".
    pub fn number_text(number: u32) -> String {
        if number == Port::LOCAL { "local".into() } else { number.to_string() }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.switch, Port::number_text(self.number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_datapath_id_is_read_in_all_usual_notations() {
        for text in ["000000000000002a", "0x2a", "2A", "00:00:00:00:00:00:00:2a"] {
            assert_eq!(text.parse(), Ok(DatapathId(0x2a)), "{text}");
        }
        for text in ["", "0x", "s1", "+2a", "10000000000000000"] {
            assert!(text.parse::<DatapathId>().is_err(), "{text}");
        }
    }
}
