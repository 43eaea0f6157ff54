//! Puts load on a controller: simulates the switches and agents of a large network over real
//! OpenFlow and gRPC connections, and measures how long the controller takes.
//!
//!     cool-load fabric --controller target/release/cool-controller --topology fattree:20x50 --groups 1000
//!     cool-load packets --openflow 127.0.0.1:6653

mod agent;
mod fabric;
mod network_plan;
mod phases;
mod process;
mod pump;
mod switch;

use clap::{Parser, Subcommand};
use network_plan::NetworkPlan;
use phases::{LoadReport, LoadSettings};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Simulates the switches and agents of a large network, and measures a controller
#[derive(Debug, Parser)]
struct Options {
    /// Network: fattree:KxH (K ports per switch, H hosts per rack) or leafspine:LxSxH
    #[arg(long, global = true, default_value = "fattree:20x50")]
    topology: NetworkPlan,
    #[command(subcommand)]
    command: LoadCommand,
}

#[derive(Debug, Subcommand)]
enum LoadCommand {
    /// Measure cool-controller: discovery, flows, groups, link failures and packet-ins
    Fabric {
        /// Program of the controller, which is started and ended
        #[arg(long, default_value = "target/release/cool-controller")]
        controller: PathBuf,
        /// Number of groups, each on 4 racks of 8 hosts
        #[arg(long, default_value_t = 1000)]
        groups: usize,
        /// Number of groups that are created and must be removed completely
        #[arg(long, default_value_t = 1000)]
        cycles: usize,
        /// Number of links that fail, one after another
        #[arg(long, default_value_t = 20)]
        failures: usize,
        /// Agents per connection; in a real network each has its own
        #[arg(long, default_value_t = 1)]
        agents_per_connection: usize,
    },
    /// Measure the packet-ins of any OpenFlow 1.3 controller that answers ARP
    Packets {
        /// Address at which the controller accepts switches
        #[arg(long)]
        openflow: SocketAddr,
        /// Process of the controller, to report its CPU time and memory
        #[arg(long)]
        pid: Option<u32>,
    },
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let options = Options::parse();
    // When a signal arrives, the load is dropped, which ends the controller that it has started.
    let report = tokio::select! {
        report = load(options) => report,
        signal = termination_signal() => match signal {
            Ok(signal) => return ExitCode::from(128 + signal),
            Err(reason) => Err(format!("cannot wait for signals: {reason}")),
        },
    };
    match report {
        Ok(LoadReport(figures)) => {
            println!("{}", serde_json::Value::Object(figures));
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("cool-load: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn load(options: Options) -> Result<LoadReport, String> {
    match options.command {
        LoadCommand::Fabric { controller, groups, cycles, failures, agents_per_connection } => {
            let load = LoadSettings { groups, cycles, failures, agents_per_connection };
            phases::measure_controller(options.topology, &controller, load).await
        }
        LoadCommand::Packets { openflow, pid } => {
            phases::measure_packet_ins(options.topology, openflow, pid).await
        }
    }
}

/// Waits for a signal that terminates programs, and returns its number.
async fn termination_signal() -> std::io::Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => 2,
        _ = terminate.recv() => 15,
        _ = hangup.recv() => 1,
    })
}
