//! Hello, the first message in both directions, in which a peer announces its OpenFlow versions.

use std::fmt;

use crate::Error;
use crate::codec::{ListItem, Reader, WireFormat, Writer};
use crate::macros::number;

/// Version number of OpenFlow 1.3 in headers.
pub const VERSION: u8 = 4;

number! {
    /// Type of a hello element.
    pub struct HelloElementType(u16) as "{}" {
        VERSION_BITMAP = 1 "version_bitmap",
    }
}

/// An element of a hello.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HelloElement {
    /// Supported versions: version v is bit v % 32 of word v / 32.
    VersionBitmap(Vec<u32>),
    /// Element that OpenFlow 1.3 does not define.
    Unknown {
        /// Type of the element.
        kind: HelloElementType,
        /// Content after the header.
        data: Vec<u8>,
    },
}

impl WireFormat for HelloElement {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let start = r.offset();
        let kind = r.named("hello element", |r| r.get())?;
        let element = r.measured("hello element", start, |r| match kind {
            HelloElementType::VERSION_BITMAP => {
                let mut words = Vec::new();
                while r.left() > 0 {
                    words.push(r.get()?);
                }
                Ok(Self::VersionBitmap(words))
            }
            _ => Ok(Self::Unknown { kind, data: r.get()? }),
        })?;
        r.named("hello element", |r| r.pad_after(r.offset() - start))?;
        Ok(element)
    }

    fn write(&self, w: &mut Writer) {
        let start = w.position();
        let kind = match self {
            Self::VersionBitmap(_) => HelloElementType::VERSION_BITMAP,
            Self::Unknown { kind, .. } => *kind,
        };
        w.put(&kind);
        w.measured("hello element", start, |w| match self {
            Self::VersionBitmap(words) => words.iter().for_each(|word| w.put(word)),
            Self::Unknown { data, .. } => w.bytes(data),
        });
        w.pad_since(start);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::VersionBitmap(words) => {
                f.write_str("version_bitmap")?;
                words.iter().try_for_each(|word| write!(f, " {word:#x}"))
            }
            Self::Unknown { kind, data } => {
                write!(f, "element {kind} ")?;
                data.display(f)
            }
        }
    }
}

impl ListItem for HelloElement {}

/// OpenFlow versions that a peer supports.
///
/// Hellos of other OpenFlow versions can be read as well, because a report that the peers have no
/// version in common should name the versions of the other peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Version in the header, which is the highest that the peer supports.
    pub version: u8,
    /// Further information about versions.
    pub elements: Vec<HelloElement>,
    /// Bytes that are no valid element, which only hellos of other versions may contain.
    pub rest: Vec<u8>,
}

/// Announces OpenFlow 1.3 only.
impl Default for Hello {
    fn default() -> Self {
        let elements = vec![HelloElement::VersionBitmap(vec![1 << VERSION])];
        Self { version: VERSION, elements, rest: Vec::new() }
    }
}

impl Hello {
    /// Returns whether the peer supports `version`.
    ///
    /// If the hello contains a version bitmap, the bitmap decides. Otherwise the peer is assumed to
    /// support its highest version and all lower ones, as the standard requires. Only later
    /// messages can confirm this.
    #[must_use]
    pub fn speaks(&self, version: u8) -> bool {
        let bitmap = self.elements.iter().find_map(|element| match element {
            HelloElement::VersionBitmap(words) => Some(words),
            HelloElement::Unknown { .. } => None,
        });
        match bitmap {
            Some(words) => {
                words.get(usize::from(version / 32)).is_some_and(|word| word >> (version % 32) & 1 == 1)
            }
            None => version <= self.version,
        }
    }
}

impl WireFormat for Hello {
    fn read(r: &mut Reader<'_>) -> Result<Self, Error> {
        let version = r.version();
        let mut elements = Vec::new();
        while r.left() > 0 {
            let before = r.clone();
            match r.get() {
                Ok(element) => elements.push(element),
                Err(error) if version == VERSION => return Err(error),
                Err(_) => {
                    *r = before;
                    break;
                }
            }
        }
        Ok(Self { version, elements, rest: r.rest() })
    }

    fn write(&self, w: &mut Writer) {
        w.put(&self.elements);
        w.bytes(&self.rest);
    }

    fn display(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

impl fmt::Display for Hello {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "version={:#04x} elements=", self.version)?;
        self.elements.display(f)?;
        if !self.rest.is_empty() {
            f.write_str(" rest=")?;
            self.rest.display(f)?;
        }
        Ok(())
    }
}
