//! A model of a ConnectX NIC, for the real mlx5 driver in a virtual machine.
//!
//! QEMU's `vfio-user-pci` is its only client: registers and configuration space
//! arrive over a socket, and memory as files. A command's path, in file order:
//! [`layout`] (where fields are) → [`endpoint`], [`pci`] → [`device`] (registers; below it
//! commands, queues, keys and page faults) → [`caps`] → [`umr`] → [`qp`], [`transfer`], [`wire`]
//! → [`witness`] (what the judge reads).

#![warn(unused_crate_dependencies)]

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use endpoint::memory;
use endpoint::proxy::Proxy;

use crate::device::{Definitions, Device, Options, Scheme};
use crate::layout::Headers;
use crate::memory::Memory;
use crate::server::Shared;
use crate::witness::Witness;

mod bus;
mod caps;
mod device;
mod layout;
mod pci;
mod qp;
mod server;
mod table;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod transfer;
mod umr;
mod wire;
mod witness;

/// Serves a ConnectX to one QEMU, and ends with it.
///
/// Exit status: 0, or 1 if a rule of the witness was broken, or 2 if the device could
/// not be served, or 3 if the machine's RAM is not shared memory.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The socket to listen at; it must not exist. Given twice: there are two NICs, and a wire
    /// joins their ports
    #[arg(long, required = true)]
    socket: Vec<PathBuf>,
    /// The folder include/linux/mlx5 of the kernel that runs in the machine
    #[arg(long)]
    headers: PathBuf,
    /// Write each DMA of data, change of a translation and page fault to this file, a
    /// line of JSON each. Of two NICs each has a file of its own
    #[arg(long)]
    log: Vec<PathBuf>,
    /// The file behind a peer's BAR; the log calls the first one vram0
    #[arg(long)]
    peer: Vec<PathBuf>,
    /// Let QEMU access memory that it has not shared as a file, such as the BAR of another
    /// model (QEMU 11); without this option such an access is a violation. For one NIC only
    #[arg(long)]
    bus: bool,
    /// How page faults are reported
    #[arg(long, value_enum, default_value = "transport")]
    scheme: Scheme,
    /// Report refused commands and failed requests on standard error
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    match serve(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("connectx: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn serve(arguments: &Arguments) -> Result<bool> {
    let (sockets, logs) = (&arguments.socket, &arguments.log);
    ensure!(sockets.len() <= 2, "a wire has two ends: --socket twice");
    ensure!(
        logs.is_empty() || logs.len() == sockets.len(),
        "--log is to be there as often as --socket"
    );
    ensure!(
        !arguments.bus || sockets.len() == 1,
        "--bus is for one NIC, and there are two --socket"
    );
    let definitions = Headers::read(&arguments.headers)
        .and_then(|headers| Definitions::load(&headers))
        .context("--headers is to be include/linux/mlx5 of the machine's kernel")?;
    let mut servers = Vec::new();
    let mut proxy = None;
    let mut device = None;
    for (number, socket) in sockets.iter().enumerate() {
        let (server, in_front) = server::listen(socket, arguments.bus)?;
        servers.push(server);
        proxy = in_front;
        let options = Options {
            scheme: arguments.scheme,
            lid: 1 + number as u16,
            verbose: arguments.verbose,
        };
        let witness = Witness::new(logs.get(number).map(PathBuf::as_path))?;
        let memory = Memory::new(arguments.peer.clone());
        let mut this = Box::new(Device::new(definitions.clone(), options, memory, witness));
        this.bus.is_on = arguments.bus;
        device = match device {
            Some(first) => Some(wire::join(first, this)),
            None => Some(this),
        };
    }
    let device = device.context("--socket is missing")?;
    let shared = Shared::new(device, proxy.as_ref().map(Proxy::client));
    let passing_on = proxy.map(|proxy| thread::spawn(move || proxy.run()));
    let engine = thread::spawn({
        let shared = shared.clone();
        move || shared.work()
    });
    let ends = Vec::from_iter([Some(shared.clone()), shared.far()].into_iter().flatten());
    let serving = servers.into_iter().zip(ends.clone()).map(|(server, end)| {
        thread::spawn(move || {
            let ended = server.run(&mut end.clone());
            end.stop();
            ended
        })
    });
    let mut all_ended = Ok(());
    for thread in Vec::from_iter(serving) {
        let ended = thread.join().ok().context("a server has panicked")?;
        all_ended = all_ended.and(ended);
    }
    if let Some(passing_on) = passing_on {
        let ended = passing_on.join().ok().context("the proxy has panicked")?;
        ended.context("QEMU's connection")?;
        // Remove the stale socket file, on which nobody listens any more.
        for socket in sockets {
            let _ = fs::remove_file(socket);
        }
    }
    engine
        .join()
        .ok()
        .context("the thread that moves data has ended early")?;
    let mut is_good = true;
    for end in ends {
        let mut device = end.lock();
        device.witness.end();
        for what in &device.witness.first_violations {
            eprintln!("connectx: violation: {what}");
        }
        is_good &= device.witness.totals.violations == 0;
    }
    all_ended.context("QEMU's connection")?;
    Ok(is_good)
}
