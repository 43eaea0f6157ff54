//! Memory as MPI describes it (an address, a count, a type) and as COOL wants it: bytes one after the other. What is not so is packed and
//! unpacked by the host's library.

use crate::failure::Failure;
use crate::host::{Handle, Host};
use cool::Elements;
use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Memory that a type describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Described {
    host: &'static Host,
    data: *mut c_void,
    count: usize,
    datatype: Handle,
    /// Bytes of one element's signature; of one that is taken as it lies in memory, those.
    size: usize,
    /// Gaps between an element's parts are taken with it.
    with_gaps: bool,
}

/// Where what comes in is to go.
pub(crate) enum Incoming<'a> {
    /// There.
    Direct(&'a mut [u8]),
    /// To be unpacked there.
    Packed(Vec<u8>, Described),
}

impl Described {
    /// `count` elements of a type at an address; `None` if the type is none or the count negative.
    pub(crate) fn new(
        host: &'static Host,
        data: *const c_void,
        count: i64,
        datatype: Handle,
    ) -> Option<Described> {
        let (datatype, count) = (host.abi.handle(datatype), usize::try_from(count).ok()?);
        if !host.is_type(datatype) {
            return None;
        }
        let mut size = -1;
        // SAFETY: a type of the program's, and a place for a number.
        let code = unsafe { (host.functions.type_size)(datatype, &raw mut size) };
        let size = usize::try_from(size).ok().filter(|_| code == 0)?;
        size.checked_mul(count)?;
        Some(Described { host, data: data.cast_mut(), count, datatype, size, with_gaps: false })
    }

    /// Bytes of the signature.
    pub(crate) fn bytes(&self) -> usize {
        // Whoever makes one has tried it.
        self.size * self.count
    }

    /// Bytes of one element's signature.
    pub(crate) fn element_bytes(&self) -> usize {
        self.size
    }

    /// The number of elements.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the signature, as decisions are made by them.
    pub(crate) fn length(&self) -> u64 {
        self.bytes() as u64
    }

    /// The same elements for COOL, which takes MPI's pairs as they lie in memory: their gaps are neither read nor kept.
    pub(crate) fn as_combined(self, elements: Elements) -> Result<Described, Failure> {
        match elements {
            Elements::Type(_) => Ok(self),
            Elements::Pairs(pairs) if pairs.bytes().checked_mul(self.count).is_some() => {
                Ok(Described { size: pairs.bytes(), with_gaps: true, ..self })
            }
            Elements::Pairs(_) => Err(Failure::Beyond { count: self.count }),
        }
    }

    /// As many arrays of this one's length, one after the other.
    pub(crate) fn repeated(&self, times: usize) -> Option<Described> {
        let count = self.count.checked_mul(times)?;
        self.size.checked_mul(count)?;
        Some(Described { count, ..*self })
    }

    /// The elements from a place on.
    pub(crate) fn part(&self, from: isize, count: usize) -> Result<Described, Failure> {
        if self.size.checked_mul(count).is_none() {
            return Err(Failure::Beyond { count });
        }
        let (mut low, mut extent) = (0, 0);
        // SAFETY: a type that is known, and places for two numbers.
        let code = unsafe { (self.host.functions.type_extent)(self.datatype, &raw mut low, &raw mut extent) };
        done("PMPI_Type_get_extent", code)?;
        Ok(Described { data: self.data.wrapping_byte_offset(from.wrapping_mul(extent)), count, ..*self })
    }

    /// Whether the elements' bytes lie one after the other, in the order of the signature.
    pub(crate) fn is_flat(&self) -> Result<bool, Failure> {
        Ok(self.with_gaps || flatness(self.host, self.datatype)?.0)
    }

    /// The addresses that flat elements take up.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.data.addr()..self.data.addr().saturating_add(self.bytes())
    }

    /// The elements' bytes. They are copied if they are not flat, or have addresses in common with what is written meanwhile.
    ///
    /// # Safety
    /// The elements can be read, and are not changed, as long as the result is used.
    pub(crate) unsafe fn outgoing<'a>(
        &self,
        comm: Handle,
        written: Range<usize>,
    ) -> Result<Cow<'a, [u8]>, Failure> {
        if self.bytes() == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        if !self.is_flat()? {
            return self.packed(comm).map(Cow::Owned);
        }
        self.check_address()?;
        // SAFETY: as promised; flat elements are their bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.data.cast::<u8>(), self.bytes()) };
        let own = self.addresses();
        let apart = own.end <= written.start || written.end <= own.start;
        Ok(if apart { Cow::Borrowed(bytes) } else { Cow::Owned(bytes.to_vec()) })
    }

    /// Where bytes for the elements are to go.
    ///
    /// # Safety
    /// The elements can be written, and nobody else uses them, as long as the result is used.
    pub(crate) unsafe fn incoming<'a>(self) -> Result<Incoming<'a>, Failure> {
        if self.bytes() > 0 && !self.is_flat()? {
            return Ok(Incoming::Packed(vec![0; self.bytes()], self));
        }
        // SAFETY: as promised.
        unsafe { self.flat_mut() }.map(Incoming::Direct)
    }

    /// As `incoming`, with the elements as they are.
    ///
    /// # Safety
    /// As for `incoming`.
    pub(crate) unsafe fn incoming_filled<'a>(self, comm: Handle) -> Result<Incoming<'a>, Failure> {
        if self.bytes() > 0 && !self.is_flat()? {
            return Ok(Incoming::Packed(self.packed(comm)?, self));
        }
        // SAFETY: as promised.
        unsafe { self.flat_mut() }.map(Incoming::Direct)
    }

    /// Puts bytes that lie one after the other to the elements' places.
    ///
    /// # Safety
    /// As for `incoming`.
    pub(crate) unsafe fn fill(self, bytes: &[u8], comm: Handle) -> Result<(), Failure> {
        if self.bytes() > 0 && !self.is_flat()? {
            return self.unpack(bytes, comm);
        }
        // SAFETY: as promised.
        unsafe { self.flat_mut() }?.copy_from_slice(bytes);
        Ok(())
    }

    /// # Safety
    /// As for `incoming`; the elements are flat.
    unsafe fn flat_mut<'a>(&self) -> Result<&'a mut [u8], Failure> {
        if self.bytes() == 0 {
            return Ok(&mut []);
        }
        self.check_address()?;
        // SAFETY: as promised; flat elements are their bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.bytes()) })
    }

    fn check_address(&self) -> Result<(), Failure> {
        if self.data.is_null() { Err(Failure::Null { bytes: self.bytes() }) } else { Ok(()) }
    }

    /// A copy of the elements' bytes, one after the other.
    fn packed(&self, comm: Handle) -> Result<Vec<u8>, Failure> {
        let mut packed = vec![0; self.bytes()];
        let (count, room) = (as_int(self.count), as_int(packed.len()));
        let mut position = 0;
        let Described { host, data, datatype, .. } = *self;
        // SAFETY: what the program says is there, and `room` bytes to write to.
        let code = unsafe {
            let to = packed.as_mut_ptr().cast();
            (host.functions.pack)(data, count, datatype, to, room, &raw mut position, comm)
        };
        done("PMPI_Pack", code)?;
        self.check_packed(position)?;
        Ok(packed)
    }

    fn unpack(&self, packed: &[u8], comm: Handle) -> Result<(), Failure> {
        if packed.is_empty() {
            return Ok(());
        }
        let (count, room) = (as_int(self.count), as_int(packed.len()));
        let mut position = 0;
        let Described { host, data, datatype, .. } = *self;
        // SAFETY: `room` bytes to read, and what the program says is there.
        let code = unsafe {
            let from = packed.as_ptr().cast();
            (host.functions.unpack)(from, room, &raw mut position, data, count, datatype, comm)
        };
        done("PMPI_Unpack", code)?;
        self.check_packed(position)
    }

    fn check_packed(&self, position: c_int) -> Result<(), Failure> {
        let (packed, expected) = (usize::try_from(position).unwrap_or(0), self.bytes());
        if packed == expected { Ok(()) } else { Err(Failure::Packed { packed, expected }) }
    }
}

impl Incoming<'_> {
    /// Where COOL writes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match self {
            Incoming::Direct(bytes) => bytes,
            Incoming::Packed(bytes, _) => bytes,
        }
    }

    /// Puts what has come to its place.
    pub(crate) fn finish(self, comm: Handle) -> Result<(), Failure> {
        match self {
            Incoming::Direct(_) => Ok(()),
            Incoming::Packed(bytes, described) => described.unpack(&bytes, comm),
        }
    }
}

/// Taken calls have no more bytes, and so no more elements, than an `int` counts.
fn as_int(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// What a function of the host's has returned.
pub(crate) fn done(function: &'static str, code: c_int) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure::Host { function, code }) }
}

/// Whether elements of a type lie in memory as in its signature, without gaps; and whether the type's handle, if it came out of another
/// type, has to be freed. Those that are made of predefined ones by `MPI_Type_contiguous` and `MPI_Type_dup` are found; others may be
/// flat, too, but may as well have their parts in another order.
fn flatness(host: &'static Host, datatype: Handle) -> Result<(bool, bool), Failure> {
    let made = Making::of(host, datatype)?;
    if made.combiner == host.abi.first_combiner() {
        return Ok((is_gapless(host, datatype)?, false));
    }
    let like_its_only_part = made.combiner <= host.abi.first_combiner() + 2;
    let to_free = !host.abi.is_unnamed_predefined(made.combiner);
    if !like_its_only_part || made.ints + made.counts > 1 || made.addresses > 0 || made.types != 1 {
        return Ok((false, to_free));
    }
    let mut part = made.only_part(host, datatype)?;
    let (flat, part_to_free) = flatness(host, host.abi.handle(part))?;
    if part_to_free {
        // SAFETY: the handle that came with the contents, which is ours.
        done("PMPI_Type_free", unsafe { (host.functions.type_free)(&raw mut part) })?;
    }
    Ok((flat, to_free))
}

/// How a type was made, and of how many integers, addresses, long counts and types.
#[derive(Default)]
struct Making {
    ints: i64,
    addresses: i64,
    counts: i64,
    types: i64,
    combiner: c_int,
}

impl Making {
    fn of(host: &Host, datatype: Handle) -> Result<Making, Failure> {
        let mut made = Making::default();
        if let Some(large) = &host.large {
            // SAFETY: a type that is known, and places for five numbers.
            let code = unsafe {
                let (ints, addresses) = (&raw mut made.ints, &raw mut made.addresses);
                let (counts, types) = (&raw mut made.counts, &raw mut made.types);
                (large.type_envelope)(datatype, ints, addresses, counts, types, &raw mut made.combiner)
            };
            done("PMPI_Type_get_envelope_c", code)?;
            return Ok(made);
        }
        let (mut ints, mut addresses, mut types) = (0, 0, 0);
        // SAFETY: a type that is known, and places for four numbers.
        let code = unsafe {
            let places = (&raw mut ints, &raw mut addresses, &raw mut types, &raw mut made.combiner);
            (host.functions.type_envelope)(datatype, places.0, places.1, places.2, places.3)
        };
        done("PMPI_Type_get_envelope", code)?;
        (made.ints, made.addresses, made.types) = (ints.into(), addresses.into(), types.into());
        Ok(made)
    }

    /// The type that the type was made of: one, with one number at most.
    fn only_part(&self, host: &Host, datatype: Handle) -> Result<Handle, Failure> {
        let (mut int, mut address, mut count, mut part) = (0, 0, 0, 0);
        let places = (&raw mut int, &raw mut address, &raw mut count, &raw mut part);
        if let Some(large) = &host.large {
            // SAFETY: a type that is known, with no more in it than there are places for.
            let code = unsafe {
                let (ints, counts) = (self.ints, self.counts);
                (large.type_contents)(datatype, ints, 0, counts, 1, places.0, places.1, places.2, places.3)
            };
            done("PMPI_Type_get_contents_c", code)?;
            return Ok(part);
        }
        // SAFETY: as above.
        let code = unsafe {
            let ints = self.ints as c_int;
            (host.functions.type_contents)(datatype, ints, 0, 1, places.0, places.1, places.3)
        };
        done("PMPI_Type_get_contents", code)?;
        Ok(part)
    }
}

/// Whether a predefined type is as long in memory as its signature: pairs of a value and an index may not be.
fn is_gapless(host: &'static Host, datatype: Handle) -> Result<bool, Failure> {
    let (mut size, mut low, mut extent) = (-1, 0, 0);
    // SAFETY: a type that is known, and places for numbers.
    unsafe {
        done("PMPI_Type_size_x", (host.functions.type_size)(datatype, &raw mut size))?;
        done("PMPI_Type_get_extent", (host.functions.type_extent)(datatype, &raw mut low, &raw mut extent))?;
    }
    Ok(low == 0 && i64::try_from(extent) == Ok(size))
}
