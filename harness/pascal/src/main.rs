//! Serves the model of a Pascal GPU.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::Parser;
use pascal::gpu::Gpu;
use pascal::registers;
use pascal::server::{self, Served};
use pascal::space::Vram;
use pascal::witness::Witness;

/// Serves a Pascal GPU (GP106) to one QEMU, and ends with it.
///
/// Exit status: 0, or 1 if a rule of the witness was broken, or 2 if the device could
/// not be served, or 3 if the machine's RAM is not shared memory.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The socket to listen at; it must not exist
    #[arg(long)]
    socket: PathBuf,
    /// Write what the device did to this file, a line of JSON each
    #[arg(long)]
    log: Option<PathBuf>,
    /// Size of video memory: a number of MiB, or of GiB as in 6G
    #[arg(long, default_value = "1G", value_parser = size)]
    vram: u64,
    /// Keep video memory in this file
    #[arg(long)]
    vram_file: Option<PathBuf>,
    /// Size of BAR1, 4M to 256M
    #[arg(long, default_value = "256M", value_parser = size)]
    bar1: u64,
    /// Let the copy engine fail after so many transfers: its channel ends, and so does
    /// each other that tries
    #[arg(long)]
    transfers: Option<u64>,
    /// Go on using each translation that was used until the driver invalidates it, as
    /// hardware may
    #[arg(long)]
    tlb: bool,
    /// Tell of channels, of what the model does not know, and of violations
    #[arg(long)]
    verbose: bool,
}

fn size(text: &str) -> Result<u64, String> {
    let (digits, shift) = match text.split_at_checked(text.len().saturating_sub(1)) {
        Some((digits, "M")) => (digits, 20),
        Some((digits, "G")) => (digits, 30),
        _ => (text, 20),
    };
    let number: u32 = digits
        .parse()
        .map_err(|_| "a number, with M or G after it".to_owned())?;
    Ok(u64::from(number) << shift)
}

fn main() -> ExitCode {
    match serve(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("pascal: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn serve(arguments: &Arguments) -> Result<bool> {
    if !(4 << 20..=256 << 20).contains(&arguments.bar1) || !arguments.bar1.is_power_of_two() {
        bail!("--bar1 is to be a power of two from 4M to 256M");
    }
    if registers::vram_size(arguments.vram).is_none() {
        bail!("--vram is to be less than 64M times a power of two, as 512M or 6G");
    }
    let vram = Vram::new(arguments.vram_file.as_deref(), arguments.vram)?;
    let witness = Witness::new(arguments.log.as_deref(), arguments.verbose)?;
    let server = server::listen(&arguments.socket, arguments.bar1)?;
    let mut served = Served(Gpu::new(vram, witness));
    served.0.transfers = arguments.transfers.unwrap_or(u64::MAX);
    served.0.tlb.is_used = arguments.tlb;
    let ended = server.run(&mut served);
    let witness = &mut served.0.witness;
    witness.end();
    for what in &witness.first_violations {
        eprintln!("pascal: violation: {what}");
    }
    ended.context("QEMU's connection")?;
    Ok(witness.totals.violations == 0)
}
