//! Compiles the contracts with protox, so that no protoc needs to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["proto/local.proto", "proto/control.proto"];
    println!("cargo::rerun-if-changed=proto");
    prost_build::Config::new().compile_fds(protox::compile(&files[..1], ["proto"])?)?;
    // Only with feature `grpc` is the result included (src/lib.rs).
    tonic_prost_build::configure().compile_fds(protox::compile(&files[1..], ["proto"])?)?;
    Ok(())
}
