//! The name by which the system's loader knows the library. Nothing is linked with it, so it has no version.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcool_mpi.so");
    println!("cargo::rerun-if-changed=build.rs");
}
