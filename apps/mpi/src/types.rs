//! The predefined types of MPI with elements that COOL can reduce, in each binary interface. Data
//! that is only moved is sent as bytes and needs no table.

use crate::abi::Abi;
use cool_types::{ElementType, ReduceOp};
use std::collections::BTreeMap;

/// Class of a predefined type's elements. Together with their length, which the MPI library
/// returns, it determines the type in COOL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NumberClass {
    /// Signed integers of C, Fortran, or all languages (`MPI_AINT`).
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// Floating-point numbers.
    Floating,
    /// Pairs of floating-point numbers.
    Complex,
    /// `bool` of C and C++.
    Bool,
    /// `MPI_BYTE`.
    Byte,
    /// A signed integer and an `int` that contains its location.
    SignedPair,
    /// A floating-point number and an `int` that contains its location.
    FloatingPair,
}

/// The value in a pair of a value and an `int`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PairValue {
    /// A signed integer of 2 bytes.
    I16,
    /// A signed integer of 4 bytes.
    I32,
    /// A signed integer of 8 bytes.
    I64,
    /// A floating-point number of 4 bytes.
    F32,
    /// A floating-point number of 8 bytes.
    F64,
}

/// A type that COOL can reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReducedType {
    /// Elements that agents support.
    Element(ElementType),
    /// Pairs in the layout of C.
    Pair(PairValue),
}

impl NumberClass {
    /// Returns the type in COOL of elements with a signature of `bytes` bytes, or `None` if COOL
    /// cannot reduce them by `op` as MPI defines it. The signature of a pair does not include the
    /// gaps that C may insert.
    pub fn elements(self, bytes: usize, op: ReduceOp) -> Option<ReducedType> {
        if let Some(pairs) = self.pairs(bytes) {
            return matches!(op, ReduceOp::MinLoc | ReduceOp::MaxLoc).then_some(ReducedType::Pair(pairs));
        }
        self.element(bytes, op).map(ReducedType::Element)
    }

    /// Returns the type of pairs of a value and an `int`.
    fn pairs(self, bytes: usize) -> Option<PairValue> {
        match (self, bytes) {
            (NumberClass::SignedPair, 6) => Some(PairValue::I16),
            (NumberClass::SignedPair, 8) => Some(PairValue::I32),
            (NumberClass::SignedPair, 12) => Some(PairValue::I64),
            (NumberClass::FloatingPair, 8) => Some(PairValue::F32),
            (NumberClass::FloatingPair, 12) => Some(PairValue::F64),
            _ => None,
        }
    }

    fn element(self, bytes: usize, op: ReduceOp) -> Option<ElementType> {
        use ElementType as T;
        let element = match (self, bytes) {
            (NumberClass::Signed, 1) => T::I8,
            (NumberClass::Signed, 2) => T::I16,
            (NumberClass::Signed, 4) => T::I32,
            (NumberClass::Signed, 8) => T::I64,
            (NumberClass::Unsigned | NumberClass::Bool | NumberClass::Byte, 1) => T::U8,
            (NumberClass::Unsigned, 2) => T::U16,
            (NumberClass::Unsigned, 4) => T::U32,
            (NumberClass::Unsigned, 8) => T::U64,
            (NumberClass::Floating, 2) => T::F16,
            (NumberClass::Floating, 4) => T::F32,
            (NumberClass::Floating, 8) => T::F64,
            (NumberClass::Complex, 8) => T::C32,
            (NumberClass::Complex, 16) => T::C64,
            _ => return None,
        };
        let logical = matches!(op, ReduceOp::LogicalAnd | ReduceOp::LogicalOr | ReduceOp::LogicalXor);
        let bitwise = matches!(op, ReduceOp::BitAnd | ReduceOp::BitOr | ReduceOp::BitXor);
        let defined = match self {
            NumberClass::Bool => logical,
            NumberClass::Byte => bitwise,
            _ => element.combines_by(op),
        };
        defined.then_some(element)
    }
}

/// A predefined type.
#[derive(Clone, Copy, Debug)]
struct PredefinedType {
    /// Name without `MPI_`.
    #[cfg_attr(not(test), expect(dead_code, reason = "for readers of the table, and tests"))]
    name: &'static str,
    class: NumberClass,
    /// Handle in MPICH.
    mpich: usize,
    /// Handle in the standard interface.
    standard: usize,
    /// Symbol of Open MPI. Its address is the handle.
    open_mpi: &'static str,
}

const fn predefined(
    name: &'static str,
    class: NumberClass,
    mpich: usize,
    standard: usize,
    open_mpi: &'static str,
) -> PredefinedType {
    PredefinedType { name, class, mpich, standard, open_mpi }
}

use NumberClass::{Bool, Byte, Complex, Floating, FloatingPair, Signed, SignedPair, Unsigned};

/// The predefined types of numbers. `MPI_CHAR` and `MPI_WCHAR` are omitted, because they are text,
/// for which MPI defines no reductions. Fortran's `LOGICAL` is omitted, because its values depend
/// on the compiler.
const PREDEFINED: [PredefinedType; 51] = [
    predefined("SIGNED_CHAR", Signed, 0x4c00_0118, 0x244, "ompi_mpi_signed_char"),
    predefined("SHORT", Signed, 0x4c00_0203, 0x208, "ompi_mpi_short"),
    predefined("INT", Signed, 0x4c00_0405, 0x209, "ompi_mpi_int"),
    predefined("LONG", Signed, 0x4c00_0807, 0x20a, "ompi_mpi_long"),
    predefined("LONG_LONG", Signed, 0x4c00_0809, 0x20b, "ompi_mpi_long_long_int"),
    predefined("INT8_T", Signed, 0x4c00_0137, 0x240, "ompi_mpi_int8_t"),
    predefined("INT16_T", Signed, 0x4c00_0238, 0x248, "ompi_mpi_int16_t"),
    predefined("INT32_T", Signed, 0x4c00_0439, 0x250, "ompi_mpi_int32_t"),
    predefined("INT64_T", Signed, 0x4c00_083a, 0x258, "ompi_mpi_int64_t"),
    predefined("AINT", Signed, 0x4c00_0843, 0x201, "ompi_mpi_aint"),
    predefined("OFFSET", Signed, 0x4c00_0844, 0x203, "ompi_mpi_offset"),
    predefined("COUNT", Signed, 0x4c00_0845, 0x202, "ompi_mpi_count"),
    predefined("INTEGER", Signed, 0x4c00_041b, 0x219, "ompi_mpi_integer"),
    predefined("INTEGER1", Signed, 0x4c00_012d, 0x2c1, "ompi_mpi_integer1"),
    predefined("INTEGER2", Signed, 0x4c00_022f, 0x2c9, "ompi_mpi_integer2"),
    predefined("INTEGER4", Signed, 0x4c00_0430, 0x2d1, "ompi_mpi_integer4"),
    predefined("INTEGER8", Signed, 0x4c00_0831, 0x2d9, "ompi_mpi_integer8"),
    predefined("UNSIGNED_CHAR", Unsigned, 0x4c00_0102, 0x245, "ompi_mpi_unsigned_char"),
    predefined("UNSIGNED_SHORT", Unsigned, 0x4c00_0204, 0x20c, "ompi_mpi_unsigned_short"),
    predefined("UNSIGNED", Unsigned, 0x4c00_0406, 0x20d, "ompi_mpi_unsigned"),
    predefined("UNSIGNED_LONG", Unsigned, 0x4c00_0808, 0x20e, "ompi_mpi_unsigned_long"),
    predefined("UNSIGNED_LONG_LONG", Unsigned, 0x4c00_0819, 0x20f, "ompi_mpi_unsigned_long_long"),
    predefined("UINT8_T", Unsigned, 0x4c00_013b, 0x241, "ompi_mpi_uint8_t"),
    predefined("UINT16_T", Unsigned, 0x4c00_023c, 0x249, "ompi_mpi_uint16_t"),
    predefined("UINT32_T", Unsigned, 0x4c00_043d, 0x251, "ompi_mpi_uint32_t"),
    predefined("UINT64_T", Unsigned, 0x4c00_083e, 0x259, "ompi_mpi_uint64_t"),
    predefined("FLOAT", Floating, 0x4c00_040a, 0x210, "ompi_mpi_float"),
    predefined("DOUBLE", Floating, 0x4c00_080b, 0x214, "ompi_mpi_double"),
    predefined("LONG_DOUBLE", Floating, 0x4c00_100c, 0x220, "ompi_mpi_long_double"),
    predefined("REAL", Floating, 0x4c00_041c, 0x21a, "ompi_mpi_real"),
    predefined("DOUBLE_PRECISION", Floating, 0x4c00_081f, 0x21c, "ompi_mpi_dblprec"),
    predefined("REAL2", Floating, 0x4c00_0226, 0x2ca, "ompi_mpi_real2"),
    predefined("REAL4", Floating, 0x4c00_0427, 0x2d2, "ompi_mpi_real4"),
    predefined("REAL8", Floating, 0x4c00_0829, 0x2da, "ompi_mpi_real8"),
    predefined("C_FLOAT_COMPLEX", Complex, 0x4c00_0840, 0x212, "ompi_mpi_c_float_complex"),
    predefined("C_DOUBLE_COMPLEX", Complex, 0x4c00_1041, 0x216, "ompi_mpi_c_double_complex"),
    predefined("CXX_FLOAT_COMPLEX", Complex, 0x4c00_0834, 0x213, "ompi_mpi_cxx_cplex"),
    predefined("CXX_DOUBLE_COMPLEX", Complex, 0x4c00_1035, 0x217, "ompi_mpi_cxx_dblcplex"),
    predefined("COMPLEX", Complex, 0x4c00_081e, 0x21b, "ompi_mpi_cplex"),
    predefined("DOUBLE_COMPLEX", Complex, 0x4c00_1022, 0x21d, "ompi_mpi_dblcplex"),
    predefined("COMPLEX8", Complex, 0x4c00_0828, 0x2db, "ompi_mpi_complex8"),
    predefined("COMPLEX16", Complex, 0x4c00_102a, 0x2e3, "ompi_mpi_complex16"),
    predefined("C_BOOL", Bool, 0x4c00_013f, 0x238, "ompi_mpi_c_bool"),
    predefined("CXX_BOOL", Bool, 0x4c00_0133, 0x239, "ompi_mpi_cxx_bool"),
    predefined("BYTE", Byte, 0x4c00_010d, 0x247, "ompi_mpi_byte"),
    predefined("SHORT_INT", SignedPair, 0x8c00_0003, 0x22c, "ompi_mpi_short_int"),
    predefined("2INT", SignedPair, 0x4c00_0816, 0x22b, "ompi_mpi_2int"),
    predefined("2INTEGER", SignedPair, 0x4c00_0820, 0x232, "ompi_mpi_2integer"),
    predefined("LONG_INT", SignedPair, 0x8c00_0002, 0x22a, "ompi_mpi_long_int"),
    predefined("FLOAT_INT", FloatingPair, 0x8c00_0000, 0x228, "ompi_mpi_float_int"),
    predefined("DOUBLE_INT", FloatingPair, 0x8c00_0001, 0x229, "ompi_mpi_double_int"),
];

/// Returns the class of each type by its handle. `symbol` must return the address of a symbol of
/// Open MPI, or `None` if the symbol does not exist.
pub fn number_classes(abi: Abi, symbol: impl Fn(&str) -> Option<usize>) -> BTreeMap<usize, NumberClass> {
    let handles = PREDEFINED.iter().filter_map(|of| {
        let handle = match abi {
            Abi::Mpich => of.mpich,
            Abi::Standard => of.standard,
            // An Open MPI without Fortran does not have its types.
            Abi::OpenMpi => symbol(of.open_mpi)?,
        };
        Some((handle, of.class))
    });
    handles.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_types_length_is_part_of_mpichs_handle() {
        // The handles of pairs with gaps do not contain the length.
        for of in PREDEFINED.iter().filter(|of| of.mpich >> 24 == 0x4c) {
            let bytes = (of.mpich >> 8) & 0xff;
            let combined = ReduceOp::ALL.into_iter().any(|op| of.class.elements(bytes, op).is_some());
            assert_eq!(combined, of.name != "LONG_DOUBLE", "{} of {bytes} bytes", of.name);
        }
    }

    #[test]
    fn pairs_are_reduced_by_minloc_and_maxloc_only() {
        let signed = [6, 8, 12].map(|bytes| SignedPair.elements(bytes, ReduceOp::MinLoc));
        assert_eq!(
            signed,
            [PairValue::I16, PairValue::I32, PairValue::I64].map(|value| Some(ReducedType::Pair(value)))
        );
        let floating = [8, 12].map(|bytes| FloatingPair.elements(bytes, ReduceOp::MaxLoc));
        assert_eq!(floating, [PairValue::F32, PairValue::F64].map(|value| Some(ReducedType::Pair(value))));
        // MPI_LONG_DOUBLE_INT would have 20 bytes.
        assert_eq!(FloatingPair.elements(20, ReduceOp::MaxLoc), None);
        assert_eq!(SignedPair.elements(8, ReduceOp::Max), None);
        assert_eq!(Signed.elements(4, ReduceOp::MaxLoc), None);
    }

    #[test]
    fn no_two_types_have_one_handle() {
        let apart = |handles: Vec<usize>| handles.iter().collect::<BTreeSet<_>>().len();
        assert_eq!(apart(PREDEFINED.iter().map(|of| of.mpich).collect()), PREDEFINED.len());
        assert_eq!(apart(PREDEFINED.iter().map(|of| of.standard).collect()), PREDEFINED.len());
    }

    #[test]
    fn reductions_that_mpi_does_not_define_are_not_executed() {
        assert_eq!(Floating.elements(8, ReduceOp::Sum), Some(ReducedType::Element(ElementType::F64)));
        assert_eq!(Floating.elements(8, ReduceOp::LogicalAnd), None);
        assert_eq!(Floating.elements(16, ReduceOp::Sum), None);
        assert_eq!(Complex.elements(16, ReduceOp::Max), None);
        assert_eq!(Byte.elements(1, ReduceOp::Sum), None);
        assert_eq!(Byte.elements(1, ReduceOp::BitXor), Some(ReducedType::Element(ElementType::U8)));
        assert_eq!(Bool.elements(1, ReduceOp::LogicalOr), Some(ReducedType::Element(ElementType::U8)));
        assert_eq!(Bool.elements(1, ReduceOp::BitOr), None);
    }
}
