//! Tensors of other libraries (PyTorch, JAX) through DLPack: their memory and element type.

#![allow(unsafe_code, reason = "a capsule contains a C structure; each block explains why it is valid")]

use crate::error::argument_error;
use cool_rust::Type;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyCapsuleMethods, PyDict};
use std::ffi::c_void;

/// DLPack's codes of main memory, and of main memory that a GPU can access, too.
const DEVICES: [i32; 2] = [1, 3];

/// Flag of a tensor that must not be written.
const READ_ONLY: u64 = 1;

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [i32; 2],
    ndim: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    strides: *const i64,
    byte_offset: u64,
}

/// The structure of DLPack 1.0. In earlier versions, the tensor was the first field, and there was
/// no flag for read-only tensors.
#[repr(C)]
struct DlManagedTensorVersioned {
    version: [u32; 2],
    manager: *mut c_void,
    deleter: *mut c_void,
    flags: u64,
    tensor: DlTensor,
}

/// A C-contiguous tensor in main memory.
pub(crate) struct Tensor {
    /// Keeps the memory alive.
    pub(crate) capsule: Py<PyCapsule>,
    pub(crate) dtype: Type,
    /// How the elements must be interpreted, if the type does not determine it.
    pub(crate) kind: CarriedKind,
    pub(crate) pointer: usize,
    pub(crate) shape: Vec<usize>,
    pub(crate) writeable: bool,
}

/// Interpretation of elements that are transferred as another type.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CarriedKind {
    Number,
    Boolean,
    /// Floats of 8 bits, which are transferred as bytes.
    Float8,
}

impl Tensor {
    /// Returns the tensor of an object with `__dlpack__`.
    pub(crate) fn new(name: &str, object: &Bound<'_, PyAny>) -> PyResult<Tensor> {
        let py = object.py();
        let (device, _): (i32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
        if !DEVICES.contains(&device) {
            let reason =
                format!("{name} is not in main memory; copy it there, for example by .cpu() in PyTorch");
            return Err(argument_error(py, reason));
        }
        let capsule = exported(object)?;
        let versioned = capsule.pointer_checked(Some(c"dltensor_versioned"));
        let (tensor, writeable) = match versioned {
            Ok(pointer) => {
                // SAFETY: a capsule with this name contains such a structure, which lives as long
                // as the capsule.
                let managed = unsafe { pointer.cast::<DlManagedTensorVersioned>().as_ref() };
                if managed.version[0] != 1 {
                    return Err(argument_error(
                        py,
                        format!("{name} uses version {} of DLPack, but must use 1", managed.version[0]),
                    ));
                }
                (&managed.tensor, managed.flags & READ_ONLY == 0)
            }
            Err(_) => {
                let pointer = capsule.pointer_checked(Some(c"dltensor"))?;
                // SAFETY: as above; with this name, the structure begins with the tensor.
                (unsafe { pointer.cast::<DlTensor>().as_ref() }, true)
            }
        };
        let Some((dtype, kind)) = tensor.element_type() else {
            let DlTensor { code, bits, lanes, .. } = tensor;
            let reason = format!(
                "{name} holds elements that are not carried (DLPack's code {code}, {bits} bits, {lanes} lanes)"
            );
            return Err(argument_error(py, reason));
        };
        let Some(shape) = tensor.contiguous_shape() else {
            return Err(argument_error(py, format!("{name} is not C-contiguous; use .contiguous()")));
        };
        let pointer = tensor.data as usize + tensor.byte_offset as usize;
        Ok(Tensor { dtype, kind, pointer, shape, writeable, capsule: capsule.unbind() })
    }
}

/// Returns the capsule of the newest version that both sides support.
fn exported<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
    let py = object.py();
    let newest = PyDict::new(py);
    newest.set_item("max_version", (1, 0))?;
    let capsule = match object.call_method("__dlpack__", (), Some(&newest)) {
        // The object is older than the versioned protocol.
        Err(e) if e.is_instance_of::<PyTypeError>(py) => object.call_method0("__dlpack__")?,
        given => given?,
    };
    Ok(capsule.cast_into::<PyCapsule>()?)
}

impl DlTensor {
    fn element_type(&self) -> Option<(Type, CarriedKind)> {
        let number = match (self.code, self.bits) {
            (0, 8) => Type::I8,
            (0, 16) => Type::I16,
            (0, 32) => Type::I32,
            (0, 64) => Type::I64,
            (1, 8) => Type::U8,
            (1, 16) => Type::U16,
            (1, 32) => Type::U32,
            (1, 64) => Type::U64,
            (2, 16) => Type::F16,
            (2, 32) => Type::F32,
            (2, 64) => Type::F64,
            (4, 16) => Type::Bf16,
            (5, 64) => Type::C32,
            (5, 128) => Type::C64,
            (6, 8) => return (self.lanes == 1).then_some((Type::U8, CarriedKind::Boolean)),
            (7..=14, 8) => return (self.lanes == 1).then_some((Type::U8, CarriedKind::Float8)),
            _ => return None,
        };
        (self.lanes == 1).then_some((number, CarriedKind::Number))
    }

    /// Returns the shape of the tensor, if its elements are contiguous.
    fn contiguous_shape(&self) -> Option<Vec<usize>> {
        let ndim = usize::try_from(self.ndim).ok()?;
        let numbers = |at: *const i64| match (at.is_null(), ndim) {
            (true, _) | (_, 0) => Vec::new(),
            // SAFETY: such an array has one number for each dimension.
            (false, _) => unsafe { std::slice::from_raw_parts(at, ndim) }.to_vec(),
        };
        let (sizes, strides) = (numbers(self.shape), numbers(self.strides));
        let shape: Vec<usize> = sizes.iter().map(|n| usize::try_from(*n).ok()).collect::<Option<_>>()?;
        let empty = shape.contains(&0);
        let mut expected = 1;
        for (size, stride) in sizes.iter().zip(&strides).rev() {
            if !empty && *size != 1 && *stride != expected {
                return None;
            }
            expected *= size;
        }
        (shape.len() == ndim).then_some(shape)
    }
}
