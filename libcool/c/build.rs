//! The name by which programs find the shared library when they run.

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libcool.so.0");
    println!("cargo::rerun-if-changed=build.rs");
}
