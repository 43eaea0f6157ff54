//! Metrics of this process, named as in Prometheus' own client libraries, and the number of logged
//! warnings and errors.

use crate::log;
use procfs::process::Process;
use procfs::{ProcResult, WithCurrentSystemInfo, boot_time_secs, ticks_per_second};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;
use std::fmt;

/// Returns a registry that contains the metrics of this process.
pub(crate) fn registry() -> Registry {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(ProcessCollector));
    registry
}

/// Returns how many files this process may open. `None` if there is no limit, or /proc is not
/// readable.
pub(crate) fn files_max() -> Option<u64> {
    match Process::myself().and_then(|process| process.limits()).ok()?.max_open_files.soft_limit {
        procfs::process::LimitValue::Value(most) => Some(most),
        procfs::process::LimitValue::Unlimited => None,
    }
}

#[derive(Debug)]
struct ProcessCollector;

/// Resource usage as reported by the kernel.
struct Usage {
    cpu_seconds: f64,
    resident_bytes: u64,
    open_files: usize,
    files_max: Option<u64>,
    started: f64,
}

impl Usage {
    fn read() -> ProcResult<Usage> {
        let process = Process::myself()?;
        let (stat, per_second) = (process.stat()?, ticks_per_second() as f64);
        Ok(Usage {
            cpu_seconds: (stat.utime + stat.stime) as f64 / per_second,
            resident_bytes: stat.rss_bytes().get(),
            open_files: process.fd_count()?,
            files_max: files_max(),
            started: boot_time_secs()? as f64 + stat.starttime as f64 / per_second,
        })
    }
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Logged warnings and errors";
        let mut family = encoder.encode_descriptor("cool_log_events", help, None, MetricType::Counter)?;
        for (level, count) in log::counts() {
            ConstCounter::new(count).encode(family.encode_family(&[("level", level)])?)?;
        }
        // Without a readable /proc, report no resource usage.
        let Ok(usage) = Usage::read() else { return Ok(()) };
        let help = "CPU time, user and system";
        let metric = encoder.encode_descriptor("process_cpu_seconds", help, None, MetricType::Counter)?;
        ConstCounter::new(usage.cpu_seconds).encode(metric)?;
        let gauges = [
            ("process_resident_memory_bytes", "Memory in use", Some(usage.resident_bytes as f64)),
            ("process_open_fds", "Open file descriptors", Some(usage.open_files as f64)),
            (
                "process_max_fds",
                "Maximum number of open file descriptors",
                usage.files_max.map(|most| most as f64),
            ),
            ("process_start_time_seconds", "Start time of the process, in Unix time", Some(usage.started)),
        ];
        for (name, help, value) in gauges {
            let Some(value) = value else { continue };
            ConstGauge::new(value).encode(encoder.encode_descriptor(
                name,
                help,
                None,
                MetricType::Gauge,
            )?)?;
        }
        Ok(())
    }
}
