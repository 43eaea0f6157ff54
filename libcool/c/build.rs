//! Sets the soname of the shared library, by which the dynamic linker finds it.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcool.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
