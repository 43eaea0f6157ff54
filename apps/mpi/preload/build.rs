//! Sets the name by which the dynamic loader knows the library. It has no version, because nothing
//! is linked with it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcool_mpi.so");
    println!("cargo::rerun-if-changed=build.rs");
}
