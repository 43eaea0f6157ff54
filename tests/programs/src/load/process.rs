//! The controller under load: started, found, and watched from outside.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(10);

/// A controller that this program started; it ends with this value, or with the program if that is killed.
pub(crate) struct Controller {
    _child: Child,
    pub(crate) pid: u32,
    pub(crate) openflow: SocketAddr,
    pub(crate) grpc: SocketAddr,
}

impl Controller {
    pub(crate) async fn start(program: &Path) -> Result<Controller, String> {
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["--insecure-plaintext", "--openflow", "127.0.0.1:0", "--grpc", "127.0.0.1:0"])
            // What floods is measured, not held off.
            .args(["--port-packets-per-second", "10000000"])
            .env("RUST_LOG", "cool_controller=info,cool_fabric=info,cool_fabric::network=warn")
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|e| format!("{}: {e}", program.display()))?;
        let pid = child.id().ok_or("the controller ended at once")?;
        let mut lines = BufReader::new(child.stderr.take().ok_or("no standard error")?).lines();
        let found = timeout(PATIENCE, async {
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
            Err("the controller does not say where it listens")
        });
        let (openflow, grpc) = found.await.map_err(|_| "the controller does not start")??;
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                // Links are pulled on purpose.
                if line.contains("WARN") && !line.contains("lost") || line.contains("ERROR") {
                    eprintln!("{line}");
                }
            }
        });
        Ok(Controller { _child: child, pid, openflow, grpc })
    }
}

/// The largest memory that a process has had, in MiB.
pub(crate) fn peak_mib(pid: u32) -> Result<u64, String> {
    let path = format!("/proc/{pid}/status");
    let status = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    kib.map(|kib| kib / 1024).ok_or(format!("{path} tells no peak"))
}

/// The processor time that a process has used, in seconds.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64, String> {
    let path = format!("/proc/{pid}/stat");
    let stat = std::fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    // After the name in parentheses: fields 14 and 15 of proc(5), in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|text| text.parse::<f64>().ok());
    match (ticks(11), ticks(12)) {
        (Some(user), Some(system)) => Ok((user + system) / 100.0),
        _ => Err(format!("{path} tells no times")),
    }
}
