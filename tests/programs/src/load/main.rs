//! Puts load on a controller: plays the switches and agents of a large network over real OpenFlow and gRPC
//! connections, and times what the controller does.
//!
//!     cool-load fabric --controller target/release/cool-controller --topology fattree:20x50 --groups 1000
//!     cool-load packets --openflow 127.0.0.1:6653

mod agent;
mod fabric;
mod phases;
mod plan;
mod process;
mod pump;
mod switch;

use clap::{Parser, Subcommand};
use phases::{Load, Report};
use plan::Plan;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use tokio::signal::unix::{SignalKind, signal};

/// Plays the switches and agents of a large network, and times a controller.
#[derive(Debug, Parser)]
struct Options {
    /// The network: fattree:KxH (K ports a switch, H hosts a rack) or leafspine:LxSxH
    #[arg(long, global = true, default_value = "fattree:20x50")]
    topology: Plan,
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Discovery, rules, groups, link failures and packet-ins of cool-controller
    Fabric {
        /// The program; it is started and ended
        #[arg(long, default_value = "target/release/cool-controller")]
        controller: PathBuf,
        /// Groups, each over 4 racks of 8 hosts
        #[arg(long, default_value_t = 1000)]
        groups: usize,
        /// Groups that come and go, and must leave nothing behind
        #[arg(long, default_value_t = 1000)]
        cycles: usize,
        /// Links that fail, one after the other
        #[arg(long, default_value_t = 20)]
        failures: usize,
        /// Agents on one connection: 1 is as in a real network
        #[arg(long, default_value_t = 1)]
        agents_per_connection: usize,
    },
    /// Packet-ins of any OpenFlow 1.3 controller that answers ARP
    Packets {
        /// Where it listens for switches
        #[arg(long)]
        openflow: SocketAddr,
        /// Its process, whose time and memory are reported
        #[arg(long)]
        pid: Option<u32>,
    },
}

#[tokio::main(worker_threads = 2)]
async fn main() -> ExitCode {
    let options = Options::parse();
    // Dropping the load ends the controller that it has started.
    let report = tokio::select! {
        report = load(options) => report,
        signal = interrupted() => match signal {
            Ok(signal) => return ExitCode::from(128 + signal),
            Err(reason) => Err(format!("cannot watch for signals: {reason}")),
        },
    };
    match report {
        Ok(Report(figures)) => {
            println!("{}", serde_json::Value::Object(figures));
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("cool-load: {reason}");
            ExitCode::FAILURE
        }
    }
}

async fn load(options: Options) -> Result<Report, String> {
    match options.what {
        What::Fabric { controller, groups, cycles, failures, agents_per_connection } => {
            let load = Load { groups, cycles, failures, agents_per_connection };
            phases::fabric(options.topology, &controller, load).await
        }
        What::Packets { openflow, pid } => phases::packets(options.topology, openflow, pid).await,
    }
}

/// Waits for a signal that ends programs; its number.
async fn interrupted() -> std::io::Result<u8> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    Ok(tokio::select! {
        _ = interrupt.recv() => 2,
        _ = terminate.recv() => 15,
        _ = hangup.recv() => 1,
    })
}
