//! The three binary interfaces (ABIs) of MPI libraries, and the constants in which they differ.
//! Handles are numbers here: those of MPICH are `int`s, those of the standard interface and of Open
//! MPI are pointers. Open MPI's predefined handles are addresses of symbols.

/// A binary interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abi {
    /// The interface of MPICH and its derivatives: `libmpi.so.12`.
    Mpich,
    /// The interface of Open MPI: `libmpi.so.40`.
    OpenMpi,
    /// The interface of MPI 5.0, chapter 20: `libmpi_abi.so.1`.
    Standard,
}

/// The class of an error, which is passed to a communicator's error handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorClass {
    /// `MPI_ERR_BUFFER`.
    Buffer,
    /// `MPI_ERR_COUNT`.
    Count,
    /// `MPI_ERR_TRUNCATE`: ranks called with different lengths.
    Truncate,
    /// `MPI_ERR_NO_MEM`.
    NoMemory,
    /// `MPI_ERR_OTHER`.
    Other,
}

impl Abi {
    /// All interfaces.
    pub const ALL: [Abi; 3] = [Abi::Mpich, Abi::OpenMpi, Abi::Standard];

    /// Returns the name by which the dynamic loader knows the library.
    pub fn soname(self) -> &'static str {
        match self {
            Abi::Mpich => "libmpi.so.12",
            Abi::OpenMpi => "libmpi.so.40",
            Abi::Standard => "libmpi_abi.so.1",
        }
    }

    /// Returns the handle in a register. A handle of MPICH is an `int`, which fills only the lower
    /// half of the register, so the upper half must be ignored.
    pub fn handle(self, register: usize) -> usize {
        match self {
            Abi::Mpich => register & 0xffff_ffff,
            Abi::OpenMpi | Abi::Standard => register,
        }
    }

    /// Returns `MPI_IN_PLACE`.
    pub fn in_place(self) -> usize {
        match self {
            Abi::Mpich => usize::MAX,
            Abi::OpenMpi | Abi::Standard => 1,
        }
    }

    /// Returns `MPI_ANY_SOURCE`.
    pub fn any_source(self) -> i32 {
        match self {
            Abi::Mpich => -2,
            Abi::OpenMpi | Abi::Standard => -1,
        }
    }

    /// Returns `MPI_ANY_TAG`.
    pub fn any_tag(self) -> i32 {
        match self {
            Abi::Mpich | Abi::OpenMpi => -1,
            Abi::Standard => -2,
        }
    }

    /// Returns the code of an error class.
    pub fn error(self, class: ErrorClass) -> i32 {
        match (self, class) {
            (_, ErrorClass::Buffer) => 1,
            (_, ErrorClass::Count) => 2,
            (Abi::Mpich, ErrorClass::Truncate) => 14,
            (Abi::Mpich, ErrorClass::Other) => 15,
            (Abi::Mpich, ErrorClass::NoMemory) => 34,
            (Abi::OpenMpi | Abi::Standard, ErrorClass::Truncate) => 15,
            (Abi::OpenMpi | Abi::Standard, ErrorClass::Other) => 16,
            (Abi::OpenMpi | Abi::Standard, ErrorClass::NoMemory) => 39,
        }
    }

    /// Returns `MPI_COMBINER_NAMED`. `MPI_COMBINER_DUP` and `MPI_COMBINER_CONTIGUOUS` are the next
    /// two numbers.
    pub fn first_combiner(self) -> i32 {
        match self {
            Abi::Mpich => 1,
            Abi::OpenMpi => 0,
            Abi::Standard => 101,
        }
    }

    /// Returns whether types of this combiner are predefined without a name (for example by
    /// `MPI_Type_create_f90_real` or `MPI_Type_get_value_index`) and must not be freed.
    pub fn is_unnamed_predefined(self, combiner: i32) -> bool {
        match self {
            Abi::Mpich => matches!(combiner, 15..=17 | 20),
            Abi::OpenMpi => matches!(combiner, 14..=16),
            Abi::Standard => matches!(combiner, 113..=115 | 117),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_handles_that_are_ints_are_cut_to_one() {
        let register = 0xdead_beef_4400_0000;
        assert_eq!(Abi::Mpich.handle(register), 0x4400_0000);
        assert_eq!(Abi::OpenMpi.handle(register), register);
        assert_eq!(Abi::Standard.handle(0x101), 0x101);
    }
}
