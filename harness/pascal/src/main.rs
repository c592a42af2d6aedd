//! Serves the model of a Pascal GPU.

use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use pascal::gpu::Gpu;
use pascal::server::{self, Served};
use pascal::space::Vram;
use pascal::witness::Witness;
use pascal::{registers, vbios};

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
    /// Size of video memory, 512M or more: a number of MiB, or of GiB as in 6G
    #[arg(long, default_value = "1G", value_parser = size)]
    vram: u64,
    /// Keep video memory in this file
    #[arg(long)]
    vram_file: Option<PathBuf>,
    /// Size of BAR1, 4M to 256M
    #[arg(long, default_value = "256M", value_parser = size)]
    bar1: u64,
    /// The VBIOS, as it is, in place of the model's own; 1 MiB at most
    #[arg(long)]
    vbios: Option<PathBuf>,
    /// Spoil the VBIOS, so that the driver has to refuse the device
    #[arg(long, value_name = "FLAW")]
    vbios_flaw: Option<vbios::Flaw>,
    /// Let the copy engine fail after this many transfers: each later transfer ends its
    /// channel
    #[arg(long)]
    transfers: Option<u64>,
    /// Let the copy engine hang after this many transfers: it does nothing and reports
    /// nothing until the driver resets it
    #[arg(long)]
    hang: Option<u64>,
    /// Let transfer N, counted from 1, take MS milliseconds. Later transfers wait
    #[arg(long, value_name = "N:MS", value_parser = slow)]
    slow: Option<(u64, Duration)>,
    /// Report to the driver that the copy engine is missing
    #[arg(long)]
    no_copy_engine: bool,
    /// Cache each translation until the driver invalidates it, as hardware may
    #[arg(long)]
    tlb: bool,
    /// Take it for a violation if the driver copies what was written through BAR1 before it
    /// has waited for such writes
    #[arg(long)]
    posted: bool,
    /// Report channels, unknown registers and methods, and violations on standard error
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

fn slow(text: &str) -> Result<(u64, Duration), String> {
    let numbers = text
        .split_once(':')
        .and_then(|(transfer, time)| Some((transfer.parse().ok()?, time.parse().ok()?)));
    match numbers {
        Some((transfer, time)) if transfer > 0 => Ok((transfer, Duration::from_millis(time))),
        _ => Err("the number of a transfer, from 1 on, and milliseconds, as 60:20000".to_owned()),
    }
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
    if arguments.vram < arguments.bar1 {
        bail!("--vram is smaller than --bar1: give it as much or more");
    }
    if arguments.vram < registers::VRAM_MIN {
        bail!("--vram is to be 512M or more: nouveau takes 256M for pages at once");
    }
    if registers::vram_size(arguments.vram).is_none() {
        bail!("--vram is to be less than 64M times a power of two, as 512M or 6G");
    }
    let vbios = arguments.vbios.as_deref().map(vbios::read).transpose();
    let vbios = vbios.context("--vbios")?;
    let vram = Vram::new(arguments.vram_file.as_deref(), arguments.vram)?;
    let mut witness = Witness::new(arguments.log.as_deref(), arguments.verbose)?;
    witness.posted.is_watched = arguments.posted;
    let server = server::listen(&arguments.socket, arguments.bar1)?;
    let mut gpu = Gpu::new(vram, witness);
    gpu.inject.fails_after = arguments.transfers;
    gpu.inject.hangs_after = arguments.hang;
    gpu.inject.has_no_copy_engine = arguments.no_copy_engine;
    gpu.inject.slow = arguments.slow;
    gpu.tlb.is_used = arguments.tlb;
    gpu.vbios = vbios.unwrap_or(gpu.vbios);
    if let Some(flaw) = arguments.vbios_flaw {
        vbios::spoil(&mut gpu.vbios, flaw);
    }
    let served = Served::new(gpu);
    let waiting = arguments.slow.is_some().then(|| {
        let served = served.clone();
        thread::spawn(move || served.wait())
    });
    let ended = server.run(&mut served.clone());
    served.stop();
    if let Some(waiting) = waiting {
        let ended = waiting.join();
        ended
            .ok()
            .context("the thread that waits has ended early")?;
    }
    let witness = &mut served.gpu().witness;
    witness.end();
    for what in &witness.first_violations {
        eprintln!("pascal: violation: {what}");
    }
    ended.context("QEMU's connection")?;
    Ok(witness.totals.violations == 0)
}
