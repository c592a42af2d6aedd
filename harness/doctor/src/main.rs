//! `p2p-doctor`: reports why peer-to-peer DMA is off between the devices of this host.

use std::process::ExitCode;

use clap::Parser;
use doctor::cli::{self, status};

/// Says for each pair of GPU, RDMA device and NVMe disk how one reaches the other's memory,
/// what stands in the way, what the kernel's P2PDMA code makes of it, and what to do.
#[derive(Parser)]
#[command(name = "p2p-doctor", version, after_help = cli::STATUS_HELP)]
struct Cli {
    #[command(flatten)]
    options: cli::Options,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            let bad = error.use_stderr();
            return ExitCode::from(if bad { status::USAGE } else { status::ALL });
        }
    };
    match cli::run(&cli.options) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("p2p-doctor: {error:#}");
            ExitCode::from(status::CANNOT_READ)
        }
    }
}
