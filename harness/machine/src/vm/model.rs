//! The device models of a parallel machine. Each is a process that QEMU talks to over
//! vfio-user: a ConnectX (harness/connectx) for a NIC, a Pascal (harness/pascal) for a
//! GPU. A model is also a witness: if the guest breaks a rule, the model reports it and
//! ends with status 1. Another status means that the model failed or refuses the machine.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use crate::witness::forbidden;
use host::paths::Paths;
use host::proc::indent;
use host::proc::{Background, background, interrupted, tail};
use plan::topology::{self, Models, Requests, vram};

/// How long a model may take until it listens.
const START: Duration = Duration::from_secs(10);
/// How long a model may run after the machine. Its socket tells it that the machine has ended.
/// QEMU has an io_uring, and a worker of the kernel takes that down after QEMU has ended. Two
/// models needed more than 5 s when the host's log had a "workqueue lockup".
const END: Duration = Duration::from_secs(30);
/// How much longer than the machine a model may run if nobody ends it.
const SPARE: Duration = Duration::from_secs(60);

/// The device of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A NIC.
    ConnectX,
    /// A GPU.
    Pascal,
}

/// What a model needs to know about its machine.
pub struct Setting<'a> {
    /// The directories.
    pub paths: &'a Paths,
    /// The machine's folder.
    pub dir: &'a Path,
    /// The number of GPUs. Their memory is in the files vram0, vram1, ...
    pub gpus: usize,
    /// Which devices are models, and their arguments.
    pub models: Models<'a>,
    /// The machine's time limit. `None` for a shell.
    pub limit: Option<Duration>,
}

/// A running model. Dropping it ends the process.
pub struct Model {
    process: Background,
    device: Device,
    dir: PathBuf,
    /// Of its devices.
    names: Vec<String>,
}

/// Where cargo leaves the program. setup.sh builds it together with the tool.
pub fn program(paths: &Paths, device: Device) -> PathBuf {
    let name = match device {
        Device::ConnectX => "connectx",
        Device::Pascal => "pascal",
    };
    paths.build().join("harness/debug").join(name)
}

impl Model {
    /// Starts the model of a device, or of NICs that a wire joins, and waits until it listens.
    pub fn start(setting: &Setting<'_>, device: Device, numbers: Range<usize>) -> Result<Self> {
        let Setting { paths, dir, .. } = *setting;
        let program = program(paths, device);
        if !program.is_file() {
            bail!(
                "the model of a device is not built ({}): run harness/setup.sh",
                paths.short(&program)
            );
        }
        let mut command = match setting.limit {
            // As for the machine, timeout(1) ends the model in time even if we are killed.
            Some(limit) => {
                let seconds = (limit + SPARE).as_secs().to_string();
                let mut command = Command::new("timeout");
                command.args(["--kill-after=5", &seconds]).arg(program);
                command
            }
            None => Command::new(program),
        };
        let name = |number| match device {
            Device::ConnectX => topology::connectx(number),
            Device::Pascal => topology::pascal(number),
        };
        let names = Vec::from_iter(numbers.clone().map(name));
        command.current_dir(dir);
        for name in &names {
            command
                .args(["--socket", &format!("{name}.sock")])
                .args(["--log", &format!("{name}.log")]);
        }
        match (device, setting.models.pascal) {
            (Device::ConnectX, pascal) => {
                let headers = paths.tree().join("include/linux/mlx5");
                command.arg("--headers").arg(headers);
                if pascal.is_some() {
                    // The BAR of a model is not a file.
                    command.arg("--bus");
                } else {
                    command.args((0..setting.gpus).map(|gpu| format!("--peer={}", vram(gpu))));
                }
                command.args(setting.models.connectx);
            }
            (Device::Pascal, arguments) => {
                command
                    .arg(format!("--vram-file={}", vram(numbers.start)))
                    .args(arguments.unwrap_or_default());
            }
        }
        let mut model = Self {
            device,
            process: background(&mut command, &dir.join(format!("{}.err", names[0])))?,
            dir: dir.to_owned(),
            names,
        };
        model.wait_until_it_listens(START)?;
        Ok(model)
    }

    fn wait_until_it_listens(&mut self, limit: Duration) -> Result<()> {
        let sockets = self.files("sock");
        let start = Instant::now();
        while !sockets.iter().all(|socket| socket.exists()) {
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
                "the model {} did not start: {why}\n{}",
                self.name(),
                self.last_output()
            );
        }
        Ok(())
    }

    /// Waits for the process to end after the machine, and returns its complaints.
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
        let logs = self.files("log");
        let logs = Vec::from_iter(logs.iter().map(|log| log.display().to_string()));
        Ok(Some(format!(
            "{}: {what}\n{}\nAll that it saw: {}",
            self.name(),
            self.last_output(),
            logs.join(", ")
        )))
    }

    fn name(&self) -> String {
        self.names.join(" and ")
    }

    /// The file of each device.
    fn files(&self, extension: &str) -> Vec<PathBuf> {
        let names = self.names.iter();
        Vec::from_iter(names.map(|name| self.dir.join(format!("{name}.{extension}"))))
    }

    /// The end of its error output, or else of its log.
    fn last_output(&self) -> String {
        for file in ["err", "log"].into_iter().flat_map(|end| self.files(end)) {
            let bytes = fs::read(file).unwrap_or_default();
            let text = String::from_utf8_lossy(&bytes);
            if !text.trim().is_empty() {
                return indent(&tail(&text, 15));
            }
        }
        indent("It said nothing.")
    }
}

/// Waits for the models to end after the machine. Returns their complaints, and the
/// requests that a NIC should not have sent.
pub fn end(models: Vec<Model>, may: &Requests) -> Result<Option<String>> {
    let mut all = Vec::new();
    for model in models {
        let logs = Vec::from_iter(model.names.iter().cloned().zip(model.files("log")));
        let is_nic = model.device == Device::ConnectX;
        all.extend(model.end(END)?);
        let logs = logs.iter().filter(|_| is_nic);
        all.extend(logs.filter_map(|(name, log)| {
            let what = forbidden(log, may)?;
            Some(format!("{name}: {what}"))
        }));
    }
    Ok((!all.is_empty()).then(|| all.join("\n")))
}

#[cfg(test)]
mod tests;
