//! Compiles the contracts with protox, so that protoc need not be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["proto/local.proto", "proto/launcher.proto", "proto/control.proto"];
    println!("cargo::rerun-if-changed=proto");
    prost_build::Config::new().compile_fds(protox::compile(&files[..2], ["proto"])?)?;
    // The result is included only with feature `grpc` (src/lib.rs).
    let mut config = prost_build::Config::new();
    // src/lib.rs implements Debug for it, because keys must not be printed.
    config.skip_debug(["cool.control.Secret"]);
    // Messages to many receivers are shared instead of copied.
    config.bytes([".cool.control.ControllerMessage", ".cool.control.Held"]);
    tonic_prost_build::configure()
        .compile_fds_with_config(protox::compile(&files[2..], ["proto"])?, config)?;
    Ok(())
}
