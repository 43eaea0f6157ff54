//! Compiles the contracts with protox, so that no protoc needs to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["proto/local.proto", "proto/launcher.proto", "proto/control.proto"];
    println!("cargo::rerun-if-changed=proto");
    prost_build::Config::new().compile_fds(protox::compile(&files[..2], ["proto"])?)?;
    // Only with feature `grpc` is the result included (src/lib.rs).
    let mut config = prost_build::Config::new();
    // src/lib.rs says that there is one, and not what it is.
    config.skip_debug(["cool.control.Secret"]);
    // What goes to many is shared, not copied.
    config.bytes([".cool.control.ControllerMessage", ".cool.control.Held"]);
    tonic_prost_build::configure()
        .compile_fds_with_config(protox::compile(&files[2..], ["proto"])?, config)?;
    Ok(())
}
