//! Starts the measured controller, finds its addresses, and reads its CPU time and memory.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const START_TIMEOUT: Duration = Duration::from_secs(10);

/// A controller that this program has started. It ends when this value is dropped, and is killed if
/// this program is killed.
pub(crate) struct ControllerProcess {
    _child: Child,
    pub(crate) pid: u32,
    pub(crate) openflow: SocketAddr,
    pub(crate) grpc: SocketAddr,
}

impl ControllerProcess {
    /// Starts the program and waits until it reports its addresses.
    ///
    /// # Errors
    /// Returns an error if the program cannot be started, or reports no addresses within
    /// [`START_TIMEOUT`].
    pub(crate) async fn start(program: &Path) -> Result<ControllerProcess, String> {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["--insecure-plaintext", "--openflow", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            // The highest rate is measured, so the packet-in limit must not apply.
            .args(["--port-packets-per-second", "10000000"])
            .env("RUST_LOG", "cool_controller=info,cool_fabric=info,cool_fabric::network=warn")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let pid = child.id().ok_or("the controller ended at once")?;
        let mut lines =
            BufReader::new(child.stderr.take().ok_or("the controller has no standard error")?).lines();
        let found = timeout(START_TIMEOUT, async {
            while let Ok(Some(line)) = lines.next_line().await {
                let field = |name: &str| {
                    line.split(' ')
                        .find_map(|word| word.strip_prefix(name))
                        .and_then(|text| text.parse().ok())
                };
                if let (Some(openflow), Some(grpc)) = (field("openflow="), field("grpc=")) {
                    return Ok((openflow, grpc));
                }
            }
            Err("the controller ended without reporting its addresses")
        });
        let (openflow, grpc) =
            found.await.map_err(|_| "the controller did not report its addresses in time")??;
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                // Lost links are expected, because this program takes cables out.
                if line.contains("WARN") && !line.contains("lost") || line.contains("ERROR") {
                    eprintln!("{line}");
                }
            }
        });
        Ok(ControllerProcess { _child: child, pid, openflow, grpc })
    }
}

/// Returns the peak memory of a process in MiB.
///
/// # Errors
/// Returns an error if the process does not exist.
pub(crate) fn peak_mib(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib / 1024).ok_or(format!("{path} contains no VmHWM"))
}

/// Returns the CPU time that a process has used, in seconds.
///
/// # Errors
/// Returns an error if the process does not exist.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    // Fields 14 and 15 of proc(5) follow the name in parentheses. They are in hundredths of a
    // second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    match (ticks(11), ticks(12)) {
        (Some(user), Some(system)) => Ok((user + system) / 100.0),
        _ => Err(format!("{path} contains no CPU times")),
    }
}
