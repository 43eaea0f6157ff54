//! Memory as MPI describes it (an address, a count, a type) and as COOL needs it: contiguous bytes.
//! The host's library packs and unpacks other layouts.

use crate::failure::MpiCallFailure;
use crate::host::{HostMpi, MpiHandle};
use cool::Elements;
use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::ops::Range;

/// Memory that an MPI type describes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TypedMemory {
    host: &'static HostMpi,
    data: *mut c_void,
    count: usize,
    datatype: MpiHandle,
    /// Bytes of one element's signature, or of the element in memory if `with_gaps`.
    size: usize,
    /// Whether `size` includes the gaps between the parts of an element.
    with_gaps: bool,
}

/// The destination of received data.
pub(crate) enum ReceiveBuffer<'a> {
    /// The memory of the program.
    Direct(&'a mut [u8]),
    /// A temporary buffer, which is unpacked afterwards.
    Packed(Vec<u8>, TypedMemory),
}

impl TypedMemory {
    /// Describes `count` elements of a type at an address. Returns `None` if the type is invalid or
    /// the count is negative.
    pub(crate) fn new(
        host: &'static HostMpi,
        data: *const c_void,
        count: i64,
        datatype: MpiHandle,
    ) -> Option<TypedMemory> {
        let (datatype, count) = (host.abi.handle(datatype), usize::try_from(count).ok()?);
        if !host.is_type(datatype) {
            return None;
        }
        let mut size = -1;
        // SAFETY: a type of the program, and memory for a number.
        let code = unsafe { (host.functions.type_size)(datatype, &raw mut size) };
        let size = usize::try_from(size).ok().filter(|_| code == 0)?;
        size.checked_mul(count)?;
        Some(TypedMemory { host, data: data.cast_mut(), count, datatype, size, with_gaps: false })
    }

    /// Returns the bytes of all elements' signature, or of the elements in memory if `with_gaps`.
    pub(crate) fn bytes(&self) -> usize {
        // All constructors check this product for overflow.
        self.size * self.count
    }

    /// Returns the bytes of one element, likewise.
    pub(crate) fn element_bytes(&self) -> usize {
        self.size
    }

    /// Returns the number of elements.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Returns [`TypedMemory::bytes`], which determines whether a call is intercepted.
    pub(crate) fn length(&self) -> u64 {
        self.bytes() as u64
    }

    /// Returns the elements as COOL reduces them. Pairs of MPI are used in their memory layout;
    /// their gaps are neither read nor preserved.
    pub(crate) fn as_reduced(self, elements: Elements) -> Result<TypedMemory, MpiCallFailure> {
        match elements {
            Elements::Type(_) => Ok(self),
            Elements::Pairs(pairs) if pairs.bytes().checked_mul(self.count).is_some() => {
                Ok(TypedMemory { size: pairs.bytes(), with_gaps: true, ..self })
            }
            Elements::Pairs(_) => Err(MpiCallFailure::Beyond { count: self.count }),
        }
    }

    /// Returns the memory of `times` such arrays, one after the other, or `None` if its size
    /// overflows.
    pub(crate) fn repeated(&self, times: usize) -> Option<TypedMemory> {
        let count = self.count.checked_mul(times)?;
        self.size.checked_mul(count)?;
        Some(TypedMemory { count, ..*self })
    }

    /// Returns `count` elements starting at index `from`.
    pub(crate) fn part(&self, from: isize, count: usize) -> Result<TypedMemory, MpiCallFailure> {
        if self.size.checked_mul(count).is_none() {
            return Err(MpiCallFailure::Beyond { count });
        }
        let (mut low, mut extent) = (0, 0);
        // SAFETY: a valid type, and memory for two numbers.
        let code = unsafe { (self.host.functions.type_extent)(self.datatype, &raw mut low, &raw mut extent) };
        check("PMPI_Type_get_extent", code)?;
        Ok(TypedMemory { data: self.data.wrapping_byte_offset(from.wrapping_mul(extent)), count, ..*self })
    }

    /// Returns whether the bytes of the elements are contiguous and in the order of the signature.
    pub(crate) fn is_flat(&self) -> Result<bool, MpiCallFailure> {
        Ok(self.with_gaps || flatness(self.host, self.datatype)?.0)
    }

    /// Returns the addresses of the elements. They are meaningful only if the elements are
    /// contiguous.
    pub(crate) fn addresses(&self) -> Range<usize> {
        self.data.addr()..self.data.addr().saturating_add(self.bytes())
    }

    /// Returns the bytes of the elements. They are copied if they are not contiguous, or overlap
    /// the memory that is written during the call.
    ///
    /// # Safety
    /// The elements must be readable, and must not change while the result is used.
    pub(crate) unsafe fn outgoing<'a>(
        &self,
        comm: MpiHandle,
        written: Range<usize>,
    ) -> Result<Cow<'a, [u8]>, MpiCallFailure> {
        if self.bytes() == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        if !self.is_flat()? {
            return self.packed(comm).map(Cow::Owned);
        }
        self.check_address()?;
        // SAFETY: guaranteed by the caller; contiguous elements are their bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.data.cast::<u8>(), self.bytes()) };
        let own = self.addresses();
        let apart = own.end <= written.start || written.end <= own.start;
        Ok(if apart { Cow::Borrowed(bytes) } else { Cow::Owned(bytes.to_vec()) })
    }

    /// Returns a buffer for received elements: the memory of the program if the elements are
    /// contiguous, otherwise a temporary one. [`ReceiveBuffer::finish`] must be called when they
    /// have been received.
    ///
    /// # Safety
    /// The elements must be writable, and must not be used otherwise while the result is used.
    pub(crate) unsafe fn incoming<'a>(self) -> Result<ReceiveBuffer<'a>, MpiCallFailure> {
        if self.bytes() > 0 && !self.is_flat()? {
            return Ok(ReceiveBuffer::Packed(vec![0; self.bytes()], self));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.flat_mut() }.map(ReceiveBuffer::Direct)
    }

    /// Returns the same buffer, filled with the present elements.
    ///
    /// # Safety
    /// See `incoming`.
    pub(crate) unsafe fn incoming_filled<'a>(
        self,
        comm: MpiHandle,
    ) -> Result<ReceiveBuffer<'a>, MpiCallFailure> {
        if self.bytes() > 0 && !self.is_flat()? {
            return Ok(ReceiveBuffer::Packed(self.packed(comm)?, self));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.flat_mut() }.map(ReceiveBuffer::Direct)
    }

    /// Writes contiguous bytes to the elements.
    ///
    /// # Safety
    /// See `incoming`.
    pub(crate) unsafe fn fill(self, bytes: &[u8], comm: MpiHandle) -> Result<(), MpiCallFailure> {
        if self.bytes() > 0 && !self.is_flat()? {
            return self.unpack(bytes, comm);
        }
        // SAFETY: guaranteed by the caller.
        unsafe { self.flat_mut() }?.copy_from_slice(bytes);
        Ok(())
    }

    /// # Safety
    /// See `incoming`. The elements must be contiguous.
    unsafe fn flat_mut<'a>(&self) -> Result<&'a mut [u8], MpiCallFailure> {
        if self.bytes() == 0 {
            return Ok(&mut []);
        }
        self.check_address()?;
        // SAFETY: guaranteed by the caller; contiguous elements are their bytes.
        Ok(unsafe { std::slice::from_raw_parts_mut(self.data.cast(), self.bytes()) })
    }

    fn check_address(&self) -> Result<(), MpiCallFailure> {
        if self.data.is_null() { Err(MpiCallFailure::Null { bytes: self.bytes() }) } else { Ok(()) }
    }

    /// Returns a contiguous copy of the elements' bytes.
    fn packed(&self, comm: MpiHandle) -> Result<Vec<u8>, MpiCallFailure> {
        let mut packed = vec![0; self.bytes()];
        let (count, room) = (as_int(self.count), as_int(packed.len()));
        let mut position = 0;
        let TypedMemory { host, data, datatype, .. } = *self;
        // SAFETY: memory of the program, and `room` bytes to write.
        let code = unsafe {
            let to = packed.as_mut_ptr().cast();
            (host.functions.pack)(data, count, datatype, to, room, &raw mut position, comm)
        };
        check("PMPI_Pack", code)?;
        self.check_packed(position)?;
        Ok(packed)
    }

    fn unpack(&self, packed: &[u8], comm: MpiHandle) -> Result<(), MpiCallFailure> {
        if packed.is_empty() {
            return Ok(());
        }
        let (count, room) = (as_int(self.count), as_int(packed.len()));
        let mut position = 0;
        let TypedMemory { host, data, datatype, .. } = *self;
        // SAFETY: `room` bytes to read, and memory of the program.
        let code = unsafe {
            let from = packed.as_ptr().cast();
            (host.functions.unpack)(from, room, &raw mut position, data, count, datatype, comm)
        };
        check("PMPI_Unpack", code)?;
        self.check_packed(position)
    }

    fn check_packed(&self, position: c_int) -> Result<(), MpiCallFailure> {
        let (packed, expected) = (usize::try_from(position).unwrap_or(0), self.bytes());
        if packed == expected { Ok(()) } else { Err(MpiCallFailure::Packed { packed, expected }) }
    }
}

impl ReceiveBuffer<'_> {
    /// Returns the bytes that COOL writes.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        match self {
            ReceiveBuffer::Direct(bytes) => bytes,
            ReceiveBuffer::Packed(bytes, _) => bytes,
        }
    }

    /// Unpacks the received data if the buffer is temporary.
    pub(crate) fn finish(self, comm: MpiHandle) -> Result<(), MpiCallFailure> {
        match self {
            ReceiveBuffer::Direct(_) => Ok(()),
            ReceiveBuffer::Packed(bytes, typed_memory) => typed_memory.unpack(&bytes, comm),
        }
    }
}

/// Converts a number of bytes or elements, which fits an `int` in intercepted calls.
fn as_int(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// Returns an error if a function of the host's library returned a code other than success.
pub(crate) fn check(function: &'static str, code: c_int) -> Result<(), MpiCallFailure> {
    if code == 0 { Ok(()) } else { Err(MpiCallFailure::Host { function, code }) }
}

/// Returns whether the elements of a type are contiguous and in the order of the signature, and
/// whether the type's handle must be freed after the library has returned it as a component of
/// another type. Contiguous types are recognized if they are made from predefined ones by
/// `MPI_Type_contiguous` and `MPI_Type_dup`. Other types are treated as not contiguous, because the
/// order of their parts in memory may differ from that of the signature.
fn flatness(host: &'static HostMpi, datatype: MpiHandle) -> Result<(bool, bool), MpiCallFailure> {
    let envelope = TypeEnvelope::query(host, datatype)?;
    if envelope.combiner == host.abi.first_combiner() {
        return Ok((is_gapless(host, datatype)?, false));
    }
    let like_its_only_part = envelope.combiner <= host.abi.first_combiner() + 2;
    let to_free = !host.abi.is_unnamed_predefined(envelope.combiner);
    if !like_its_only_part
        || envelope.ints + envelope.counts > 1
        || envelope.addresses > 0
        || envelope.types != 1
    {
        return Ok((false, to_free));
    }
    let mut part = envelope.only_component(host, datatype)?;
    let (flat, part_to_free) = flatness(host, host.abi.handle(part))?;
    if part_to_free {
        // SAFETY: the handle was returned with the contents and belongs to this library.
        check("PMPI_Type_free", unsafe { (host.functions.type_free)(&raw mut part) })?;
    }
    Ok((flat, to_free))
}

/// How a type was constructed, and from how many integers, addresses, long counts and types.
#[derive(Default)]
struct TypeEnvelope {
    ints: i64,
    addresses: i64,
    counts: i64,
    types: i64,
    combiner: c_int,
}

impl TypeEnvelope {
    fn query(host: &HostMpi, datatype: MpiHandle) -> Result<TypeEnvelope, MpiCallFailure> {
        let mut envelope = TypeEnvelope::default();
        if let Some(large) = &host.large {
            // SAFETY: a valid type, and memory for five numbers.
            let code = unsafe {
                let (ints, addresses) = (&raw mut envelope.ints, &raw mut envelope.addresses);
                let (counts, types) = (&raw mut envelope.counts, &raw mut envelope.types);
                (large.type_envelope)(datatype, ints, addresses, counts, types, &raw mut envelope.combiner)
            };
            check("PMPI_Type_get_envelope_c", code)?;
            return Ok(envelope);
        }
        let (mut ints, mut addresses, mut types) = (0, 0, 0);
        // SAFETY: a valid type, and memory for four numbers.
        let code = unsafe {
            let places = (&raw mut ints, &raw mut addresses, &raw mut types, &raw mut envelope.combiner);
            (host.functions.type_envelope)(datatype, places.0, places.1, places.2, places.3)
        };
        check("PMPI_Type_get_envelope", code)?;
        (envelope.ints, envelope.addresses, envelope.types) = (ints.into(), addresses.into(), types.into());
        Ok(envelope)
    }

    /// Returns the type from which `datatype` was constructed. It must be the only one, and there
    /// must be at most one count and no address.
    fn only_component(&self, host: &HostMpi, datatype: MpiHandle) -> Result<MpiHandle, MpiCallFailure> {
        let (mut int, mut address, mut count, mut part) = (0, 0, 0, 0);
        let places = (&raw mut int, &raw mut address, &raw mut count, &raw mut part);
        if let Some(large) = &host.large {
            // SAFETY: a valid type with no more contents than there is memory for.
            let code = unsafe {
                let (ints, counts) = (self.ints, self.counts);
                (large.type_contents)(datatype, ints, 0, counts, 1, places.0, places.1, places.2, places.3)
            };
            check("PMPI_Type_get_contents_c", code)?;
            return Ok(part);
        }
        // SAFETY: as above.
        let code = unsafe {
            let ints = self.ints as c_int;
            (host.functions.type_contents)(datatype, ints, 0, 1, places.0, places.1, places.3)
        };
        check("PMPI_Type_get_contents", code)?;
        Ok(part)
    }
}

/// Returns whether a predefined type is as long in memory as its signature. Pairs of a value and an
/// index may be longer.
fn is_gapless(host: &'static HostMpi, datatype: MpiHandle) -> Result<bool, MpiCallFailure> {
    let (mut size, mut low, mut extent) = (-1, 0, 0);
    // SAFETY: a valid type, and memory for numbers.
    unsafe {
        check("PMPI_Type_size_x", (host.functions.type_size)(datatype, &raw mut size))?;
        check("PMPI_Type_get_extent", (host.functions.type_extent)(datatype, &raw mut low, &raw mut extent))?;
    }
    Ok(low == 0 && i64::try_from(extent) == Ok(size))
}
