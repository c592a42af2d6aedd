//! The NIC of a parallel machine: a model of a ConnectX (harness/connectx), a process for
//! each NIC, to which QEMU speaks vfio-user. It is also a witness: it ends with status 1 if
//! the guest has broken a rule, and says which.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::indent;
use crate::paths::Paths;
use crate::proc::{Background, background, interrupted, tail};
use crate::topology::{connectx as file_name, vram};

/// How soon it listens.
const START: Duration = Duration::from_secs(10);
/// How soon it ends after the machine, of which it learns by the socket.
const END: Duration = Duration::from_secs(5);
/// How much longer than the machine it may live if nobody is left to end it.
const SPARE: Duration = Duration::from_secs(30);

/// A model that runs; ended when dropped.
pub struct ConnectX {
    process: Background,
    dir: PathBuf,
    number: usize,
}

/// Where cargo leaves the program; setup.sh has it built with the tool.
pub fn program(paths: &Paths) -> PathBuf {
    paths.build().join("harness/debug/connectx")
}

impl ConnectX {
    /// Starts the model that is NIC `number` of the machine in `dir`, and waits until it
    /// listens. `gpus`: how many there are; the log calls their memory vram0, vram1, ...
    /// `limit`: that of the machine; none for a shell.
    pub fn start(
        paths: &Paths,
        dir: &Path,
        number: usize,
        gpus: usize,
        arguments: &[String],
        limit: Option<Duration>,
    ) -> Result<Self> {
        let program = program(paths);
        if !program.is_file() {
            bail!(
                "the model of a ConnectX is not built ({}): run harness/setup.sh",
                paths.short(&program)
            );
        }
        let name = file_name(number);
        let mut command = match limit {
            // As for the machine: it ends in time even if we are killed.
            Some(limit) => {
                let seconds = (limit + SPARE).as_secs().to_string();
                let mut command = Command::new("timeout");
                command.args(["--kill-after=5", &seconds]).arg(program);
                command
            }
            None => Command::new(program),
        };
        command
            .current_dir(dir)
            .args(["--socket", &format!("{name}.sock")])
            .arg("--headers")
            .arg(paths.tree().join("include/linux/mlx5"))
            .args(["--log", &format!("{name}.log")])
            .args((0..gpus).map(|gpu| format!("--peer={}", vram(gpu))))
            .args(arguments);
        let mut nic = Self {
            process: background(&mut command, &dir.join(format!("{name}.err")))?,
            dir: dir.to_owned(),
            number,
        };
        nic.wait_until_it_listens(START)?;
        Ok(nic)
    }

    fn wait_until_it_listens(&mut self, limit: Duration) -> Result<()> {
        let socket = self.file("sock");
        let start = Instant::now();
        while !socket.exists() {
            let why = match self.process.ended()? {
                Some(status) => status.to_string(),
                None if start.elapsed() > limit => {
                    format!("no socket within {} s", limit.as_secs())
                }
                None if interrupted() => bail!("interrupted"),
                None => {
                    thread::sleep(Duration::from_millis(20));
                    continue;
                }
            };
            bail!(
                "the model of a ConnectX did not start: {why}\n{}",
                self.said()
            );
        }
        Ok(())
    }

    /// Waits for its end, now that the machine has ended; gives what there is to complain
    /// of.
    fn end(mut self, limit: Duration) -> Result<Option<String>> {
        let start = Instant::now();
        let status = loop {
            match self.process.ended()? {
                None if start.elapsed() < limit => thread::sleep(Duration::from_millis(20)),
                status => break status,
            }
        };
        let what = match status.map(|status: ExitStatus| (status.code(), status)) {
            Some((Some(0), _)) => return Ok(None),
            Some((Some(1), _)) => "a rule is broken".to_owned(),
            Some((_, status)) => format!("the model failed: {status}"),
            None => format!(
                "the model did not end within {} s of the machine",
                limit.as_secs()
            ),
        };
        Ok(Some(format!(
            "{}: {what}\n{}\nAll that it saw: {}",
            file_name(self.number),
            self.said(),
            self.file("log").display()
        )))
    }

    fn file(&self, extension: &str) -> PathBuf {
        self.dir
            .join(format!("{}.{extension}", file_name(self.number)))
    }

    /// The last that it said, or else the last of its log.
    fn said(&self) -> String {
        for extension in ["err", "log"] {
            let bytes = fs::read(self.file(extension)).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            if !text.trim().is_empty() {
                return indent(&tail(&text, 15));
            }
        }
        indent("It said nothing.")
    }
}

/// The machine has ended, and so must its NICs; gives what they complain of.
pub fn end(nics: Vec<ConnectX>) -> Result<Option<String>> {
    let mut all = Vec::new();
    for nic in nics {
        all.extend(nic.end(END)?);
    }
    Ok((!all.is_empty()).then(|| all.join("\n")))
}

#[cfg(test)]
mod tests;
