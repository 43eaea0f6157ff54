//! Access to the memory of NumPy arrays, and of other arrays through DLPack, without a copy.

#![allow(
    unsafe_code,
    reason = "the data of an array is accessed through its pointer; each block explains why it is valid"
)]

use crate::dlpack::{CarriedKind, Tensor};
use crate::error::argument_error;
use cool_rust::{Array, ArrayMut, Arrays, Elements, Op, PairType, Type};
use numpy::npyffi::NPY_ARRAY_WRITEABLE;
use numpy::{PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyTuple};
use std::ops::Range;

/// An array that a call uses. It keeps the memory alive: NumPy does not resize an array that is
/// referenced.
pub(crate) struct Data {
    pub(crate) array: Py<PyAny>,
    /// Keeps the memory of arrays other than NumPy's alive.
    _capsule: Option<Py<PyCapsule>>,
    shape: Vec<usize>,
    dtype: Elements,
    pointer: usize,
    bytes: usize,
    writeable: bool,
    /// How elements that are transferred as u8 must be interpreted.
    kind: CarriedKind,
    is_numpy: bool,
}

impl Data {
    /// Returns the data of an array; `name` is the name of the argument in error messages.
    pub(crate) fn new(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Data> {
        if let Ok(array) = array.cast::<PyUntypedArray>() {
            return Data::from_numpy(name, array);
        }
        if array.hasattr("__dlpack__")? {
            let Tensor { capsule, dtype, kind, pointer, shape, writeable } = Tensor::new(name, array)?;
            let bytes = shape.iter().product::<usize>() * dtype.bytes();
            let (array, _capsule) = (array.clone().unbind(), Some(capsule));
            return Ok(Data {
                array,
                _capsule,
                shape,
                dtype: dtype.into(),
                pointer,
                bytes,
                writeable,
                kind,
                is_numpy: false,
            });
        }
        let found = array.get_type().name()?;
        let reason =
            format!("{name} is a {found}, but must be a NumPy array or have __dlpack__; use np.asarray");
        Err(argument_error(array.py(), reason))
    }

    fn from_numpy(name: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<Data> {
        let py = array.py();
        let dtype = element_type(name, array)?;
        if !array.is_c_contiguous() {
            let reason = format!("{name} is not C-contiguous; use np.ascontiguousarray");
            return Err(argument_error(py, reason));
        }
        let object = array.as_array_ptr();
        // SAFETY: the pointer refers to a live array, whose fields may be read while the
        // interpreter lock is held.
        let (pointer, flags) = unsafe { ((*object).fields.data as usize, (*object).fields.flags) };
        let kind = if array.dtype().kind() == b'b' { CarriedKind::Boolean } else { CarriedKind::Number };
        Ok(Data {
            array: array.clone().into_any().unbind(),
            _capsule: None,
            shape: array.shape().to_vec(),
            dtype,
            pointer,
            bytes: array.len() * dtype.bytes(),
            writeable: flags & NPY_ARRAY_WRITEABLE != 0,
            kind,
            is_numpy: true,
        })
    }

    /// As [`Data::new`], for an array that is overwritten.
    pub(crate) fn writeable(name: &str, array: &Bound<'_, PyAny>) -> PyResult<Data> {
        let data = Data::new(name, array)?;
        if data.writeable {
            Ok(data)
        } else {
            Err(argument_error(array.py(), format!("{name} is read-only")))
        }
    }

    /// Returns the shape of the array.
    pub(crate) fn shape(&self) -> Vec<usize> {
        self.shape.clone()
    }

    /// Returns a new array of another shape for received data, with zeros or arbitrary content.
    pub(crate) fn like(&self, py: Python<'_>, shape: Vec<usize>, zeros: bool) -> PyResult<Data> {
        let (array, shape) = (self.array.bind(py), PyTuple::new(py, shape)?);
        let made = if self.is_numpy {
            let make = if zeros { "zeros" } else { "empty" };
            py.import("numpy")?.call_method1(make, (shape, array.getattr("dtype")?))?
        } else {
            let make = if zeros { "new_zeros" } else { "new_empty" };
            if !array.hasattr(make)? {
                return Err(argument_error(
                    py,
                    format!("recv is missing, and {} cannot create one", array.get_type().name()?),
                ));
            }
            array.call_method1(make, (shape,))?
        };
        Data::writeable("recv", &made)
    }

    /// Returns the NumPy dtype.
    pub(crate) fn numpy_dtype(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        if !self.is_numpy {
            return Err(argument_error(py, "a function requires NumPy arrays; use np.from_dlpack(tensor)"));
        }
        Ok(self.array.bind(py).getattr("dtype")?.unbind())
    }

    /// Returns the element type.
    pub(crate) fn elements(&self) -> Elements {
        self.dtype
    }

    /// Returns the reason if `op` cannot combine elements of this kind. For example, bools have no
    /// sum, because a sum of zeros and ones may exceed 1.
    pub(crate) fn why_not_combined_by(&self, op: Op) -> Option<&'static str> {
        match self.kind {
            CarriedKind::Boolean if op == Op::Sum => Some(
                "send holds bool, which has no sum; use op=\"logical_or\" (any is true), \"logical_and\" (all \
                 are true), or send.astype(int) to count",
            ),
            CarriedKind::Float8 => {
                Some("send holds floats of 8 bits, which can be sent but not combined; convert them first")
            }
            CarriedKind::Boolean | CarriedKind::Number => None,
        }
    }

    /// Returns whether two arrays share memory.
    pub(crate) fn overlaps(&self, other: &Data) -> bool {
        self.pointer < other.pointer + other.bytes && other.pointer < self.pointer + self.bytes
    }

    /// Returns the range of an array of the same type within this one, or `None` if it is not
    /// contained.
    fn range_of(&self, other: &Data) -> Option<Range<usize>> {
        let start = other.pointer.checked_sub(self.pointer)?;
        let element = self.dtype.bytes();
        let whole = start.is_multiple_of(element) && self.dtype == other.dtype;
        let end = start + other.bytes;
        (whole && end <= self.bytes).then(|| start / element..end / element)
    }

    /// Returns the arrays of a call in which one array lies within the other, or `None` if neither
    /// does.
    ///
    /// # Safety
    /// As for [`Data::received`], for `recv`.
    pub(crate) unsafe fn within<'s, 'r>(send: &Data, recv: &Data) -> Option<Arrays<'s, 'r>> {
        let outer = if recv.range_of(send).is_some() { recv } else { send };
        let (sent, received) = (outer.range_of(send)?, outer.range_of(recv)?);
        // SAFETY: the caller guarantees this. The memory belongs to `recv`, or to `send`, which
        // contains `recv`, so it is writable.
        let data = unsafe { outer.received() }?;
        Some(Arrays::Within(data, sent, received))
    }

    /// Returns the array to send.
    ///
    /// The program must not write to it until the call has started, as its documentation states.
    pub(crate) fn sent(&self) -> Option<Array<'_>> {
        Array::new(self.dtype, self.bytes())
    }

    /// Returns the bytes of the array.
    pub(crate) fn bytes(&self) -> &[u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: `self.bytes` bytes are at the pointer of a C-contiguous array, which lives as
        // long as self references it.
        unsafe { std::slice::from_raw_parts(self.pointer as *const u8, self.bytes) }
    }

    /// Returns the array for received data.
    ///
    /// # Safety
    /// The result must not be used after `self` and its clones are dropped, and no other code may
    /// access the memory meanwhile.
    pub(crate) unsafe fn received<'a>(&self) -> Option<ArrayMut<'a>> {
        // SAFETY: the caller guarantees this.
        ArrayMut::new(self.dtype, unsafe { self.bytes_mut() })
    }

    /// Returns the bytes of the array for writing.
    ///
    /// # Safety
    /// As for [`Data::received`].
    pub(crate) unsafe fn bytes_mut<'a>(&self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`. The array is writable, because only writable arrays are received
        // into.
        unsafe { std::slice::from_raw_parts_mut(self.pointer as *mut u8, self.bytes) }
    }
}

/// Returns the element type of an array.
fn element_type(name: &str, array: &Bound<'_, PyUntypedArray>) -> PyResult<Elements> {
    let (py, dtype) = (array.py(), array.dtype());
    let text = dtype.getattr("name")?.extract::<String>()?;
    let native = dtype.getattr("isnative")?.extract::<bool>()?;
    let found = match text.as_str() {
        "int8" => Some(Type::I8),
        "int16" => Some(Type::I16),
        "int32" => Some(Type::I32),
        "int64" => Some(Type::I64),
        "uint8" | "bool" => Some(Type::U8),
        "uint16" => Some(Type::U16),
        "uint32" => Some(Type::U32),
        "uint64" => Some(Type::U64),
        "float16" => Some(Type::F16),
        "bfloat16" => Some(Type::Bf16),
        "float32" => Some(Type::F32),
        "float64" => Some(Type::F64),
        "complex64" => Some(Type::C32),
        "complex128" => Some(Type::C64),
        _ => None,
    };
    let found = match found {
        Some(dtype) => Some(Elements::Type(dtype)),
        None => indexed(&dtype)?,
    };
    found.filter(|_| native).ok_or_else(|| {
        let reason = format!(
            "{name} holds {dtype}, which is not supported; use numbers in this machine's byte order, or dtypes of \
             cool.located and cool.pair"
        );
        argument_error(py, reason)
    })
}

/// Returns the element type of a structured dtype of a value and an index: unsigned with the width
/// of the value, or signed as in MPI.
fn indexed(dtype: &Bound<'_, PyAny>) -> PyResult<Option<Elements>> {
    let names = dtype.getattr("names")?;
    if names.is_none() || names.extract::<Vec<String>>()? != ["value", "index"] {
        return Ok(None);
    }
    let field = |name: &str| -> PyResult<(String, usize)> {
        let field = dtype.getattr("fields")?.get_item(name)?;
        Ok((field.get_item(0)?.getattr("name")?.extract()?, field.get_item(1)?.extract()?))
    };
    let bytes = dtype.getattr("itemsize")?.extract::<usize>()?;
    let ((value, first), (index, second)) = (field("value")?, field("index")?);
    if (first, second) != (0, bytes / 2) {
        return Ok(None);
    }
    Ok(match (value.as_str(), index.as_str(), bytes) {
        ("int32", "uint32", 8) => Some(Type::I32Loc.into()),
        ("int64", "uint64", 16) => Some(Type::I64Loc.into()),
        ("float32", "uint32", 8) => Some(Type::F32Loc.into()),
        ("float64", "uint64", 16) => Some(Type::F64Loc.into()),
        ("int16", "int32", 8) => Some(PairType::I16.into()),
        ("int32", "int32", 8) => Some(PairType::I32.into()),
        ("int64", "int32", 16) => Some(PairType::I64.into()),
        ("float32", "int32", 8) => Some(PairType::F32.into()),
        ("float64", "int32", 16) => Some(PairType::F64.into()),
        _ => None,
    })
}
